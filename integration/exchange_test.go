package integration

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// The password of Redis is exchanged under load, some time later in the workers' file: between, Redis is away, with few
// connections and its reason told, and pushes go on by shares; afterwards all goes on by itself.
func TestRedisWhosePasswordIsExchangedIsAwayUntilTheFileIsToo(t *testing.T) {
	beside(t)
	w := newWorld(t)
	w.measures = true
	do := func(args ...any) {
		t.Helper()
		if err := w.redis.Client().Do(t.Context(), args...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	do("acl", "setuser", "sluice", "on", ">first", "~*", "+@all")
	path := filepath.Join(t.TempDir(), "password")
	exchange := func(text string) {
		t.Helper()
		if err := errors.Join(os.WriteFile(path+".new", []byte(text), 0o600), os.Rename(path+".new", path)); err != nil {
			t.Fatal(err)
		}
	}
	exchange("first\n")
	const rate, burst = 20, 10
	all := w.workers(2, "LIMIT=20/s burst 10", "REDIS_USERNAME=sluice", "REDIS_PASSWORD_FILE="+path)
	time.Sleep(2200 * time.Millisecond) // so long they listen until they know all of them
	enough := make(chan struct{})
	var loading sync.WaitGroup
	loading.Go(func() { w.loadUntil(enough, 8, 15) })
	time.Sleep(500 * time.Millisecond)

	do("acl", "setuser", "sluice", "resetpass", ">second")
	do("client", "kill", "user", "sluice")
	time.Sleep(time.Second)
	connections := func() int {
		info := w.redis.Client().Info(t.Context(), "stats").Val()
		_, after, _ := strings.Cut(info, "total_connections_received:")
		text, _, _ := strings.Cut(after, "\r\n")
		n, err := strconv.Atoi(text)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	const looks = 1500 * time.Millisecond
	from, before := time.Now(), connections()
	time.Sleep(looks)
	if n := connections() - before; n > 20 {
		t.Errorf("%d connections within %s by %d workers", n, looks, len(all))
	}
	pushed := 0
	for _, r := range w.receiver.Requests() {
		if r.Arrived.After(from) {
			pushed++
		}
	}
	if ideal := 8 * 15 * looks.Seconds(); float64(pushed) < 0.7*ideal {
		t.Errorf("%d pushes within %s of the outage, want about %.0f", pushed, looks, ideal)
	}
	for _, p := range all {
		if status, body := p.Get("/readyz"); status != 200 || !strings.Contains(body, `"redis":"away: `) || !strings.Contains(body, "WRONGPASS") {
			t.Errorf("/readyz = %d %s", status, body)
		}
		if up := p.Metrics()["sluice_redis_up"]; up != 0 {
			t.Errorf("sluice_redis_up is %v", up)
		}
	}

	exchange("second\n")
	put := time.Now()
	for _, p := range all {
		for body := ""; !strings.Contains(body, `"redis":"connected"`); time.Sleep(20 * time.Millisecond) {
			if _, body = p.Get("/readyz"); time.Since(put) > 10*time.Second {
				t.Fatalf("/readyz 10 s after the file was written: %s", body)
			}
		}
	}
	close(enough)
	loading.Wait()
	w.receiver.WaitForDelivered(len(w.ids()), 20*time.Second)
	w.atRest(0)
	w.bounded(rate, burst)
	for _, p := range all {
		for _, line := range []string{"Redis is away", "WRONGPASS", "SLUICE_REDIS_PASSWORD_FILE was read again", "Redis is back"} {
			if n := strings.Count(p.Output(), line); n != 1 {
				t.Errorf("%q was said %d times:\n%s", line, n, p.Output())
			}
		}
	}
	t.Logf("%d events, %d duplicates; connected %s after the file was written", len(w.ids()), w.duplicates(), time.Since(put).Round(time.Millisecond))
}
