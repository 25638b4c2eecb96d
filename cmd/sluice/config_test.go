package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"sluice/limiter/redisstore"
)

// setEnvironment makes the given NAME=value pairs the only SLUICE_ variables; an empty variable counts as unset.
func setEnvironment(t *testing.T, pairs ...string) {
	t.Helper()
	for _, pair := range os.Environ() {
		if name, _, _ := strings.Cut(pair, "="); strings.HasPrefix(name, prefix) {
			t.Setenv(name, "")
		}
	}
	for _, pair := range pairs {
		name, value, _ := strings.Cut(pair, "=")
		t.Setenv(name, value)
	}
}

func writeFile(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func faultsOf(t *testing.T, err error) []string {
	t.Helper()
	wrong, ok := errors.AsType[*configError](err)
	if !ok {
		t.Fatalf("got error %v, want a *configError", err)
	}
	return wrong.faults
}

func TestDefaultsAreThoseOfTheTable(t *testing.T) {
	setEnvironment(t, "SLUICE_WEBHOOK_URL=https://example.com/hook")
	cfg, err := loadConfig(workerParts...)
	if err != nil {
		t.Fatal(err)
	}
	got := fmt.Sprintln(cfg.Name, cfg.NATS.URLs, cfg.Stream, cfg.Subjects, cfg.Consumer, cfg.Setup, cfg.Replicas,
		cfg.LanesMaxBytes, cfg.DLQMaxBytes, cfg.Redis.URL, cfg.Limit, cfg.AllowTier, cfg.MaxWait, cfg.KeyMaxWaiting, cfg.Overflow,
		cfg.Sink, cfg.Webhook.Timeout, cfg.Retry, cfg.Concurrency, cfg.DrainTimeout, cfg.AdminAddr, cfg.AdminExplicit,
		cfg.LogLevel, cfg.LogFormat)
	want := "sluice [nats://127.0.0.1:4222] EVENTS [events.>] sluice own 1 8589934592 1073741824 redis://127.0.0.1:6379/… " +
		"10/s burst 20 false 1h0m0s 0 deadletter webhook 15s {24h0m0s 0 1s 1h0m0s} 256 20s 127.0.0.1:7780 false INFO text"
	if strings.Join(strings.Fields(got), " ") != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestAllFaultsAreToldAtOnce(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing")
	setEnvironment(t,
		"SLUICE_NAME=Has Space",
		"SLUICE_LOG_LEVEL=loud",
		"SLUICE_NATS_URL=nats://u:p%zz@h:4222,ftp://h2",
		"SLUICE_NATS_CREDS="+missing,
		"SLUICE_NATS_TOKEN=hunter2",
		"SLUICE_NATS_PASSWORD=hunter2",
		"SLUICE_NATS_PASSWORD_FILE="+missing,
		"SLUICE_NATS_TLS_CERT="+missing,
		"SLUICE_NATS_INBOX_PREFIX=a.>",
		"SLUICE_STREAM=a.b",
		"SLUICE_SUBJECTS=events.>.x, ok.*",
		"SLUICE_CONSUMER=a b",
		"SLUICE_SETUP=some",
		"SLUICE_REPLICAS=6",
		"SLUICE_LANES_MAX_BYTES=8 apples",
		"SLUICE_DLQ_MAX_BYTES=5",
		"SLUICE_REDIS_URL=redis://:hunter2@h:6379/abc",
		"SLUICE_REDIS_PASSWORD=hunter2",
		"SLUICE_LIMIT=10",
		"SLUICE_KEY=cookie:x",
		"SLUICE_MAX_WAIT=30",
		"SLUICE_KEY_MAX_WAITING=many",
		"SLUICE_OVERFLOW=block",
		"SLUICE_KEY_CONCURRENCY=-1",
		"SLUICE_RETRY_BASE=2h",
		"SLUICE_RETRY_MAX=-1",
		"SLUICE_CONCURRENCY=0",
		"SLUICE_DRAIN_TIMEOUT=0",
		"SLUICE_ADMIN_ADDR=7780",
		"SLUICE_ON_REDIS_DOWN=opened",
		"SLUICE_ON_REDIS_DOWN_GRACE=-1s",
		"SLUICE_METRIC_KEYS=a,b%",
		"SLUICE_RETRY_CAPP=1h",
		"SLUICE_XYZZY=hunter2",
	)
	_, err := loadConfig(workerParts...)
	want := []string{
		`SLUICE_NAME: value "Has Space": is not a name;`,
		`SLUICE_LOG_LEVEL: value "loud": is not known; use debug or info or warn or error`,
		`SLUICE_NATS_URL: value "nats://h:4222": is not a URL;`,
		`SLUICE_NATS_URL: value "ftp://h2": has the unknown scheme "ftp"; use nats, tls, ws or wss`,
		`SLUICE_NATS_CREDS: value "` + missing + `": can't be read: no such file or directory; check path and permissions`,
		`SLUICE_NATS_PASSWORD: is set together with SLUICE_NATS_PASSWORD_FILE; unset one of them`,
		`SLUICE_NATS_TLS_CERT: value "` + missing + `": can't be read`,
		`SLUICE_NATS_TLS_CERT: value "` + missing + `": has no key; set SLUICE_NATS_TLS_KEY, too`,
		`SLUICE_NATS_INBOX_PREFIX: value "a.>": is not a subject without wildcards;`,
		`SLUICE_NATS_PASSWORD: is set without a user; set SLUICE_NATS_USER, too`,
		`SLUICE_NATS_CREDS: is one of several ways to authenticate: SLUICE_NATS_CREDS, SLUICE_NATS_USER, SLUICE_NATS_TOKEN, SLUICE_NATS_URL (user in the URL); use one of them`,
		`SLUICE_STREAM: value "a.b": is not a name in NATS;`,
		`SLUICE_CONSUMER: value "a b": is not a name in NATS;`,
		`SLUICE_SUBJECTS: value "events.>.x": is not a subject; use one such as events.>`,
		`SLUICE_SETUP: value "some": is not known; use own or all or off`,
		`SLUICE_REPLICAS: value "6": is out of range; use 1 to 5`,
		`SLUICE_LANES_MAX_BYTES: value "8 apples": is not a size; use one such as 8GiB`,
		`SLUICE_DLQ_MAX_BYTES: value "5": is out of range; use 1MiB to 8EiB`,
		`SLUICE_REDIS_URL: value "redis://h:6379/…": invalid database number: "abc"; use one such as redis://127.0.0.1:6379/0`,
		`SLUICE_REDIS_URL: value "redis://h:6379/…": holds a user or password beside`,
		`SLUICE_KEY: value "cookie:x": `,
		`SLUICE_LIMIT: value "10": the unit of time is missing;`,
		`SLUICE_MAX_WAIT: value "30": has no unit; use one such as 1h`,
		`SLUICE_KEY_MAX_WAITING: value "many": is not a whole number; use one such as 0`,
		`SLUICE_OVERFLOW: value "block": is not known; use deadletter or drop`,
		`SLUICE_KEY_CONCURRENCY: value "-1": is out of range; use 0 to 65536`,
		`SLUICE_WEBHOOK_URL: is not set; set it to where events are pushed, or SLUICE_SINK=log`,
		`SLUICE_RETRY_MAX: value "-1": is out of range; use 0 to 2147483647`,
		`SLUICE_RETRY_BASE: value "2h": is longer than SLUICE_RETRY_CAP, 1h; swap or adjust them`,
		`SLUICE_CONCURRENCY: value "0": is out of range; use 1 to 65536`,
		`SLUICE_DRAIN_TIMEOUT: value "0": is too short; use at least 1ms`,
		`SLUICE_ADMIN_ADDR: value "7780": is not host:port; use one such as 127.0.0.1:7780`,
		`SLUICE_ON_REDIS_DOWN: value "opened": is not known; use local or closed or open`,
		`SLUICE_ON_REDIS_DOWN_GRACE: value "-1s": `,
		`SLUICE_METRIC_KEYS: value "b%": has a % that begins no escape;`,
		`SLUICE_RETRY_CAPP: unknown variable; did you mean SLUICE_RETRY_CAP?`,
		`SLUICE_XYZZY: unknown variable; unset it, or see 'sluice worker --help'`,
	}
	got := faultsOf(t, err)
	remaining := append([]string(nil), got...)
	for _, w := range want {
		i := indexPrefix(remaining, w)
		if i < 0 {
			t.Errorf("no fault begins with\n  %s", w)
			continue
		}
		remaining = append(remaining[:i], remaining[i+1:]...)
	}
	for _, extra := range remaining {
		t.Errorf("unexpected fault\n  %s", extra)
	}
	if strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), "%zz") {
		t.Errorf("a secret shows in\n%v", err)
	}
}

