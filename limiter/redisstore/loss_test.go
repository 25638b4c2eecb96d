package redisstore

import (
	"testing"
	"time"

	"sluice/integration/testenv"
	"sluice/limiter"
)

// Whatever went just before Redis lost its data, no kind lets more pass than it may: what isn't known counts as spent, at the
// latest moment at which it can have been, which is that of the last promise.
func TestLossOfRedisKeepsTheLimitsOfEveryKind(t *testing.T) {
	t.Parallel()
	for limit, then := range map[string]map[int64]int64{ // us after the loss: so many go
		"20/20s":         {1_999_999: 0, 2_000_000: 1, 3_000_000: 1},
		"1/s leaky":      {1_999_999: 0, 2_000_000: 1},
		"20/20s window":  {20_999_999: 0, 21_000_000: 20},
		"20/20s sliding": {2_000_000: 0, 20_999_999: 0, 22_000_000: 20},
		"20/20s, 30/d":   {1_999_999: 0, 2_000_000: 0, 2_881_000_000: 1},
	} {
		r := newRig(t, limit)
		r.at(0)
		if a := r.ask("k", 50, 0); a.granted == 0 {
			t.Fatalf("%s: nothing goes at first", limit)
		}
		r.rdb.FlushAll(t.Context())
		if err := r.Open(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, at := range []int64{1_999_999, 2_000_000, 3_000_000, 20_999_999, 21_000_000, 22_000_000, 2_881_000_000} {
			want, asked := then[at]
			if !asked {
				continue
			}
			r.at(at)
			if a := r.ask("k", 50, 0); a.granted != want {
				t.Errorf("%s: %d go %d us after the loss, want %d", limit, a.granted, at, want)
			}
		}
	}
}

// A Limiter promises slots, too.
func TestLimiterCountsWhatItHadPromisedWhenRedisLostItsData(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	l := shared(t, server.Client(), "50/s burst 1")
	var slots []time.Time
	ask := func() {
		t.Helper()
		for {
			d, err := l.Reserve(t.Context(), "k", 1, time.Second)
			if err != nil {
				t.Fatal(err)
			}
			if d.Verdict == limiter.Park {
				return
			}
			slots = append(slots, d.At)
		}
	}
	ask()
	server.Client().FlushAll(t.Context())
	for end := time.Now().Add(1500 * time.Millisecond); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		ask()
	}
	if x := testenv.BoundExcess(slots, 50, 1, 20*time.Millisecond); x > 0 {
		t.Errorf("%g more were promised than the limit allows", x)
	}
	if len(slots) < 90 {
		t.Errorf("%d slots in two and a half seconds, want about 100: there is no end to the pause after a loss", len(slots))
	}
}
