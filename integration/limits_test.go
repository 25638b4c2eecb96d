package integration

import (
	"slices"
	"testing"
	"time"

	"sluice/integration/testenv"
)

// Two limits of different kinds must agree: neither is exceeded, and what they leave is used.
func TestSeveralLimitsHoldAtTheReceiver(t *testing.T) {
	beside(t)
	w := newWorld(t)
	w.workers(2, "LIMIT=20/s burst 5, 24/3s sliding, 100/s leaky")
	w.publish("k", 60, 0)
	w.publish("l", 3, 0)
	w.receiver.WaitForDelivered(63, 20*time.Second)
	w.atRest(0)
	w.bounded(20, 5)
	times := byKey(w.receiver.Requests())["k"]
	slices.SortFunc(times, time.Time.Compare)
	for i := range times {
		n := 0
		for j := i; j < len(times) && times[j].Sub(times[i]) < 3*time.Second-100*time.Millisecond; j++ {
			n++
		}
		if n > 24 {
			t.Fatalf("%d pushes within 3 s, want at most 24", n)
		}
	}
	// 24 in the first period, 24 in the second, the rest in the third: a period is at most a twentieth longer.
	took := times[len(times)-1].Sub(times[0])
	t.Logf("60 events at 24 per 3 s took %s", took.Round(time.Millisecond))
	if most := 8 * time.Second; took > most || took < 6*time.Second {
		t.Errorf("60 events took %s, want 6 s to %s", took, most)
	}
	if p := testenv.Percentile(w.latencies(func(key string) bool { return key == "l" }), 100); p > 2*time.Second {
		t.Errorf("another key waited %s", p)
	}
}