func indexPrefix(list []string, start string) int {
	for i, s := range list {
		if strings.HasPrefix(s, start) {
			return i
		}
	}
	return -1
}

// As docker's --env-file leaves them. A name of a stream, a password or a key with quotes would fail much later, or never.
func TestQuotesAroundAValueAreNamed(t *testing.T) {
	read := map[string]string{ // all are right but for the quotes
		"NAME": "shop", "STREAM": "EVENTS", "SUBJECTS": "events.>", "LIMIT": "10/s", "KEY": "subject:2", "MAX_WAIT": "1h", "LANES_MAX_BYTES": "8GiB",
		"CONCURRENCY": "8", "OVERFLOW": "drop", "WEBHOOK_URL": "https://user:hidden@example.com/", "NATS_URL": "nats://hidden@127.0.0.1:4222",
		"REDIS_PASSWORD": "hidden", "WEBHOOK_SECRETS": "whsec_hidden", "NATS_TLS_CA": "/ca.pem", "METRIC_KEYS": "alice", "ADMIN_ADDR": ":7780",
		"NATS_PASSWORD_FILE": "/run/hidden", "RETRY_BASE": "1s",
	}
	for _, quote := range []string{`"`, "'"} {
		pairs := []string{"SLUICE_NATS_USER=u"}
		for name, value := range read {
			pairs = append(pairs, prefix+name+"= "+quote+value+quote)
		}
		setEnvironment(t, pairs...)
		_, err := loadConfig(workerParts...)
		faults := faultsOf(t, err)
		if len(faults) != len(read) {
			t.Errorf("%d faults of %d variables:\n%s", len(faults), len(read), strings.Join(faults, "\n"))
		}
		for name := range read {
			if !strings.Contains(err.Error(), prefix+name+": its value begins and ends with the quote "+quote) {
				t.Errorf("nothing is said of the quotes of %s", name)
			}
		}
		if strings.Contains(err.Error(), "hidden") {
			t.Errorf("a secret shows in %s", err)
		}
	}
	file := writeFile(t, "password", `"hidden"`)
	setEnvironment(t, "SLUICE_SINK=log", "SLUICE_REDIS_PASSWORD_FILE="+file, `SLUICE_KEY=json:"a"+json:"b",subject:2`)
	if cfg, err := loadConfig(workerParts...); err != nil || string(cfg.Redis.Password) != `"hidden"` || cfg.Key.String() != `json:"a"+json:"b",subject:2` {
		t.Errorf("quotes that are meant: %v, %+v", err, cfg)
	}
}

