package integration

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"sluice/integration/testenv"
)

// One key floods far faster than its limit: the events that can't go are parked as fast as they come, and the others
// notice nothing.
func TestFloodIsParkedAsFastAsItComes(t *testing.T) {
	const perSecond = 10_000 // as a loop of small bursts
	seconds := 3
	if testenv.Soak() {
		seconds = 30
	}
	w := newWorld(t)
	w.measures = true
	workers := w.workers(2, "LIMIT=10/s burst 10", "MAX_WAIT=0")
	others := func(name string, d time.Duration) []time.Duration {
		var publishing sync.WaitGroup
		n := int(d.Seconds() * 5)
		for i := range 40 {
			publishing.Go(func() { w.publish(fmt.Sprintf("%s%02d", name, i), n, 200*time.Millisecond) })
		}
		publishing.Wait()
		return w.latencies(func(key string) bool { return key[:len(name)] == name })
	}
	quiet := others("calm", 2*time.Second)
	var flooding sync.WaitGroup
	flooding.Go(func() { w.flood("flood", seconds*perSecond, perSecond) })
	beside := others("loud", time.Duration(seconds)*time.Second)
	flooding.Wait()
	w.conserved("after the flood")
	flood := len(w.ids()) - len(quiet) - len(beside)
	deliveries := sum(workers, "sluice_events_received_total") / float64(len(w.ids()))
	t.Logf("%d events of one key in %d s; others' p50 %s p99 %s, without the flood %s and %s; %.3f deliveries per event", flood, seconds,
		testenv.Percentile(beside, 50), testenv.Percentile(beside, 99), testenv.Percentile(quiet, 50), testenv.Percentile(quiet, 99), deliveries)
	if p99 := testenv.Percentile(beside, 99); p99 > 500*time.Millisecond {
		t.Errorf("others' p99 is %s beside the flood", p99)
	}
	if deliveries > 1.05 {
		t.Errorf("%.3f source deliveries per event, want at most 1.05", deliveries)
	}
	w.bounded(10, 10)
}
