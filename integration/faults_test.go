package integration

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"sluice/integration/testenv"
)

// load publishes n events of each of the keys, evenly over about d, and returns when all are confirmed.
func (w *world) load(keys, n int, d time.Duration) {
	var publishing sync.WaitGroup
	for i := range keys {
		publishing.Go(func() { w.publish(fmt.Sprintf("k%02d", i), n, d/time.Duration(n)) })
	}
	publishing.Wait()
}

// loadUntil publishes events of each of the keys, perSecond of each, until stop is closed and all are confirmed.
func (w *world) loadUntil(stop <-chan struct{}, keys, perSecond int) {
	var publishing sync.WaitGroup
	for i := range keys {
		publishing.Go(func() {
			pace := time.NewTicker(time.Second / time.Duration(perSecond))
			defer pace.Stop()
			for {
				select {
				case <-stop:
					return
				case <-pace.C:
					w.publish(fmt.Sprintf("k%02d", i), 1, 0)
				}
			}
		})
	}
	publishing.Wait()
}

// slow makes every push take so long, so that some are in flight at any moment.
func (w *world) slow(d time.Duration) {
	w.receiver.Handle(func(testenv.Request) testenv.Response { return testenv.Response{Delay: d} })
}

// duplicates counts deliveries beyond the first of each event, and fails the test if a repeated push had another id.
func (w *world) duplicates() int {
	w.t.Helper()
	n := 0
	for id, times := range w.receiver.Delivered() {
		n += times - 1
		if _, ok := w.published[id]; !ok {
			w.t.Errorf("an event with the id %s was never published", id)
		}
	}
	return n
}

// Workers are killed under load, again and again: nothing is lost, and what is delivered twice was in flight.
func TestKilledWorkersLoseNothing(t *testing.T) {
	beside(t)
	const concurrency = 64
	kills, pause, keys, n := 3, time.Second, 20, 60
	if testenv.Soak() {
		kills, pause, n = 10, 2*time.Second, 400
	}
	w := newWorld(t)
	w.slow(40 * time.Millisecond)
	env := []string{"LIMIT=40/s burst 10", fmt.Sprintf("CONCURRENCY=%d", concurrency)}
	workers := w.workers(3, env...)

	var loading sync.WaitGroup
	loading.Go(func() { w.load(keys, n, time.Duration(kills)*pause) })
	for i := range kills {
		time.Sleep(pause)
		workers[i%3].Kill()
		w.conserved(fmt.Sprintf("after kill %d", i+1))
		workers[i%3] = w.worker(env...)
	}
	loading.Wait()
	w.conserved("after the load")
	w.receiver.WaitForDelivered(keys*n, 60*time.Second)
	w.atRest(0)
	w.bounded(40, 10)
	pushes, again := 0, 0 // a push whose worker was killed is one, whether or not the receiver could answer
	for _, n := range w.receiver.IDs() {
		pushes += n
		again += n - 1
	}
	t.Logf("%d kills, %d events, %d pushed again, %d delivered twice", kills, len(w.ids()), again, w.duplicates())
	if again > kills*concurrency || pushes-again != len(w.ids()) {
		t.Errorf("%d of %d pushes were repeated after %d kills, want at most %d each", again, pushes, kills, concurrency)
	}
}

// Workers are stopped and replaced under load, one after another: what they held goes to the others at once.
func TestStoppedWorkersHandOverWithoutDuplicates(t *testing.T) {
	beside(t)
	stops, pause, number := 3, 700*time.Millisecond, 2
	if testenv.Soak() {
		stops, pause, number = 12, 2*time.Second, 4
	}
	const keys, rate, burst = 10, 30, 5
	w := newWorld(t)
	w.slow(40 * time.Millisecond)
	env := []string{fmt.Sprintf("LIMIT=%d/s burst %d", rate, burst)}
	workers := w.workers(number, env...)

	enough := make(chan struct{})
	var loading sync.WaitGroup
	loading.Go(func() { w.loadUntil(enough, keys, rate+5) })
	for i := range stops {
		time.Sleep(pause)
		code, took := workers[i%number].Stop()
		if code != 0 || took > 5*time.Second {
			t.Errorf("stop %d: exit code %d after %s", i+1, code, took)
		}
		if gap := w.gapAfter(time.Now()); gap > 5*time.Second {
			t.Errorf("stop %d: nothing was pushed for %s", i+1, gap)
		} else {
			t.Logf("stopped in %s, the next push came %s later", took.Round(time.Millisecond), gap.Round(time.Millisecond))
		}
		workers[i%number] = w.worker(env...)
		workers[i%number].WaitReady(30 * time.Second)
	}
	close(enough)
	loading.Wait()
	w.receiver.WaitForDelivered(len(w.ids()), 60*time.Second)
	w.atRest(0)
	w.bounded(rate, burst)
	if d := w.duplicates(); d != 0 || len(w.ids()) < stops*100 {
		t.Errorf("%d duplicates of %d events", d, len(w.ids()))
	}
}

// gapAfter waits for the next push and says how long that took.
func (w *world) gapAfter(since time.Time) time.Duration {
	before := w.receiver.Count()
	w.receiver.WaitFor(before+1, 20*time.Second)
	return time.Since(since)
}

