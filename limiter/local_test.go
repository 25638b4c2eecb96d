package limiter

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func mustLocal(t testing.TB, limits string) *Local {
	t.Helper()
	l, err := NewLocal(mustLimits(t, limits))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func reserve(t testing.TB, l *Local, key string, cost int64, horizon time.Duration) Decision {
	t.Helper()
	d, err := l.Reserve(t.Context(), key, cost, horizon)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestLocalGoesHoldsThenParks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := mustLocal(t, "2/s burst 1, 1000/d sliding")
		start := time.Now()
		if d := reserve(t, l, "k", 1, 0); d.Verdict != Go || d.Reason != "" || !d.At.Equal(start) || d.Stale.Sub(d.At) != 20*time.Millisecond {
			t.Errorf("first: %+v, want to go now, and 20 ms for it", d)
		}
		if d := reserve(t, l, "k", 1, -1); d.Verdict != Park || d.Wait != 500*time.Millisecond {
			t.Errorf("asked only: %+v, want a wait of 500 ms", d)
		}
		if d := reserve(t, l, "k", 1, time.Second); d.Verdict != Hold || d.Reason != Throttled || d.At.Sub(start) != 500*time.Millisecond {
			t.Errorf("second: %+v, want a slot in 500 ms", d)
		}
		if d := reserve(t, l, "k", 1, 999*time.Millisecond); d.Verdict != Park || d.Reason != Throttled || d.Wait != time.Second {
			t.Errorf("third: %+v, want a wait of 1 s", d)
		}
		if d := reserve(t, l, "other", 1, 0); d.Verdict != Go {
			t.Errorf("another key: %+v, want it to go", d)
		}
		if d := reserve(t, l, "k", 2, time.Second); d.Verdict != Never {
			t.Errorf("cost of 2: %+v, want never", d)
		}
		time.Sleep(time.Second)
		if d := reserve(t, l, "k", 1, 0); d.Verdict != Go {
			t.Errorf("after the wait: %+v, want it to go", d)
		}
	})
}

func TestLocalPausesAndChangesLimitsForAllKeys(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := mustLocal(t, "3/s burst 5")
		set := func(limits string) {
			if err := l.SetLimits(mustLimits(t, limits)); err != nil {
				t.Fatal(err)
			}
		}
		for range 5 {
			reserve(t, l, "k", 1, 0)
		}
		set("0")
		if d := reserve(t, l, "k", 1, time.Second); d.Verdict != Park || d.Reason != Paused {
			t.Errorf("paused: %+v", d)
		}
		set("unlimited")
		if d := reserve(t, l, "k", 1<<40, 0); d.Verdict != Go || !d.Stale.After(d.At.Add(time.Hour)) {
			t.Errorf("unlimited: %+v, want it to go, and never to be late", d)
		}
		set("3/s burst 50")
		if d := reserve(t, l, "k", 1, 0); d.Verdict != Park {
			t.Errorf("burst raised: %+v, want no token of it at once", d)
		}
		if err := l.SetLimits(Limits{{Events: -1}}); err == nil {
			t.Error("limits out of range should be refused")
		}
		if _, err := NewLocal(Limits{{Events: -1}}); err == nil {
			t.Error("limits out of range should be refused")
		}
	})
}

func TestLocalOfSlidingLimitAllowsNoTokensTimeOfLateness(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for limits, want := range map[string]time.Duration{
			"1/s": time.Second, "60/m, 10/s burst 5": 100 * time.Millisecond, "1/d sliding": 20 * time.Millisecond,
		} {
			if d := reserve(t, mustLocal(t, limits), "k", 1, 0); d.Stale.Sub(d.At) != want {
				t.Errorf("%s: a token may be %v late, want %v", limits, d.Stale.Sub(d.At), want)
			}
		}
	})
}

// Keys that come once don't add up, while those that wait are remembered.
func TestLocalForgetsFullKeysOnly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, limits := range []string{"10/s burst 2", "10/s window", "10/s sliding", "10/s leaky, 100/2s window"} {
			l := mustLocal(t, limits)
			most := 0
			for i := range 20_000 { // 1000 new keys a second, each full again after 2 s at most
				reserve(t, l, fmt.Sprint(i), 1, 0)
				time.Sleep(time.Millisecond)
				most = max(most, l.Len())
			}
			if most > 6000 {
				t.Errorf("%s: %d keys in memory at once, want less than 6000", limits, most)
			}
		}

		l := mustLocal(t, "1/d")
		for i := range 2000 {
			reserve(t, l, fmt.Sprint(i), 1, 0)
		}
		for i := range 2000 {
			if d := reserve(t, l, fmt.Sprint(i), 1, 0); d.Verdict != Park {
				t.Fatalf("key %d of 2000 was forgotten: %+v", i, d)
			}
		}
	})
}

