package integration

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"syscall"
	"testing"
	"time"

	"sluice/integration/testenv"
)

var seed = flag.Uint64("seed", 0, "of the faults; 0: another each time")

// Faults of all kinds in a random order, under load and with a receiver that answers what it likes: nothing is lost, the
// bound holds, and all is quiet at the end. The same seed gives the same faults, though not the same moments.
func TestRandomFaultsLoseNothing(t *testing.T) {
	faults := 4
	if testenv.Soak() {
		faults = 100
	}
	s := *seed
	if s == 0 {
		s = uint64(time.Now().UnixNano())
	}
	t.Logf("-seed %d", s)
	rnd := rand.New(rand.NewPCG(s, 0))
	const rate, burst, keys = 40, 10, 12

	w := newWorld(t)
	w.receiver.Handle(moody(s))
	env := []string{fmt.Sprintf("LIMIT=%d/s burst %d", rate, burst), "RETRY_BASE=200ms", "RETRY_CAP=1s", "WEBHOOK_TIMEOUT=2s"}
	workers := w.workers(3, env...)
	enough := make(chan struct{})
	var loading sync.WaitGroup
	loading.Go(func() { w.loadUntil(enough, keys, 20) })

	for range faults {
		time.Sleep(time.Duration(200+rnd.IntN(600)) * time.Millisecond)
		i := rnd.IntN(len(workers))
		fault := rnd.IntN(7)
		t.Logf("fault %d, worker %d", fault, i)
		switch fault {
		case 0:
			workers[i].Kill()
			workers[i] = w.worker(env...)
		case 1:
			workers[i].Stop()
			workers[i] = w.worker(env...)
		case 2: // longer than its lease, now and then
			p := workers[i]
			p.Signal(syscall.SIGSTOP)
			time.Sleep(time.Duration(300+rnd.IntN(1500)) * time.Millisecond)
			p.Signal(syscall.SIGCONT)
		case 3:
			w.redis.Kill()
			time.Sleep(time.Duration(rnd.IntN(500)) * time.Millisecond)
			w.redis.Start()
		case 4:
			w.redis.Pause()
			time.Sleep(time.Duration(rnd.IntN(800)) * time.Millisecond)
			w.redis.Resume()
		case 5:
			w.redis.Client().FlushAll(t.Context())
		case 6:
			w.receiver.Stop()
			time.Sleep(time.Duration(rnd.IntN(400)) * time.Millisecond)
			w.receiver.Start()
		}
		w.conserved(fmt.Sprintf("after fault %d", fault))
	}
	close(enough)
	loading.Wait()
	w.receiver.Handle(func(testenv.Request) testenv.Response { return testenv.Response{} })
	dead := w.settled(60 * time.Second)
	w.atRest(dead)
	// A worker that is stopped may have begun pushes that reach the receiver only when it goes on.
	w.boundedWithin(rate, burst, 300*time.Millisecond)
	again := 0
	for _, n := range w.receiver.IDs() {
		again += n - 1
	}
	t.Logf("%d events, %d dead-lettered, %d pushed again", len(w.ids()), dead, again)
	if len(w.ids()) < faults*50 {
		t.Errorf("only %d events were published", len(w.ids()))
	}
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