// The receiver refuses events for good: they are dead-lettered after one attempt.
func TestRefusedEventsAreDeadLetteredAtOnce(t *testing.T) {
	beside(t)
	w := newWorld(t)
	w.receiver.Handle(func(r testenv.Request) testenv.Response {
		if r.Key == "k00" {
			return testenv.Response{Status: http.StatusBadRequest, Body: "no such user"}
		}
		return testenv.Response{}
	})
	w.workers(1, "LIMIT=10/s burst 10")
	w.load(2, 15, 100*time.Millisecond)
	w.receiver.WaitFor(30, 20*time.Second)
	w.atRest(15)
	for id, n := range w.receiver.IDs() {
		if n != 1 {
			t.Errorf("event %s was pushed %d times", id, n)
		}
	}
	stream, err := w.js.Stream(t.Context(), "SLUICE_DLQ")
	if err != nil {
		t.Fatal(err)
	}
	msg, err := stream.GetLastMsgForSubject(t.Context(), "sluice.dlq.rejected.k00")
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"Sluice-Reason": "rejected", "Sluice-Attempt": "1", "Sluice-Key": "k00", "Sluice-Subject": "events.k00"} {
		if got := msg.Header.Get(name); got != want {
			t.Errorf("dead letter's %s = %q, want %q", name, got, want)
		}
	}
}

// One push of a key is answered 429 with Retry-After: nothing of the key goes before, and the others lose no attempt.
func TestRetryAfterClosesTheKey(t *testing.T) {
	beside(t)
	const pause = 3 * time.Second
	w := newWorld(t)
	var mu sync.Mutex
	var closed time.Time // when the receiver closed the key
	w.receiver.Handle(func(r testenv.Request) testenv.Response {
		mu.Lock()
		defer mu.Unlock()
		if r.Key == "closed" && closed.IsZero() && len(w.receiver.Requests()) > 20 {
			closed = time.Now()
			return testenv.Response{Status: http.StatusTooManyRequests, Header: http.Header{"Retry-After": {"3"}}}
		}
		return testenv.Response{}
	})
	w.workers(2, "LIMIT=50/s burst 5")
	var loading sync.WaitGroup
	loading.Go(func() { w.publish("closed", 120, 0) })
	loading.Go(func() { w.publish("open", 100, 30*time.Millisecond) })
	loading.Wait()
	w.receiver.WaitForDelivered(220, 40*time.Second)
	w.atRest(0)

	during, repeated, open := 0, 0, 0
	for _, r := range w.receiver.Requests() {
		since := r.Arrived.Sub(closed)
		if r.Key == "closed" && since > 0 && since < pause {
			during++
		}
		if r.Key == "closed" && r.Attempt > 1 {
			repeated++
		}
		if r.Key == "open" && since > 0 && since < pause {
			open++
		}
	}
	t.Logf("%d requests of the key within 3 s, %d repeated attempts, %d requests of another key meanwhile", during, repeated, open)
	if during > 5 {
		t.Errorf("%d requests while the key was closed, want only those in flight", during)
	}
	if repeated != 1 {
		t.Errorf("%d attempts were spent twice, want the one that was refused", repeated)
	}
	if open < 20 {
		t.Errorf("another key got %d requests in 3 s, want it unaffected", open)
	}
}

// One key's endpoint hangs: the others notice nothing.
func TestHangingEndpointSlowsNobodyElse(t *testing.T) {
	hang, n, took := 3*time.Second, 120, 3*time.Second
	if testenv.Soak() {
		hang, n, took = 10*time.Second, 500, 15*time.Second
	}
	w := newWorld(t)
	w.measures = true
	w.receiver.Handle(func(r testenv.Request) testenv.Response {
		if r.Key == "hanging" {
			return testenv.Response{Delay: hang}
		}
		return testenv.Response{}
	})
	workers := w.workers(2, "LIMIT=50/s burst 50", "WEBHOOK_TIMEOUT=30s", "DRAIN_TIMEOUT=100ms")
	phase := func(name string, publishHanging bool) time.Duration {
		var publishing sync.WaitGroup
		if publishHanging {
			publishing.Go(func() { w.publish("hanging", n, 20*time.Millisecond) })
		}
		for i := range 10 {
			publishing.Go(func() { w.publish(fmt.Sprintf("%s%02d", name, i), 50, took/50) })
		}
		publishing.Wait()
		return testenv.Percentile(w.latencies(func(key string) bool { return key != "hanging" && key[:4] == name }), 99)
	}
	quiet := phase("calm", false)
	beside := phase("loud", true)
	inFlight := sum(workers, "sluice_pushes_in_flight")
	t.Logf("others' p99 %s beside the hanging key, %s without; %v pushes in flight", beside, quiet, inFlight)
	if beside > 5*quiet+100*time.Millisecond {
		t.Errorf("others' p99 is %s beside a hanging key, %s without", beside, quiet)
	}
	if n := testenv.Percentile(slices.Collect(maps.Values(w.receiver.IDs())), 100); n != 1 {
		t.Errorf("an event was pushed %d times", n)
	}
}
