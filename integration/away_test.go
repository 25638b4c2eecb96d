package integration

import (
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sluice/integration/testenv"
)

// The receiver answers 503 to all for a while, under load: it gets few requests, events stay in the source, and all is
// delivered after.
func TestUnavailableReceiverIsLeftAloneAndGetsEverythingLater(t *testing.T) {
	beside(t)
	outage, keys, rate := 2*time.Second, 40, 10
	if testenv.Soak() {
		outage, keys, rate = 20*time.Second, 100, 20
	}
	const workers = 2
	w := newWorld(t)
	var away atomic.Bool
	w.receiver.Handle(func(testenv.Request) testenv.Response {
		if away.Load() {
			return testenv.Response{Status: http.StatusServiceUnavailable}
		}
		return testenv.Response{Delay: 2 * time.Millisecond}
	})
	all := w.workers(workers, "LIMIT=200/s burst 20")
	enough := make(chan struct{})
	var loading sync.WaitGroup
	loading.Go(func() { w.loadUntil(enough, keys, rate) })
	time.Sleep(500 * time.Millisecond)
	away.Store(true)
	begin := time.Now()
	time.Sleep(outage)
	c := testenv.Snapshot(t, w.nats, w.receiver, testenv.Streams{})
	for _, p := range all {
		if status, body := p.Get("/readyz"); status != http.StatusOK || !strings.Contains(body, `"destination":"away for`) {
			t.Errorf("/readyz = %d %s", status, body)
		}
	}
	away.Store(false)
	back := time.Now()
	close(enough)
	loading.Wait()
	w.receiver.WaitForDelivered(len(w.ids()), 2*outage+10*time.Second)
	took := time.Since(back)
	w.atRest(0)
	w.bounded(200, 20)

	failed, late, attempts := 0, 0, 0
	for _, r := range w.receiver.Requests() {
		if r.Status == http.StatusServiceUnavailable {
			if failed++; r.Arrived.Sub(begin) > 500*time.Millisecond {
				late++
			}
		}
		attempts = max(attempts, r.Attempt)
	}
	t.Logf("%d requests within %s, %d of them after the first 500 ms; %d of %d events in lanes; all delivered %s after, %d attempts at most, %d duplicates",
		failed, outage, late, len(c.Lanes), len(w.ids()), took.Round(time.Millisecond), attempts, w.duplicates())
	// At first what is in flight fails; then one push of each worker probes, 0.25 s later, 0.5 s, 1 s, and so on.
	inFlight := 30
	if testenv.Soak() { // at a higher rate
		inFlight = 150
	}
	if least, most := 3*workers, 8*workers; late > most || failed < least || failed > inFlight+most {
		t.Errorf("%d requests while the receiver was away, %d of them later, want %d to %d", failed, late, least, most)
	}
	// Besides those that were pushed: what one worker handed back and the other took before it knew.
	if waiting := len(c.Source) + len(c.Lanes); len(c.Lanes) > waiting/5 {
		t.Errorf("%d of %d events that wait are in lanes", len(c.Lanes), waiting)
	}
	if attempts > 6 || w.duplicates() != 0 {
		t.Errorf("%d attempts of an event, %d duplicates", attempts, w.duplicates())
	}
}

// One of two workers can't reach the receiver: the other gets its events.
func TestWorkerThatAloneCannotReachTheReceiverLeavesItsEventsToOthers(t *testing.T) {
	beside(t)
	w := newWorld(t)
	gone := testenv.Receiver(t)
	at := gone.URL()
	gone.Stop()
	apart := w.worker("LIMIT=100/s", "WEBHOOK_URL="+at)
	apart.WaitReady(30 * time.Second)
	w.load(20, 20, 500*time.Millisecond)
	w.workers(1, "LIMIT=100/s")
	w.load(20, 10, 500*time.Millisecond)
	begin := time.Now()
	w.receiver.WaitForDelivered(600, 20*time.Second)
	t.Logf("all delivered %s after the last was published", time.Since(begin).Round(time.Millisecond))
	w.atRest(0)
	if out := apart.Output(); strings.Count(out, "the destination is away") != 1 {
		t.Errorf("the worker without a receiver said:\n%s", out)
	}
}
