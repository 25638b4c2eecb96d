package integration

import (
	"sync/atomic"
	"testing"
	"time"

	"sluice/integration/testenv"
)

// A slow sink costs a key with a backlog nothing of its rate.
func TestSlowSinkKeepsTheRate(t *testing.T) {
	steady := func(d time.Duration) func() time.Duration { return func() time.Duration { return d } }
	sinks := []struct {
		name  string
		delay func() time.Duration
		long  bool
	}{
		{"300 ms", steady(300 * time.Millisecond), false},
		{"at once", steady(0), true},
		{"50 ms", steady(50 * time.Millisecond), true},
		{"one push in 50 takes 4 s", oneIn(50, 4*time.Second), true},
	}
	n := 60
	if testenv.Soak() {
		n = 250
	}
	for _, sink := range sinks {
		t.Run(sink.name, func(t *testing.T) {
			if sink.long && !testenv.Soak() {
				t.Skip("long: SLUICE_SOAK=1 runs it")
			}
			w := newWorld(t)
			w.measures = true
			w.receiver.Handle(func(testenv.Request) testenv.Response { return testenv.Response{Delay: sink.delay()} })
			w.workers(2, "LIMIT=10/s burst 1")
			w.publish("k", n, 0)
			w.publish("l", n, 0)
			w.receiver.WaitForDelivered(2*n, 60*time.Second)
			w.atRest(0)
			w.bounded(10, 1)
			for _, key := range []string{"k", "l"} {
				used := testenv.Utilisation(byKey(w.receiver.Requests())[key], 10, 1)
				t.Logf("%s used %.2f %% of its rate", key, 100*used)
				if least := leastUse(); used < least {
					t.Errorf("%s got %.2f %% of its rate, want %.0f %%", key, 100*used, 100*least)
				}
			}
		})
	}
}

// oneIn returns d once in n calls, else nothing.
func oneIn(n int64, d time.Duration) func() time.Duration {
	var calls atomic.Int64
	return func() time.Duration {
		if calls.Add(1)%n == 0 {
			return d
		}
		return 0
	}
}
