package integration

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"sluice/integration/testenv"
)

// A worker with events in flight, held and prefetched is stopped: it ends as soon as what is in flight has ended, and the next
// one gets all others, each once and as a first attempt.
func TestStoppedWorkerHandsOverAllItHas(t *testing.T) {
	if !testenv.Soak() {
		t.Skip("long: SLUICE_SOAK=1 runs it")
	}
	const inFlight, held, prefetched = 50, 100, 200
	w := newWorld(t)
	w.receiver.Handle(func(r testenv.Request) testenv.Response {
		if r.Key[:4] == "slow" {
			return testenv.Response{Delay: 600 * time.Millisecond}
		}
		return testenv.Response{}
	})
	env := []string{"LIMIT=2/s burst 1", fmt.Sprintf("CONCURRENCY=%d", inFlight)}
	first := w.workers(1, env...)[0]
	publish := func(name string, keys, n int) {
		var publishing sync.WaitGroup
		for i := range keys {
			publishing.Go(func() { w.publish(fmt.Sprintf("%s%03d", name, i), n, 0) })
		}
		publishing.Wait()
	}
	publish("warm", held+inFlight+prefetched, 1) // a worker promises no more than it pushed in the last second
	publish("held", held, 2)
	publish("slow", inFlight+prefetched, 1)
	before := first.Metrics()
	code, took := first.Stop()
	started := time.Now()
	w.workers(1, env...)
	gap := w.gapAfter(started)
	w.receiver.WaitForDelivered(len(w.ids()), 20*time.Second)
	w.atRest(0)
	flying, kept := before["sluice_pushes_in_flight"], before["sluice_events_held"]
	rest := before["sluice_events_received_total"] - before[`sluice_events_settled_total{outcome="delivered"}`] -
		before["sluice_events_parked_total"] - flying - kept
	t.Logf("%v in flight, %v held, %v prefetched; ended in %s, the next worker's first push came %s later", flying, kept, rest,
		took.Round(time.Millisecond), gap.Round(time.Millisecond))
	if flying < inFlight/2 || kept < held/2 || rest < prefetched/2 {
		t.Errorf("it had too little in its hands for this drill to say anything")
	}
	if code != 0 || took > time.Second {
		t.Errorf("exit code %d after %s, want 0 within 1 s", code, took)
	}
	for id, n := range w.receiver.IDs() {
		if n != 1 {
			t.Errorf("%s was pushed %d times", id, n)
		}
	}
	for _, r := range w.receiver.Requests() {
		if r.Attempt != 1 {
			t.Errorf("%s came as attempt %d", r.ID, r.Attempt)
		}
	}
	w.bounded(2, 1)
}
