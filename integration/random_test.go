package integration

import (
	"flag"
	"math/rand/v2"
	"net/http"
	"testing"
	"time"

	"sluice/integration/testenv"
)

var seed = flag.Uint64("seed", 0, "of the faults; 0: another each time")

// Faults of all kinds in a random order, under load and with a receiver that answers what it likes: nothing is lost, the
// bound holds, and all is quiet at the end. The same seed gives the same faults, though not the same moments.
func TestRandomFaultsLoseNothing(t *testing.T) {
	beside(t)
	least, lasts := 4, time.Duration(0)
	if testenv.Soak() {
		least, lasts = 100, 10*time.Minute
	}
	d := newFaultDrill(t)
	d.answers = moody(d.seed)
	d.receiver.Handle(d.answers)
	end := d.load(12, 20)
	number := 0
	for begin := time.Now(); number < least || time.Since(begin) < lasts; number++ {
		time.Sleep(time.Duration(200+d.rnd.IntN(600)) * time.Millisecond)
		d.strike(faults[d.rnd.IntN(len(faults))])
	}
	end()
	d.bounded()
	if len(d.ids()) < number*50 {
		t.Errorf("only %d events were published", len(d.ids()))
	}
	t.Logf("%d faults", number)
}

// moody answers by the event's id and attempt, so that a seed gives the same answers.
func moody(seed uint64) func(testenv.Request) testenv.Response {
	return func(r testenv.Request) testenv.Response {
		h := seed
		for _, c := range r.ID {
			h = h*1099511628211 ^ uint64(c)
		}
		rnd := rand.New(rand.NewPCG(h, uint64(r.Attempt)))
		switch n := rnd.IntN(100); {
		case n < 2:
			return testenv.Response{Status: http.StatusServiceUnavailable}
		case n < 5:
			return testenv.Response{Status: http.StatusInternalServerError}
		case n < 6:
			return testenv.Response{Status: http.StatusTooManyRequests, Header: http.Header{"Retry-After": {"1"}}}
		case n < 8:
			return testenv.Response{Status: http.StatusBadRequest}
		case n < 10:
			return testenv.Response{Abort: true}
		default:
			return testenv.Response{Delay: time.Duration(rnd.IntN(30)) * time.Millisecond}
		}
	}
}

// settled waits until every event was delivered or dead-lettered, and says how many were dead-lettered.
func (w *world) settled(timeout time.Duration) (dead int) {
	w.t.Helper()
	deadline := time.Now().Add(timeout)
	for {
		c := testenv.Snapshot(w.t, w.nats, w.receiver, testenv.Streams{})
		if len(c.Source) == 0 && len(c.Lanes) == 0 {
			return len(c.DeadLetters)
		}
		if time.Now().After(deadline) {
			w.t.Errorf("after %s there is still work: %s", timeout, c)
			return len(c.DeadLetters)
		}
		time.Sleep(200 * time.Millisecond)
	}
}
