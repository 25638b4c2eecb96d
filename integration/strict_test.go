package integration

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sluice/integration/testenv"
)

// flights counts the requests of each key that a receiver has in hand.
type flights struct {
	mu    sync.Mutex
	now   map[string]int
	most  map[string]int
	fails atomic.Int64
}

// handle takes a while over each request and fails some; a request whose worker is killed ends at once.
func (f *flights) handle(r testenv.Request) testenv.Response {
	f.mu.Lock()
	f.now[r.Key]++
	f.most[r.Key] = max(f.most[r.Key], f.now[r.Key])
	f.mu.Unlock()
	time.Sleep(4 * time.Millisecond)
	f.mu.Lock()
	f.now[r.Key]--
	f.mu.Unlock()
	if n := f.fails.Add(1); n%61 == 0 {
		return testenv.Response{Status: http.StatusInternalServerError}
	}
	return testenv.Response{}
}

// outOfOrder lists the deliveries of a key that came after one of a later event, repeats left aside.
func (w *world) outOfOrder(key string) (list []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	seen := map[string]bool{}
	var last uint64
	for _, r := range w.receiver.Requests() {
		place := w.order[r.ID]
		if r.Key == key && !seen[r.ID] && place < last {
			list = append(list, fmt.Sprintf("%d after %d", place, last))
		}
		if r.Key == key && r.Status < 300 && r.Status > 0 {
			seen[r.ID] = true
			last = max(last, place)
		}
	}
	return list
}

// Three workers, one of which is killed under load, and a receiver that fails now and then: no key has more pushes in flight
// than it may, and with one at a time its events come in the order of the source.
func TestPushesInFlightAreCountedAndInOrder(t *testing.T) {
	beside(t)
	t.Run("one", func(t *testing.T) { drillTogether(t, 1, true) })
	t.Run("three", func(t *testing.T) { drillTogether(t, 3, testenv.Soak()) })
}

func drillTogether(t *testing.T, together int, kill bool) {
	keys, n := 8, 60
	if testenv.Soak() {
		keys, n = 20, 600
	}
	w := newWorld(t)
	f := &flights{now: map[string]int{}, most: map[string]int{}}
	w.receiver.Handle(f.handle)
	env := []string{
		fmt.Sprintf("KEY_CONCURRENCY=%d", together), "LIMIT=1000/s burst 1000", "RETRY_BASE=20ms", "RETRY_CAP=50ms",
	}
	workers := w.workers(3, env...)
	begin := time.Now()
	w.load(keys, n/2, 300*time.Millisecond)
	var loading sync.WaitGroup
	loading.Go(func() { w.load(keys, n/2, 0) })
	if kill { // while it has some of these on their way into the lanes
		w.receiver.WaitFor(keys*n/2+keys, 10*time.Second)
		workers[0].Kill()
	}
	loading.Wait()
	w.receiver.WaitForDelivered(keys*n, 60*time.Second)
	took := time.Since(begin)
	w.atRest(0)

	inversions := 0
	for i := range keys {
		key := fmt.Sprintf("k%02d", i)
		// A request of the worker that was killed may still be with the receiver when its repeat comes.
		if most := f.most[key]; most > together {
			t.Errorf("%d pushes of %s in flight, want at most %d", most, key, together)
		}
		if list := w.outOfOrder(key); together == 1 && len(list) > 0 {
			inversions += len(list)
			t.Errorf("%s: %d out of order, such as %s", key, len(list), list[0])
		}
	}
	latencies := w.latencies(func(string) bool { return true })
	t.Logf("%d events in %s, %d repeated, p50 %s, most in flight %d", keys*n, took.Round(time.Millisecond),
		w.receiver.Count()-keys*n, testenv.Percentile(latencies, 50).Round(time.Millisecond), slices.Max(slices.Collect(maps.Values(f.most))))
	// All that was unacked comes again after the ack wait, all that was leased after 5 s; else a key's pushes follow one another.
	if most := ackWait + 7*time.Second + time.Duration(n)*15*time.Millisecond; took > most {
		t.Errorf("took %s, want at most %s", took, most)
	}
}