func TestPushesThatAreCountedCannotAllPassWithoutRedis(t *testing.T) {
	setEnvironment(t, "SLUICE_SINK=log", "SLUICE_KEY_CONCURRENCY=3", "SLUICE_ON_REDIS_DOWN=open")
	_, err := loadConfig(workerParts...)
	if got := faultsOf(t, err); len(got) != 1 || indexPrefix(got, `SLUICE_ON_REDIS_DOWN: value "open": can't be with SLUICE_KEY_CONCURRENCY`) < 0 {
		t.Errorf("faults: %q, want that of SLUICE_ON_REDIS_DOWN", got)
	}
}

func TestCommandIsNotDisturbedBySettingsOfOthers(t *testing.T) {
	setEnvironment(t, "SLUICE_LIMIT=nonsense", "SLUICE_REDIS_URL=nonsense", "SLUICE_NATS_URL=nats://h:1")
	cfg, err := loadConfig(natsPart, sourcePart)
	if err != nil {
		t.Fatal(err)
	}
	if len(cfg.NATS.URLs) != 1 || cfg.NATS.URLs[0] != "nats://h:1" {
		t.Errorf("NATS URLs are %v, want the one set", cfg.NATS.URLs)
	}
}

// TestEveryVariableIsReadUnderItsPrefixedNameOnly also fails for a variable that is read into another one's field.
func TestEveryVariableIsReadUnderItsPrefixedNameOnly(t *testing.T) {
	file := writeFile(t, "secret", "from-file\n")
	urlFile := writeFile(t, "url", "redis://other:6379/3\n")
	natsFile := writeFile(t, "nats", "nats://a:1, nats://b:2\n")
	hookFile := writeFile(t, "hooks", testHookSecret+"\n"+testHookSecret+"\n")
	cert, key := writeCertificate(t)
	none := []string{}
	cases := map[string]struct {
		value string
		with  []string // what else must be set, in both runs
		get   func(Config) any
		want  any
	}{
		"NAME":                 {"other", none, func(c Config) any { return c.Name + " " + c.Consumer }, "other other"},
		"NATS_URL":             {"nats://a:1,,b:2", none, func(c Config) any { return c.NATS.URLs }, []URL{"nats://a:1", "b:2"}},
		"NATS_URL_FILE":        {natsFile, none, func(c Config) any { return c.NATS.URLs }, []URL{"nats://a:1", "nats://b:2"}},
		"NATS_CREDS":           {file, none, func(c Config) any { return c.NATS.Creds }, file},
		"NATS_NKEY":            {file, none, func(c Config) any { return c.NATS.Nkey }, file},
		"NATS_USER":            {"u", none, func(c Config) any { return c.NATS.User }, "u"},
		"NATS_PASSWORD":        {" p ", []string{"SLUICE_NATS_USER=u"}, func(c Config) any { return c.NATS.Password }, Secret(" p ")},
		"NATS_PASSWORD_FILE":   {file, []string{"SLUICE_NATS_USER=u"}, func(c Config) any { return c.NATS.Password }, Secret("from-file")},
		"NATS_TOKEN":           {"tok", none, func(c Config) any { return c.NATS.Token }, Secret("tok")},
		"NATS_TOKEN_FILE":      {file, none, func(c Config) any { return c.NATS.Token }, Secret("from-file")},
		"NATS_TLS_CA":          {cert, none, func(c Config) any { return c.NATS.TLS.CA }, cert},
		"NATS_TLS_CERT":        {cert, []string{"SLUICE_NATS_TLS_KEY=" + key}, func(c Config) any { return c.NATS.TLS.Cert }, cert},
		"NATS_TLS_KEY":         {key, []string{"SLUICE_NATS_TLS_CERT=" + cert}, func(c Config) any { return c.NATS.TLS.Key }, key},
		"NATS_INBOX_PREFIX":    {"_IN", none, func(c Config) any { return c.NATS.InboxPrefix }, "_IN"},
		"NATS_JS_DOMAIN":       {"leaf", none, func(c Config) any { return c.NATS.JSDomain }, "leaf"},
		"STREAM":               {"ORDERS", none, func(c Config) any { return c.Stream }, "ORDERS"},
		"SUBJECTS":             {" a.> , b ,", none, func(c Config) any { return c.Subjects }, []string{"a.>", "b"}},
		"CONSUMER":             {"c", none, func(c Config) any { return c.Consumer }, "c"},
		"SETUP":                {"all", none, func(c Config) any { return c.Setup }, "all"},
		"REPLICAS":             {"3", none, func(c Config) any { return c.Replicas }, 3},
		"LANES_MAX_BYTES":      {"500MB", none, func(c Config) any { return c.LanesMaxBytes }, int64(500e6)},
		"DLQ_MAX_BYTES":        {"2097152", none, func(c Config) any { return c.DLQMaxBytes }, int64(2 << 20)},
		"KEY":                  {"header:X", none, func(c Config) any { return fmt.Sprint(c.Key) != "" }, true},
		"REDIS_URL":            {"unix:///run/r.sock?db=2", none, func(c Config) any { return c.Redis.URL }, URL("unix:///run/r.sock?db=2")},
		"REDIS_URL_FILE":       {urlFile, none, func(c Config) any { return c.Redis.URL }, URL("redis://other:6379/3")},
		"REDIS_MODE":           {"Cluster", none, func(c Config) any { return c.Redis.Mode }, "cluster"},
		"REDIS_USERNAME":       {"u", none, func(c Config) any { return c.Redis.Username }, "u"},
		"REDIS_PASSWORD":       {"p", none, func(c Config) any { return c.Redis.Password }, Secret("p")},
		"REDIS_PASSWORD_FILE":  {file, none, func(c Config) any { return c.Redis.Password }, Secret("from-file")},
		"REDIS_TLS_CA":         {cert, []string{"SLUICE_REDIS_URL=rediss://h"}, func(c Config) any { return c.Redis.TLS.CA }, cert},
		"REDIS_TLS_CERT":       {cert, []string{"SLUICE_REDIS_URL=rediss://h", "SLUICE_REDIS_TLS_KEY=" + key}, func(c Config) any { return c.Redis.TLS.Cert }, cert},
		"REDIS_TLS_KEY":        {key, []string{"SLUICE_REDIS_URL=rediss://h", "SLUICE_REDIS_TLS_CERT=" + cert}, func(c Config) any { return c.Redis.TLS.Key }, key},
		"LIMIT":                {"3/m", none, func(c Config) any { return c.Limit.String() }, "3/m"},
		"ALLOW_TIER":           {"True", none, func(c Config) any { return c.AllowTier }, true},
		"MAX_WAIT":             {"1d12h", none, func(c Config) any { return c.MaxWait }, 36 * time.Hour},
		"KEY_MAX_WAITING":      {"7", none, func(c Config) any { return c.KeyMaxWaiting }, int64(7)},
		"OVERFLOW":             {"Drop", none, func(c Config) any { return c.Overflow }, "drop"},
		"KEY_CONCURRENCY":      {"1", none, func(c Config) any { return fmt.Sprintln(c.KeyConcurrency, c.Outage.Policy) }, "1 closed\n"},
		"ON_REDIS_DOWN":        {"Closed", none, func(c Config) any { return c.Outage.Policy }, redisstore.Closed},
		"ON_REDIS_DOWN_GRACE":  {"90s", none, func(c Config) any { return c.Outage.Grace }, 90 * time.Second},
		"SINK":                 {"log", none, func(c Config) any { return c.Sink }, "log"},
		"WEBHOOK_URL":          {"https://h/{key}", none, func(c Config) any { return c.Webhook.URL }, URL("https://h/{key}")},
		"WEBHOOK_SECRETS":      {testHookSecret, none, func(c Config) any { return c.Webhook.Secrets }, []Secret{testHookSecret}},
		"WEBHOOK_SECRETS_FILE": {hookFile, none, func(c Config) any { return c.Webhook.Secrets }, []Secret{testHookSecret, testHookSecret}},
		"WEBHOOK_CONN_LIFE":    {"1d", none, func(c Config) any { return c.Webhook.ConnLife }, 24 * time.Hour},
		"WEBHOOK_TLS_CA":       {cert, none, func(c Config) any { return c.Webhook.TLS.CA }, cert},
		"WEBHOOK_TLS_CERT":     {cert, []string{"SLUICE_WEBHOOK_TLS_KEY=" + key}, func(c Config) any { return c.Webhook.TLS.Cert }, cert},
		"WEBHOOK_TLS_KEY":      {key, []string{"SLUICE_WEBHOOK_TLS_CERT=" + cert}, func(c Config) any { return c.Webhook.TLS.Key }, key},
		"WEBHOOK_TIMEOUT":      {"1500ms", none, func(c Config) any { return c.Webhook.Timeout }, 1500 * time.Millisecond},
		"RETRY_FOR":            {"7d", none, func(c Config) any { return c.Retry.For }, 7 * 24 * time.Hour},
		"RETRY_MAX":            {"9", none, func(c Config) any { return c.Retry.Max }, 9},
		"RETRY_BASE":           {"2s", none, func(c Config) any { return c.Retry.Base }, 2 * time.Second},
		"RETRY_CAP":            {"2h", none, func(c Config) any { return c.Retry.Cap }, 2 * time.Hour},
		"CONCURRENCY":          {"5", none, func(c Config) any { return c.Concurrency }, 5},
		"DRAIN_TIMEOUT":        {"25s", none, func(c Config) any { return c.DrainTimeout }, 25 * time.Second},
		"ADMIN_ADDR":           {":9", none, func(c Config) any { return fmt.Sprintln(c.AdminAddr, c.AdminExplicit) }, ":9 true\n"},
		"METRIC_KEYS":          {"a, b", none, func(c Config) any { return c.MetricKeys }, []string{"a", "b"}},
		"LOG_LEVEL":            {"WARN", none, func(c Config) any { return c.LogLevel }, slog.LevelWarn},
		"LOG_FORMAT":           {"json", none, func(c Config) any { return c.LogFormat }, "json"},
	}
	for _, v := range variables {
		c, ok := cases[v.name]
		if !ok {
			t.Errorf("%s has no case here", v.name)
			continue
		}
		t.Run(v.name, func(t *testing.T) {
			setEnvironment(t, c.with...)
			if v.name != "WEBHOOK_URL" && os.Getenv("SLUICE_WEBHOOK_URL") == "" {
				t.Setenv("SLUICE_WEBHOOK_URL", "https://example.com")
			}
			t.Setenv(v.name, c.value)
			before, _ := loadConfig(workerParts...)
			t.Setenv(prefix+v.name, c.value)
			after, err := loadConfig(workerParts...)
			if err != nil {
				t.Fatal(err)
			}
			if reflect.DeepEqual(before, after) {
				t.Error("setting it makes no difference, or its name without the prefix counts, too")
			}
			if got := c.get(after); !reflect.DeepEqual(got, c.want) {
				t.Errorf("got %#v, want %#v", got, c.want)
			}
		})
	}
}

