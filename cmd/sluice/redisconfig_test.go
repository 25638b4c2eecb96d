package main

import (
	"crypto/tls"
	"log/slog"
	"slices"
	"strings"
	"testing"
)

func TestRedisAddressJoinsURLAndVariables(t *testing.T) {
	t.Parallel()
	cert, _ := writeCertificate(t)
	secured := func(config *tls.Config) bool {
		return config != nil && config.ServerName == "h" && config.MinVersion == tls.VersionTLS12
	}
	c := RedisConfig{Username: "u", Password: "p", TLS: TLSFiles{CA: cert}}

	c.URL = "rediss://h/4?pool_size=7"
	a, err := c.address(slog.New(slog.DiscardHandler))
	if err != nil || a.Single == nil || a.Sentinel != nil || a.Cluster != nil || a.TLS(t.Context()).RootCAs == nil {
		t.Fatal(a, err)
	}
	if o := a.Single; o.Addr != "h:6379" || o.DB != 4 || o.PoolSize != 7 || o.Username != "u" || o.Password != "p" || !secured(o.TLSConfig) {
		t.Errorf("single: %s db %d pool %d user %q, TLS %+v", o.Addr, o.DB, o.PoolSize, o.Username, o.TLSConfig)
	}

	c.Mode, c.URL = "sentinel", "rediss://su:sp@h:26379/4?master_name=m&addr=h2:26379"
	if a, err = c.address(slog.New(slog.DiscardHandler)); err != nil || a.Single != nil || a.Sentinel == nil || a.Cluster != nil {
		t.Fatal(a, err)
	}
	if o := a.Sentinel; !slices.Equal(o.SentinelAddrs, []string{"h:26379", "h2:26379"}) || o.MasterName != "m" || o.DB != 4 || o.Username != "u" ||
		o.Password != "p" || o.SentinelUsername != "su" || o.SentinelPassword != "sp" || !secured(o.TLSConfig) {
		t.Errorf("sentinel: %v db %d user %q and %q, TLS %+v", o.SentinelAddrs, o.DB, o.Username, o.SentinelUsername, o.TLSConfig)
	}

	c.Mode, c.URL = "cluster", "rediss://h?addr=h2:6379&addr=h3:6379"
	if a, err = c.address(slog.New(slog.DiscardHandler)); err != nil || a.Single != nil || a.Sentinel != nil || a.Cluster == nil {
		t.Fatal(a, err)
	}
	if o := a.Cluster; !slices.Equal(o.Addrs, []string{"h:6379", "h2:6379", "h3:6379"}) || o.Username != "u" || o.Password != "p" || !secured(o.TLSConfig) {
		t.Errorf("cluster: %v user %q, TLS %+v", o.Addrs, o.Username, o.TLSConfig)
	}
}

func TestRedisURLHasToSuitItsMode(t *testing.T) {
	for _, test := range []struct {
		mode, url string
		with      string // another variable
		want      string // begins the fault after the URL; "": none
	}{
		{"", "redis://h", "", ""},
		{"cluster", "redis://h:6379/0", "", ""}, // as the default has it
		{"cluster", "redis://u:hunter2@h?addr=h2:1&addr=h3:1", "", ""},
		{"sentinel", "rediss://su:hunter2@h:26379/3?master_name=m&addr=h2:26379", "SLUICE_REDIS_PASSWORD=hunter2", ""},
		{"sentinel", "redis://h:26379?master_name=m&username=u&password=hunter2", "", ""},

		{"single", "redis://h?master_name=m", "", "names a master, which is for Sentinels; set SLUICE_REDIS_MODE=sentinel,"},
		{"cluster", "redis://h?master_name=m", "", "names a master, which is for Sentinels; set SLUICE_REDIS_MODE=sentinel,"},
		{"single", "redis://h?addr=h2:6379", "", "names more than one server; set SLUICE_REDIS_MODE=cluster or sentinel,"},
		{"sentinel", "redis://u:hunter2@h:26379", "", "names no master; add the name that the Sentinels watch, as in redis://127.0.0.1:26379/0?master_name=mymaster"},
		{"sentinel", "redis://h:26379?master_name=", "", "names no master;"},
		{"sentinel", "redis://h:26379/x?master_name=m", "", `invalid database number: "x"; use one such as redis://127.0.0.1:26379/0?master_name=mymaster`},
		{"sentinel", "unix:///run/redis.sock?master_name=m", "", "invalid URL scheme: unix; use one such as redis://127.0.0.1:26379/0?"},
		{"sentinel", "redis://h?master_name=m&password=hunter2", "SLUICE_REDIS_PASSWORD=x", "holds username or password beside"},
		{"sentinel", "redis://h?master_name=m&foo=hunter2", "", "unexpected option: foo; use"},
		{"cluster", "redis://h/3", "", "names a database, and a Cluster has only number 0; remove it, as in redis://127.0.0.1:6379?addr=127.0.0.1:6380"},
		{"cluster", "redis://h?db=3", "", "names a database,"},
		{"cluster", "unix:///run/redis.sock", "", "invalid URL scheme: unix; use"},
		{"cluster", "redis://h?addr=h2", "", "unable to parse addr param: h2; use one such as redis://127.0.0.1:6379?addr="},
		{"cluster", "redis://u:hunter2@h", "SLUICE_REDIS_USERNAME=x", "holds a user or password beside"},
		{"cluster", "redis://u:hunter2%@h", "", "has a user or password that is not percent-encoded;"},
	} {
		setEnvironment(t, "SLUICE_REDIS_MODE="+test.mode, "SLUICE_REDIS_URL="+test.url)
		if name, value, ok := strings.Cut(test.with, "="); ok {
			t.Setenv(name, value)
		}
		cfg, err := loadConfig(redisPart)
		if test.want == "" {
			if err != nil {
				t.Errorf("%s %s: %v", test.mode, test.url, err)
			} else if _, err := cfg.Redis.address(slog.New(slog.DiscardHandler)); err != nil {
				t.Errorf("%s %s: %v", test.mode, test.url, err)
			}
			continue
		}
		if err == nil {
			t.Errorf("%s %s: no fault, want %q", test.mode, test.url, test.want)
			continue
		}
		if got := faultsOf(t, err); len(got) != 1 || !strings.HasPrefix(got[0], "SLUICE_REDIS_URL: value ") || !strings.Contains(got[0], `": `+test.want) {
			t.Errorf("%s %s: got %q, want %q", test.mode, test.url, got, test.want)
		}
		if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("the password shows in %v", err)
		}
	}
	setEnvironment(t, "SLUICE_REDIS_MODE=ring")
	if _, err := loadConfig(redisPart); err == nil || !strings.HasPrefix(err.Error(), `SLUICE_REDIS_MODE: value "ring": is not known; use single or sentinel or cluster`) {
		t.Errorf("got %v", err)
	}
}
