package limiter

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// goes is how many events of a key go now, of up to 100.
func goes(t *testing.T, l *Local, key string) (n int) {
	t.Helper()
	for range 100 {
		if d := reserve(t, l, key, 1, 0); d.Verdict != Go {
			return n
		}
		n++
	}
	return n
}

func TestKeysFollowTheirOwnLimitsThenTheirTierThenAll(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := mustLocal(t, "2/s")
		check := func(err error) {
			if err != nil {
				t.Fatal(err)
			}
		}
		l.Assign("paying", "gold")
		if n := goes(t, l, "paying"); n != 2 {
			t.Errorf("a tier without limits: %d go, want the 2 of all", n)
		}
		time.Sleep(time.Minute)
		check(l.SetTier("gold", mustLimits(t, "10/s")))
		check(l.SetKey("special", mustLimits(t, "5/s")))
		l.Assign("special", "gold")
		for key, want := range map[string]int{"paying": 10, "special": 5, "anyone": 2} {
			if n := goes(t, l, key); n != want {
				t.Errorf("%s: %d go, want %d", key, n, want)
			}
		}
		time.Sleep(time.Minute)
		check(l.SetTier("gold", mustLimits(t, "20/s")))
		l.ResetKey("special")
		check(l.SetLimits(mustLimits(t, "0")))
		for key, want := range map[string]int{"paying": 20, "special": 20, "anyone": 0} {
			if n := goes(t, l, key); n != want {
				t.Errorf("%s: %d go after the change, want %d", key, n, want)
			}
		}
		if got := l.Limits("special").String(); got != "20/s" {
			t.Errorf("the limits of a key that was reset: %s", got)
		}
		l.Assign("special", "")
		if d := reserve(t, l, "special", 1, 0); d.Reason != Paused || !l.Limits("special").Paused() {
			t.Errorf("out of its tier: %+v, want it paused as all are", d)
		}
		if l.SetTier("gold", Limits{{Events: -1}}) == nil || l.SetKey("k", Limits{{Events: -1}}) == nil {
			t.Error("limits out of range should be refused")
		}
	})
}

func TestChangedTierTakesNoTokensBackNorGivesAny(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := mustLocal(t, "2/s")
		if err := l.SetTier("gold", mustLimits(t, "1/s burst 10")); err != nil {
			t.Fatal(err)
		}
		goes(t, l, "k")
		l.Assign("k", "gold")
		if n := goes(t, l, "k"); n != 0 {
			t.Errorf("%d go right after the key changed its tier, want 0", n)
		}
		time.Sleep(3 * time.Second)
		if n := goes(t, l, "k"); n != 3 {
			t.Errorf("%d go after 3 s in the tier, want 3", n)
		}
	})
}

// A9, with clocks that stand between two microseconds.
func TestWhoWaitsAsLocalSaysIsServed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, limits := range []string{
			"2/3s burst 1", "7/1500ms leaky", "3/s", "999983/s burst 1", "3/s window", "7/s sliding", "3/s, 7/10s sliding, 11/m window",
		} {
			l := mustLocal(t, limits)
			for i := range 100 {
				time.Sleep(time.Duration(i * 37))
				for {
					d := reserve(t, l, "k", 1, 0)
					if d.Verdict == Go {
						continue
					}
					if d.Wait <= 0 {
						t.Fatalf("%s: refused without a time to wait: %+v", limits, d)
					}
					time.Sleep(d.Wait)
					break
				}
				if d := reserve(t, l, "k", 1, 0); d.Verdict != Go {
					t.Fatalf("%s: after waiting as told: %+v", limits, d)
				}
			}
		}
	})
}

func TestRemainingIsThatOfTheScarcestLimit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := mustLocal(t, "5/s, 8/d sliding")
		var got []string
		ask := func(cost int64, horizon time.Duration) {
			d := reserve(t, l, "k", cost, horizon)
			got = append(got, fmt.Sprint(d.Remaining, " ", d.Scarcest))
		}
		ask(1, -1)
		ask(3, 0)
		ask(4, 0) // refused
		ask(2, 0)
		time.Sleep(time.Second)
		ask(1, 0)
		ask(2, 0)
		ask(1, 0) // refused
		if want := "[5 0 2 0 2 0 0 0 2 1 0 1 0 1]"; fmt.Sprint(got) != want {
			t.Errorf("remaining and scarcest: %v, want %s", got, want)
		}
		if d := reserve(t, mustLocal(t, "unlimited"), "k", 1, 0); d.Remaining < 1<<62 {
			t.Errorf("unlimited: %d remaining", d.Remaining)
		}
	})
}
