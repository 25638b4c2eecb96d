package redisstore

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// piece is limits and from when on they rule.
type piece struct {
	at     int64
	limits string
	rate   float64
	burst  float64
}

// Limits change under a backlog, and some workers learn of it half a second later than others: in any time no more goes
// than the burst of each limit that rules in it, and what the fastest of those brings that were asked by within a second
// before. (A change alone gives nothing, but the time since the last event is paid by the new limit.)
func TestChangesOfALimitUnderLoadKeepTheBound(t *testing.T) {
	t.Parallel()
	pieces := []piece{
		{0, "300/s burst 30", 300, 30}, {1_000_000, "0", 0, 0}, {2_500_000, "1500/s burst 30", 1500, 30},
		{4_000_000, "20/s burst 5", 20, 5}, {6_000_000, "7/s burst 20", 7, 20},
		{6_500_000, "420/m burst 60", 7, 60}, {7_000_000, "7/s burst 60", 7, 60}, {7_500_000, "420/m burst 60, 25200/h burst 90", 7, 60}, {8_000_000, "1000/s burst 1", 1000, 1},
		{9_000_000, "", 0, 0},
	}
	for name, test := range map[string]struct {
		spread   int64 // by so many us some learn of it later
		horizons []time.Duration
	}{
		"now":              {0, []time.Duration{0}},
		"slots":            {0, []time.Duration{time.Second}},
		"some later":       {500_000, []time.Duration{0}},
		"some later slots": {500_000, []time.Duration{0, 30 * time.Millisecond, time.Second}},
	} {
		t.Run(name, func(t *testing.T) {
			r, limits := newLimitedRig(t, "1/s")
			rnd := rand.New(rand.NewPCG(1, 2))
			var slots []int64
			for now := int64(0); now < pieces[len(pieces)-1].at; now += 2_000 + rnd.Int64N(10_000) {
				seen := now - rnd.Int64N(2)*rnd.Int64N(test.spread+1) // by a worker that learns of changes late
				p, _ := slices.BinarySearchFunc(pieces, max(0, seen)+1, func(p piece, at int64) int { return cmp.Compare(p.at, at) })
				limits.set("k", pieces[p-1].limits)
				r.at(now)
				horizon := test.horizons[rnd.IntN(len(test.horizons))]
				a := r.groups([]group{{reservation: reservation{"k", r.rule("k", ""), 1, horizon}, members: make([]int, 200)}})[0]
				for range a.granted {
					slots = append(slots, now)
				}
				for _, s := range a.slots {
					slots = append(slots, now+integer(s))
				}
			}
			slices.Sort(slots)
			allowed := fastest(pieces, test.spread+slices.Max(test.horizons).Microseconds())
			least := 0.0 // of allowed minus number, so far
			for i, at := range slots {
				if excess := float64(i+1) - allowed(at) - 30 - least; excess > 1 {
					t.Fatalf("%g too many until %d us", excess, at)
				}
				least = min(least, float64(i)-allowed(at))
			}
			if n := len(slots); n < 2700 {
				t.Errorf("%d went, want at least what each limit lets go after another", n)
			}
		})
	}
}

// fastest answers what the fastest of the limits that ruled within the time before each moment has brought up to a time,
// with the bursts of those that have begun after the first.
func fastest(pieces []piece, before int64) func(at int64) float64 {
	return func(at int64) (sum float64) {
		const step = 10_000
		for _, p := range pieces[1:] {
			if p.at <= at {
				sum += p.burst
			}
		}
		for t := int64(0); t < at; t += step {
			rate := 0.0
			for i, p := range pieces[:len(pieces)-1] {
				if p.at <= t && pieces[i+1].at > t-before {
					rate = max(rate, p.rate)
				}
			}
			sum += rate * float64(min(step, at-t)) / 1e6
		}
		return sum
	}
}