// testHookSecret is whsec_ and the base64 of 24 bytes.
const testHookSecret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

func TestSecretsShowNowhere(t *testing.T) {
	setEnvironment(t,
		"SLUICE_NATS_URL=nats://n-user:n-pass@h:4222", "SLUICE_REDIS_URL=redis://r-user:r-pass@h/0?client_name=x",
		"SLUICE_WEBHOOK_URL=https://w-user:w-pass@h/t0ken?sig=w-sig", "SLUICE_WEBHOOK_SECRETS="+testHookSecret)
	cfg, err := loadConfig(workerParts...)
	if err != nil {
		t.Fatal(err)
	}
	cfg.NATS.Token, cfg.NATS.Password, cfg.Redis.Password = "n-tok", "n-pass2", "r-pass2"
	var logged strings.Builder
	slog.New(slog.NewJSONHandler(&logged, nil)).Info("config", "config", cfg, "secret", cfg.NATS.Token, "url", cfg.Redis.URL)
	slog.New(slog.NewTextHandler(&logged, nil)).Info("config", "config", cfg, "secret", cfg.NATS.Token, "url", cfg.Redis.URL)
	asJSON, err := json.Marshal(cfg)
	if err != nil {
		t.Fatal(err)
	}
	shown := strings.Join([]string{
		logged.String(), string(asJSON), fmt.Sprintf("%v %+v %#v %s %q %x", cfg, cfg, cfg, cfg.NATS, cfg.Redis, cfg.Webhook),
	}, "\n")
	for _, secret := range []string{"n-user", "n-pass", "n-tok", "r-user", "r-pass", "w-user", "w-pass", "w-sig", "t0ken", testHookSecret} {
		if strings.Contains(shown, secret) || strings.Contains(shown, fmt.Sprintf("%x", secret)) {
			t.Errorf("%s shows in\n%s", secret, shown)
		}
	}
	if !strings.Contains(shown, "nats://h:4222") {
		t.Errorf("the host doesn't show in\n%s", shown)
	}
}

