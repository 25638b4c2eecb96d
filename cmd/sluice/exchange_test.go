package main

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"sluice/integration/testenv"
	"sluice/limiter/redisstore"
)

// exchanged writes a file and puts it in another's place.
func exchanged(t *testing.T, path, text string) {
	t.Helper()
	if err := errors.Join(os.WriteFile(path+".new", []byte(text), 0o600), os.Rename(path+".new", path)); err != nil {
		t.Fatal(err)
	}
}

func textOf(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// Password, authority and certificate are exchanged at Redis and then in the files, under one client.
func TestExchangedFilesOfRedisAreFollowed(t *testing.T) {
	old, next := testenv.Certificates(t), testenv.Certificates(t)
	server, url := testenv.RedisTLS(t, old)
	admin := func(args ...any) {
		t.Helper()
		if err := server.Client().Do(t.Context(), args...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	admin("acl", "setuser", "sluice", "on", ">hunter1", "~*", "+@all")
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	for name, from := range map[string]string{"ca": old.CA, "cert": old.Cert, "key": old.Key} {
		exchanged(t, in(name), textOf(t, from))
	}
	exchanged(t, in("password"), "hunter1\n")
	exchanged(t, in("url"), strings.Replace(url, "//", "//sluice:hunter1@", 1))

	clients := map[string]redis.UniversalClient{}
	var said bytes.Buffer // nobody writes while it is read: clients connect when they are called
	for name, env := range map[string][]string{
		"password file": {"SLUICE_REDIS_URL=" + url, "SLUICE_REDIS_USERNAME=sluice", "SLUICE_REDIS_PASSWORD_FILE=" + in("password")},
		"URL file":      {"SLUICE_REDIS_URL_FILE=" + in("url")},
	} {
		setEnvironment(t, append(env, "SLUICE_REDIS_TLS_CA="+in("ca"), "SLUICE_REDIS_TLS_CERT="+in("cert"), "SLUICE_REDIS_TLS_KEY="+in("key"))...)
		cfg, err := loadConfig(redisPart)
		if err != nil {
			t.Fatal(err)
		}
		address, err := cfg.Redis.address(slog.New(slog.NewTextHandler(&said, nil)))
		if err != nil {
			t.Fatal(err)
		}
		rdb, err := redisstore.Reach(t.Context(), address, "redis")
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		defer func() { _ = rdb.Close() }()
		clients[name] = rdb
	}
	wants := func(what string, want string) {
		t.Helper()
		admin("client", "kill", "user", "sluice")
		for name, rdb := range clients {
			for end := time.Now().Add(5 * time.Second); ; time.Sleep(20 * time.Millisecond) {
				err := rdb.Ping(t.Context()).Err()
				if want == "" && err == nil || want != "" && err != nil && strings.Contains(err.Error(), want) {
					break
				}
				if time.Now().After(end) {
					t.Fatalf("%s, by %s: %v, want %q", what, name, err, want)
				}
			}
		}
	}
	wants("before", "")
	admin("acl", "setuser", "sluice", "resetpass", ">hunter2")
	wants("another password", "WRONGPASS")
	exchanged(t, in("password"), "hunter2\n")
	exchanged(t, in("url"), strings.Replace(url, "//", "//sluice:hunter2@", 1))
	wants("the other password", "")
	admin("config", "set", "tls-cert-file", next.Cert, "tls-key-file", next.Key, "tls-ca-cert-file", next.CA)
	wants("another authority", "x509")
	exchanged(t, in("ca"), textOf(t, next.CA))
	exchanged(t, in("cert"), textOf(t, next.Cert))
	exchanged(t, in("key"), textOf(t, next.Key))
	wants("the other authority", "")
	exchanged(t, in("password"), "")
	exchanged(t, in("ca"), "-----BEGIN")
	wants("files that can't be used", "")
	if strings.Contains(said.String(), "hunter") || strings.Count(said.String(), "can't be used") != 3 { // one password, two clients' authorities
		t.Errorf("said %s", &said)
	}
}

func TestExchangedFilesOfTheWebhookAreFollowed(t *testing.T) {
	cert, key := writeCertificate(t)
	path := filepath.Join(t.TempDir(), "secrets")
	exchanged(t, path, testHookSecret)
	setEnvironment(t, "SLUICE_WEBHOOK_URL=https://127.0.0.1:1/", "SLUICE_WEBHOOK_SECRETS_FILE="+path, "SLUICE_WEBHOOK_TLS_CA="+cert,
		"SLUICE_WEBHOOK_TLS_CERT="+cert, "SLUICE_WEBHOOK_TLS_KEY="+key)
	cfg, err := loadConfig(workerParts...)
	if err != nil {
		t.Fatal(err)
	}
	same := cfg.fingerprint()
	hook, err := cfg.hook(slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if c := hook.TLS(t.Context()); c.RootCAs == nil || len(c.Certificates) != 1 {
		t.Errorf("the files of TLS: %+v", c)
	}
	exchanged(t, path, testHookSecret+"\n"+testHookSecret+"\n")
	followed := func(want int) {
		t.Helper()
		for end := time.Now().Add(5 * time.Second); len(hook.SecretsNow()) != want; time.Sleep(5 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%d secrets, want %d", len(hook.SecretsNow()), want)
			}
		}
	}
	followed(2)
	for _, faulty := range []string{"", ",\n", "whsec_nonsense"} {
		exchanged(t, path, faulty)
		time.Sleep(250 * time.Millisecond)
		followed(2)
	}
	exchanged(t, path, testHookSecret)
	followed(1)

	exchanged(t, path, testHookSecret+","+testHookSecret)
	if cfg, err = loadConfig(workerParts...); err != nil || cfg.fingerprint() != same {
		t.Errorf("a worker that starts later counts as another: %v", err)
	}
}

func TestFilesOfTLSNeedATLSReceiver(t *testing.T) {
	cert, _ := writeCertificate(t)
	setEnvironment(t, "SLUICE_WEBHOOK_URL=http://h/", "SLUICE_WEBHOOK_TLS_CA="+cert)
	if _, err := loadConfig(workerParts...); err == nil || !strings.Contains(err.Error(), "SLUICE_WEBHOOK_TLS_…; use https://") {
		t.Errorf("got %v", err)
	}
}
