package integration

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"sluice/integration/testenv"
)

// said stores what the bucket of limits says of a key, and returns when.
func (w *world) said(key, limits string) time.Time {
	w.t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for {
		kv, err := w.js.KeyValue(w.t.Context(), "sluice_limits")
		if err == nil {
			_, err = kv.PutString(w.t.Context(), "key."+key, limits)
		}
		if err == nil {
			return time.Now()
		}
		if time.Now().After(deadline) {
			w.t.Fatalf("setting the limits of %s: %v", key, err)
		}
		time.Sleep(50 * time.Millisecond) // NATS is being restarted
	}
}

// between is how many of times lie in [from, to).
func between(times []time.Time, from, to time.Time) (all []time.Time) {
	for _, at := range times {
		if !at.Before(from) && at.Before(to) {
			all = append(all, at)
		}
	}
	return all
}

// A key's limit goes from 300/s to 0 and to 1500/s under three workers while its events wait: each is seen at the receiver within
// a second, no moment has more than the limit that rules then, and nobody else notices. With SLUICE_SOAK NATS is restarted while the
// key is paused.
func TestChangedLimitRulesWithinASecondUnderLoad(t *testing.T) {
	const (
		slow, quick           = 300, 1500
		slowBurst, quickBurst = 30, 150
		within                = time.Second
		allowance             = 100 * time.Millisecond
	)
	soak := os.Getenv("SLUICE_SOAK") != ""
	waiting := 2700
	if soak {
		waiting = 10_000
	}
	w := newWorld(t)
	w.measures = true
	w.workers(3, "LIMIT=20/s burst 20")
	w.said("live", "300/s burst 30")
	time.Sleep(200 * time.Millisecond)
	w.publish("live", waiting, 0)
	stop, quiet := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(quiet)
		for {
			select {
			case <-stop:
				return
			case <-time.After(100 * time.Millisecond):
				w.publish("quiet", 1, 0)
			}
		}
	}()
	time.Sleep(500 * time.Millisecond)
	paused := w.said("live", "0")
	time.Sleep(within + 200*time.Millisecond)
	if soak {
		w.nats.Restart()
		for deadline := time.Now().Add(20 * time.Second); ; {
			_, out, _ := command(t, []string{"NATS_URL=" + w.nats.URL()}, "", "workers", "--json")
			if strings.Count(out, "\n") == 3 {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("the workers aren't back: %s", out)
			}
		}
	}
	raised := w.said("live", "1500/s burst 150")
	time.Sleep(within + 500*time.Millisecond)
	close(stop)
	<-quiet

	times := byKey(w.receiver.Requests())["live"]
	slices.SortFunc(times, time.Time.Compare)
	if x := testenv.BoundExcess(between(times, time.Time{}, raised), slow, slowBurst, allowance); x > 0 {
		t.Errorf("before the raise %.1f pushes more than %d/s allows", x, slow)
	}
	if late := between(times, paused.Add(within), raised); len(late) > 0 {
		t.Errorf("%d pushes after the pause had a second to be known, the last %s after it", len(late), late[len(late)-1].Sub(paused))
	}
	after := between(times, raised, time.Now())
	if x := testenv.BoundExcess(after, quick, quickBurst, allowance); x > 0 {
		t.Errorf("after the raise %.1f pushes more than %d/s allows", x, quick)
	}
	if len(after) == 0 || after[0].Sub(raised) > within {
		t.Fatalf("nothing is pushed within a second after the raise")
	}
	half := between(times, raised.Add(within), raised.Add(within+500*time.Millisecond))
	t.Logf("the first push %s after the raise; then %d/s", after[0].Sub(raised).Round(time.Millisecond), 2*len(half))
	if 2*len(half) < quick*8/10 && len(times) < waiting {
		t.Errorf("a second after the raise %d pushes/s, want about %d", 2*len(half), quick)
	}
	if !soak {
		if p99 := testenv.Percentile(w.latencies(func(key string) bool { return key == "quiet" }), 99); p99 > 500*time.Millisecond {
			t.Errorf("p99 of the other key is %s", p99)
		}
	}
	w.receiver.WaitForDelivered(len(w.ids()), 20*time.Second)
	w.conserved("at the end")
}
