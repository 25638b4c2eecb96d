package integration

import (
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"sluice/integration/testenv"
)

// Of three workers one takes it to be an hour later, or earlier, than it is. Nobody is pushed to faster, nothing is given up or
// taken for expired before its time, what was waiting leaves in order, and the worker says what is wrong with it.
func TestWorkerWithAWrongClockCostsNothing(t *testing.T) {
	if !testenv.Soak() {
		t.Skip("long: SLUICE_SOAK=1 runs it")
	}
	const rate, burst, keys, n, waiting = 40, 10, 12, 400, 600
	for _, by := range []time.Duration{time.Hour, -time.Hour} {
		t.Run(by.String(), func(t *testing.T) {
			w := newWorld(t)
			w.header = nats.Header{"Sluice-Expires": {"30m"}}
			w.receiver.Handle(troubled)
			env := []string{"LIMIT=40/s burst 10", "RETRY_FOR=20m", "RETRY_BASE=200ms", "RETRY_CAP=1s", "MAX_WAIT=5m"}
			wrong := testenv.WrongClockWorker(t, by, w.env(env...))
			right := w.workers(2, env...)
			wrong.WaitReady(30 * time.Second)
			w.publish("ordered", waiting, 0)
			w.parked(20 * time.Second)
			since := time.Now().Add(leasedAhead)
			var loading sync.WaitGroup
			loading.Go(func() { w.load(keys, n, 8*time.Second) })
			time.Sleep(4 * time.Second)
			right[0].Kill() // what it had begun others go on with
			right[0] = w.worker(env...)
			loading.Wait()
			w.conserved("after the load")
			w.receiver.WaitForDelivered(keys*n+waiting, 90*time.Second)
			w.atRest(0)
			w.boundedWithin(rate, burst, 300*time.Millisecond)
			if inversions, events := w.inversions("ordered", since); inversions > 0 || events < waiting/2 {
				t.Errorf("%d inversions among %d events that waited", inversions, events)
			}
			retried := 0
			for _, r := range w.receiver.Requests() {
				if r.Attempt > 1 {
					retried++
				}
			}
			metrics := wrong.Metrics()
			delivered := metrics[`sluice_events_settled_total{outcome="delivered"}`]
			t.Logf("%d events, %d attempts beyond the first, %v delivered by the worker with the wrong clock, which is %.1f s off Redis'", len(w.ids()),
				retried, delivered, -metrics["sluice_redis_clock_ahead_seconds"])
			if delivered < keys*n/10 || retried < keys*n/20 {
				t.Error("too little was delivered by it, or retried, to tell")
			}
			const said = "this machine's clock and Redis' differ"
			if !strings.Contains(wrong.Output(), said) || strings.Contains(right[1].Output(), said) {
				t.Error("want the worker with the wrong clock, and no other, to say so")
			}
		})
	}
}

// troubled is a receiver that fails now and then and says by a date when it will be well again.
func troubled(r testenv.Request) testenv.Response {
	switch {
	case r.Attempt > 2:
	case strings.HasSuffix(r.ID, "1"):
		return testenv.Response{Status: http.StatusInternalServerError}
	case strings.HasSuffix(r.ID, "27") && r.Key != "ordered":
		at := time.Now().Add(2 * time.Second).UTC().Format(http.TimeFormat)
		return testenv.Response{Status: http.StatusServiceUnavailable, Header: http.Header{"Retry-After": {at}}}
	}
	return testenv.Response{}
}