// A flood of keys that come once is forgotten though only one key comes afterwards, and so is the room that it took.
func TestLocalForgetsAPeakOfKeysThoughNoNewOnesCome(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, limits := range []string{"10/s burst 2", "0", "unlimited"} {
			l := mustLocal(t, "10/s burst 2")
			for i := range 50_000 {
				reserve(t, l, fmt.Sprint(i), 1, 0)
			}
			if err := l.SetLimits(mustLimits(t, limits)); err != nil {
				t.Fatal(err)
			}
			for range 100 {
				time.Sleep(10 * time.Millisecond)
				reserve(t, l, "regular", 1, 0)
			}
			if n := l.Len(); n > 1 || cap(l.ring) >= leastRing {
				t.Errorf("%s: %d keys in memory, room for %d, want 1 at most", limits, n, cap(l.ring))
			}
		}
	})
}

// Else who waits for a pause to end finds a fresh burst.
func TestLocalForgetsNothingSpentWhileItIsPausedOrUnlimited(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, between := range []string{"0", "unlimited"} {
			l := mustLocal(t, "10/h")
			set := func(limits string) {
				if err := l.SetLimits(mustLimits(t, limits)); err != nil {
					t.Fatal(err)
				}
			}
			reserve(t, l, "k", 10, 0)
			set(between)
			for range 10 {
				time.Sleep(time.Second)
				reserve(t, l, "k", 1, 0)
			}
			set("10/h")
			if d := reserve(t, l, "k", 1, 0); d.Verdict != Park {
				t.Errorf("after %s: %+v, want the key to be as it was", between, d)
			}
		}
	})
}

func BenchmarkLocalOfManyKeys(b *testing.B) {
	l := mustLocal(b, "1/d")
	keys := make([]string, 100_000)
	for i := range keys {
		keys[i] = fmt.Sprint(i)
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if _, err := l.Reserve(b.Context(), keys[i%len(keys)], 1, 0); err != nil {
			b.Fatal(err)
		}
	}
}

func TestLocalEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	l := mustLocal(t, "1/h")
	if _, err := l.Reserve(ctx, "k", 1, 0); err == nil {
		t.Error("want the context's error")
	}
	if d := reserve(t, l, "k", 1, 0); d.Verdict != Go {
		t.Errorf("%+v, want the token that the call before didn't take", d)
	}
}

func TestLocalIsSafeForManyGoroutines(t *testing.T) {
	t.Parallel()
	l := mustLocal(t, "100/h, 250/h sliding")
	var wg sync.WaitGroup
	var gone atomic.Int64
	for range 8 {
		wg.Go(func() {
			for i := range 400 {
				if d, err := l.Reserve(t.Context(), fmt.Sprint(i%2), 1, 0); err == nil && d.Verdict == Go {
					gone.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if n := gone.Load(); n < 200 || n > 201 { // 100 of each key; a token takes 36 s
		t.Errorf("%d went, want 200", n)
	}
}

// A limit that is raised for a while, or taken away, must not come back with a fresh burst.
func TestLocalRemembersWhatWasSpentUnderLimitsThatRestMeanwhile(t *testing.T) {
	t.Parallel()
	for _, limit := range []string{"10/d", "10/d window", "10/d sliding"} {
		for _, meanwhile := range []string{"1000/s", "unlimited", "0"} {
			synctest.Test(t, func(t *testing.T) {
				l := mustLocal(t, limit)
				for range 10 {
					reserve(t, l, "k", 1, 0)
				}
				for i, limits := range []string{meanwhile, limit} {
					if err := l.SetLimits(mustLimits(t, limits)); err != nil {
						t.Fatal(err)
					}
					reserve(t, l, "k", 1, -1)
					time.Sleep(time.Minute)
					for other := range 10 { // each looks at two keys, whether they can be forgotten
						reserve(t, l, fmt.Sprint(i, other), 1, -1)
					}
				}
				if d := reserve(t, l, "k", 1, 0); d.Verdict != Park {
					t.Errorf("%s, after %s for a minute: %+v, want all spent", limit, meanwhile, d)
				}
				time.Sleep(48 * time.Hour)
				for range 30 {
					reserve(t, l, "k", 1, -1)
					reserve(t, l, fmt.Sprint(time.Now()), 1, -1)
				}
				if n := l.Len(); n > 5 {
					t.Errorf("%s: %d keys are remembered that have nothing to remember", limit, n)
				}
			})
		}
	}
}
