package integration

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// A receiver that drops the second request of each connection gets all of its rate, in first attempts, and isn't taken to be away.
func TestReceiverThatEndsKeptConnectionsGetsItsRate(t *testing.T) {
	beside(t)
	const rate, events = 200, 600
	type number struct{}
	var mu sync.Mutex
	delivered, again := map[string]time.Time{}, 0
	receiver := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.Context().Value(number{}).(*atomic.Int32).Add(1) > 1 {
			panic(http.ErrAbortHandler) // ends the connection without an answer
		}
		mu.Lock()
		defer mu.Unlock()
		delivered[r.Header.Get("webhook-id")] = time.Now()
		if r.Header.Get("Sluice-Attempt") != "1" {
			again++
		}
	}))
	receiver.Config.ConnContext = func(ctx context.Context, _ net.Conn) context.Context {
		return context.WithValue(ctx, number{}, &atomic.Int32{})
	}
	receiver.Start()
	defer receiver.Close()
	w := newWorld(t)
	worker := w.workers(1, "LIMIT=200/s burst 20", "WEBHOOK_URL="+receiver.URL)[0]
	begin := time.Now()
	w.publish("alice", events, 0)
	all := func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(delivered) == events
	}
	for !all() && time.Since(begin) < 20*time.Second {
		time.Sleep(20 * time.Millisecond)
	}
	took := time.Since(begin)
	mu.Lock()
	n := len(delivered)
	mu.Unlock()
	t.Logf("%d of %d events in %s, ideal %s", n, events, took.Round(time.Millisecond), (events-20)*time.Second/rate)
	if n != events || again > 0 {
		t.Errorf("%d of %d events were delivered, %d of them after a failed attempt", n, events, again)
	}
	if most := 3 * events * time.Second / rate; took > most {
		t.Errorf("it took %s, want at most %s", took, most)
	}
	if strings.Contains(worker.Output(), "away") {
		t.Error("the destination was taken to be away")
	}
}
