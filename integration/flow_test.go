package integration

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"sluice/integration/testenv"
)

// Three workers, fifty keys, one of which floods: it gets its rate and not more, the others notice nothing.
func TestFloodGetsItsRateAndOthersNoticeNothing(t *testing.T) {
	flood := 3600
	if testenv.Soak() {
		flood = 10000
	}
	const rate, burst = 500, 100
	w := newWorld(t)
	w.measures = true
	workers := w.workers(3, "LIMIT=500/s burst 100")

	var publishing sync.WaitGroup
	publishing.Go(func() { w.flood("flood", flood, 10_000) })
	for i := range 49 {
		publishing.Go(func() {
			time.Sleep(time.Duration(i) * 20 * time.Millisecond)
			w.publish(fmt.Sprintf("quiet%02d", i), 20, 150*time.Millisecond)
		})
	}
	publishing.Wait()
	allParked := time.Now()
	w.conserved("while the flood waits")
	w.receiver.WaitForDelivered(flood+49*20, time.Duration(flood/rate+20)*time.Second)

	w.bounded(rate, burst)
	requests := w.receiver.Requests()
	times := byKey(requests)["flood"]
	used := testenv.Utilisation(times, rate, burst)
	quiet := w.latencies(func(key string) bool { return key != "flood" })
	p99 := testenv.Percentile(quiet, 99)
	deliveries := sum(workers, "sluice_events_received_total") / float64(len(w.ids()))
	inversions, ordered := w.inversions("flood", allParked)
	excess := testenv.BoundExcess(times, rate, burst, 20*time.Millisecond)
	t.Logf("used %.2f %% of the rate, excess %.2f, others' p50 %s p99 %s, %.3f deliveries per event, %d inversions in %d, %d late",
		100*used, excess, testenv.Percentile(quiet, 50), p99, deliveries, inversions, ordered, int(sum(workers, "sluice_late_tokens_total")))
	if least := leastUse(); used < least {
		t.Errorf("the flooding key got %.2f %% of its rate, want %.0f %%", 100*used, 100*least)
	}
	most := 500 * time.Millisecond
	if testenv.Soak() { // the machine is the drill's alone
		most = 100 * time.Millisecond
	}
	if p99 > most {
		t.Errorf("p99 of the others is %s, want at most %s", p99, most)
	}
	if deliveries > 1.05 {
		t.Errorf("%.3f source deliveries per event, want at most 1.05", deliveries)
	}
	if inversions > 0 || ordered < flood/3 {
		t.Errorf("%d inversions within the lane among %d events, want none among at least %d", inversions, ordered, flood/3)
	}
	w.atRest(0)
}

// leastUse is how much of its rate a key with a backlog must get: 99 % where the machine is the drill's alone, generously
// less where it may be busy with other things.
func leastUse() float64 {
	if testenv.Soak() {
		return 0.99
	}
	return 0.9
}
