package testenv

import (
	"context"
	"fmt"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"
)

func TestNATSKeepsItsStoreOverARestart(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	server := NATS(t)
	js := server.JetStream()
	if _, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: "S", Subjects: []string{"s.>"}, MaxBytes: 9 << 30}); err != nil {
		t.Fatal(err)
	}
	if _, err := js.Publish(ctx, "s.1", []byte("kept")); err != nil {
		t.Fatal(err)
	}
	url := server.URL()

	server.Restart()

	if server.URL() != url {
		t.Errorf("it moved from %s to %s", url, server.URL())
	}
	if !eventually(startTimeout, server.Conn().IsConnected) {
		t.Fatal("the test's connection doesn't come back")
	}
	stream, err := js.Stream(ctx, "S")
	if err != nil {
		t.Fatal(err)
	}
	if got := stream.CachedInfo().State.Msgs; got != 1 {
		t.Errorf("%d messages after the restart, want 1", got)
	}
	server.Stop()
	if !eventually(startTimeout, func() bool { return !server.Conn().IsConnected() }) {
		t.Error("still connected to a stopped server")
	}
	server.Start()
	if !eventually(startTimeout, server.Conn().IsConnected) {
		t.Error("not connected after the start")
	}
}

func TestRedisIsReachedByPortAndSocketAndComesBackEmpty(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	server := Redis(t)
	for _, url := range []string{server.URL(), server.SocketURL()} {
		options, err := redis.ParseURL(url)
		if err != nil {
			t.Fatal(err)
		}
		client := redis.NewClient(options)
		if err := client.Set(ctx, "k", url, 0).Err(); err != nil {
			t.Errorf("by %s: %v", url, err)
		}
		_ = client.Close()
	}
	for name, want := range map[string]string{"maxmemory-policy": "noeviction", "save": "", "appendonly": "no"} {
		got, err := server.Client().ConfigGet(ctx, name).Result()
		if err != nil || got[name] != want {
			t.Errorf("%s is %q, %v; want %q", name, got[name], err, want)
		}
	}

	server.Kill()
	if err := server.Client().Ping(ctx).Err(); err == nil {
		t.Error("a killed server answers")
	}
	server.Start()
	if n, err := server.Client().DBSize(ctx).Result(); err != nil || n != 0 {
		t.Errorf("%d keys, %v after the start, want 0", n, err)
	}
}

func TestRedisPausedHangsAndGoesOn(t *testing.T) {
	t.Parallel()
	server := Redis(t)
	if err := server.Client().Ping(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	server.Pause()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	conn := server.Client().WithTimeout(100 * time.Millisecond)
	if err := conn.Ping(ctx).Err(); err == nil {
		t.Error("a paused server answers")
	}
	server.Resume()
	if err := server.Client().Ping(t.Context()).Err(); err != nil {
		t.Errorf("after the pause: %v", err)
	}
}

func TestRedisComesBackOnceWithWhatWasSaved(t *testing.T) {
	t.Parallel()
	server := Redis(t)
	server.Client().Set(t.Context(), "k", "old", 0)
	server.Save()
	server.Client().Set(t.Context(), "k", "new", 0)
	for _, want := range []string{"old", ""} {
		server.Kill()
		server.Start()
		if got := server.Client().Get(t.Context(), "k").Val(); got != want {
			t.Errorf("came back with %q, want %q", got, want)
		}
	}
}

func TestRedisTakesExtraArguments(t *testing.T) {
	t.Parallel()
	server := Redis(t, "--maxmemory-policy", "allkeys-lru", "--appendonly", "yes")
	ctx := t.Context()
	got, err := server.Client().ConfigGet(ctx, "maxmemory-policy").Result()
	if err != nil || got["maxmemory-policy"] != "allkeys-lru" {
		t.Errorf("policy is %v, %v", got, err)
	}
}

func TestRedisIsTheProgramThatIsNamed(t *testing.T) {
	path, err := exec.LookPath(Redis(t).path)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("SLUICE_REDIS_PROGRAM", path)
	t.Setenv("PATH", t.TempDir())
	if err := Redis(t).Client().Ping(t.Context()).Err(); err != nil {
		t.Error(err)
	}
}

// verdict is a testing.TB that notes how a helper ended the test.
type verdict struct {
	testing.TB
	skipped, failed string
}

func (v *verdict) Helper() {}

func (v *verdict) Skipf(format string, args ...any) {
	v.skipped = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func (v *verdict) Fatalf(format string, args ...any) {
	v.failed = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

// ended is how a helper that needs something ends a test.
func ended(helper func(testing.TB)) (v verdict) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		helper(&v)
	}()
	<-done
	return v
}

func TestToolThatNotAllHaveIsRequiredInCIOnly(t *testing.T) {
	for ci, fails := range map[string]bool{"": false, "true": true} {
		t.Setenv("SLUICE_REQUIRE_SERVERS", "1")
		t.Setenv("CI", ci)
		v := ended(func(t testing.TB) { Lacks(t, "a browser", "apt-get install chromium") })
		if (v.failed != "") != fails || !strings.Contains(v.failed+v.skipped, "apt-get install chromium") {
			t.Errorf("CI %q: skipped %q, failed %q", ci, v.skipped, v.failed)
		}
	}
}

func TestMissingServerSkipsUnlessAllAreRequired(t *testing.T) {
	for _, test := range []struct {
		require, ci string
		fails       bool
	}{{"", "", false}, {"1", "", true}, {"", "true", true}, {"0", "false", false}} {
		t.Setenv("SLUICE_REQUIRE_SERVERS", test.require)
		t.Setenv("CI", test.ci)
		t.Setenv("SLUICE_REDIS_PROGRAM", "")
		t.Setenv("PATH", t.TempDir())
		v := ended(func(t testing.TB) { Redis(t) })
		told := v.skipped
		if test.fails {
			told = v.failed
		}
		if !strings.Contains(told, "apt-get install redis-server") || (v.skipped == "") != test.fails {
			t.Errorf("required %q, CI %q: skipped %q, failed %q", test.require, test.ci, v.skipped, v.failed)
		}
	}
}