func TestPasswordDoesNotShowInAnyFaultOfAURL(t *testing.T) {
	for _, url := range []string{
		"redis://:hunter2#x@h:6379", "redis://:1/hunter2@h", "redis://:hunter2?x@h", "redis://u:hunter2%@h", "hunter2@h",
		"redis://u:hunter2@h/1/2", "redis://u:hunter2@h?foo=1", "redis://u:hunter2@h:port", "http://u:hunter2@h", "://hunter2@h",
		"u:hunter2@h://x", "redis://u:x@hunter2@h", "nats://x@hunter2@h:4222/y@h",
	} {
		for _, name := range []string{"SLUICE_REDIS_URL", "SLUICE_NATS_URL", "SLUICE_WEBHOOK_URL"} {
			setEnvironment(t, name+"="+url)
			cfg, err := loadConfig(workerParts...)
			if text := fmt.Sprintf("%v %+v", err, cfg); strings.Contains(text, "hunter2") {
				t.Errorf("%s=%s: the password shows in\n%s", name, url, text)
			}
		}
	}
}

func TestTLSFilesMustBelongTogether(t *testing.T) {
	cert, _ := writeCertificate(t)
	_, otherKey := writeCertificate(t)
	setEnvironment(t, "SLUICE_NATS_TLS_CERT="+cert, "SLUICE_NATS_TLS_KEY="+otherKey, "SLUICE_NATS_TLS_CA="+otherKey)
	_, err := loadConfig(natsPart)
	faults := faultsOf(t, err)
	if len(faults) != 2 || !strings.HasPrefix(faults[0], "SLUICE_NATS_TLS_CA: ") || !strings.HasPrefix(faults[1], "SLUICE_NATS_TLS_CERT: ") {
		t.Errorf("got faults %q, want one of the CA and one of the certificate", faults)
	}
}

// writeCertificate writes a self-signed certificate and its key as PEM files.
func writeCertificate(t *testing.T) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	cert = writeFile(t, "cert.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	key = writeFile(t, "key.pem", string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})))
	return cert, key
}

func TestFingerprintTellsSettingsApart(t *testing.T) {
	load := func(pairs ...string) string {
		t.Helper()
		setEnvironment(t, append([]string{"SLUICE_SINK=log", "SLUICE_NATS_USER=u", "SLUICE_NATS_PASSWORD=a"}, pairs...)...)
		cfg, err := loadConfig(workerParts...)
		if err != nil {
			t.Fatal(err)
		}
		return cfg.fingerprint()
	}
	base := load()
	for _, same := range []string{"SLUICE_ADMIN_ADDR=127.0.0.1:0", "SLUICE_LOG_LEVEL=debug", "SLUICE_NATS_PASSWORD=b", "SLUICE_LIMIT=10/s burst 20", "SLUICE_KEY=subject:2"} {
		if got := load(same); got != base {
			t.Errorf("%s changes the fingerprint", same)
		}
	}
	for _, other := range []string{"SLUICE_LIMIT=10/s", "SLUICE_KEY=subject:1", "SLUICE_MAX_WAIT=2h", "SLUICE_CONCURRENCY=8", "SLUICE_REDIS_URL=redis://h/1"} {
		if got := load(other); got == base {
			t.Errorf("%s doesn't change the fingerprint", other)
		}
	}
}
