package limiter

import (
	"flag"
	"math/rand/v2"
	"sort"
	"testing"
	"time"
)

var seed = flag.Uint64("seed", 0, "of the random sequences; 0: a new one each time")

// random is a source of sequences that a failure can be repeated with.
func random(t *testing.T) *rand.Rand {
	s := *seed
	if s == 0 {
		s = rand.Uint64()
	}
	t.Logf("repeat with -seed %d", s)
	return rand.New(rand.NewPCG(s, 1))
}

// push is what went at one time.
type push struct{ at, cost int64 }

// randomOf is a limit of a kind, of any size that keeps the sums of the checks below 2^63.
func randomOf(r *rand.Rand, kind Kind) Limit {
	for {
		l := Limit{
			Events: 1 + r.Int64N(1<<(1+r.IntN(13))),
			Period: []time.Duration{1, 10, 1000, 1500, 60_000, 3_600_000}[r.IntN(6)] * time.Millisecond,
			Kind:   kind,
		}
		switch kind {
		case Bucket:
			l.Burst = 1 + r.Int64N(1<<(1+r.IntN(10)))
		case Window:
			l.Burst = l.Events * (1 + r.Int64N(2)*r.Int64N(3))
		case Leaky:
			l.Burst = 1
		case Sliding:
			l.Burst = l.Events
		}
		if _, err := l.Class(); err == nil {
			return l
		}
	}
}

// randomLimits are one to three limits that can stand together.
func randomLimits(r *rand.Rand) Limits {
	for {
		var ls Limits
		for range 1 + r.IntN(3) {
			ls = append(ls, randomOf(r, Kind(r.IntN(4))))
		}
		if ls, err := ls.canonical(); err == nil {
			return ls
		}
	}
}

// randomGap is a time that matters for some limit, or none.
func randomGap(r *rand.Rand, ls Limits) int64 {
	c, _ := ls[r.IntN(len(ls))].Class()
	token := c.Every().Microseconds()
	switch r.IntN(6) {
	case 0, 1:
		return 0
	case 2:
		return r.Int64N(token + 2)
	case 3:
		return min(token*r.Int64N(20), hours)
	case 4:
		return r.Int64N(min(c.Den, 2*hours) + 1)
	default:
		return r.Int64N(2 * seconds)
	}
}

func randomCost(r *rand.Rand, ls Limits) int64 {
	if r.IntN(2) == 0 {
		return 1
	}
	return 1 + r.Int64N(min(ls.MaxCost(), 20))
}

// run calls a model at random, and returns what went, in the order of promise, and the time of the last call.
func run(t *testing.T, r *rand.Rand, m *Model, ls Limits, calls int, horizon time.Duration) (out []push, now int64) {
	t.Helper()
	now = epoch0
	last := now
	for range calls {
		now += randomGap(r, ls)
		cost := randomCost(r, ls)
		res := m.Reserve(now, 1+r.Int64N(1<<r.IntN(7)), cost, min(horizon, time.Duration(r.Int64N(int64(horizon)+1))*2))
		out = append(out, pushes(res, now, cost)...)
		if res.Granted > 0 && last > now { // P14
			t.Fatalf("%v: granted at %d before the slot %d promised earlier", ls, now, last)
		}
		for _, slot := range res.Slots {
			if slot <= now || slot < last || slot > now+horizon.Microseconds() {
				t.Fatalf("%v: slot %d at %d after one at %d", ls, slot, now, last)
			}
			last = slot
		}
		checkLevels(t, m, ls)
	}
	return out, now
}

func pushes(r Reservation, now, cost int64) []push {
	var out []push
	if r.Granted > 0 {
		out = append(out, push{now, r.Granted * cost})
	}
	for _, slot := range r.Slots {
		out = append(out, push{slot, cost})
	}
	return out
}

// checkLevels is P8: no level leaves its range.
func checkLevels(t *testing.T, m *Model, ls Limits) {
	t.Helper()
	for _, l := range ls {
		c, _ := l.Class()
		s := m.State(l.Name())
		if s.Den == 0 {
			continue
		}
		least := int64(0)
		switch l.Kind {
		case Bucket, Leaky:
			least = -ceilDiv(c.Num*horizonMicros, c.Den)
		case Window:
			least = -ceilDiv(horizonMicros, c.Den) * c.Num
		case Sliding:
			if n := c.used(s, s.Slice*c.slice()); n > c.Num {
				t.Fatalf("%v: %d count in %v", ls, n, l)
			}
		}
		if s.Tokens < least || s.Tokens > c.Burst || s.Frac < 0 || s.Frac >= c.Den {
			t.Fatalf("%v: the level of %v is %+v, out of %d to %d", ls, l, s, least, c.Burst)
		}
	}
}

// checkBound holds what went against the definition of one limit, over all windows. strict leaves out the microsecond that
// promises at times between two microseconds need.
func checkBound(t *testing.T, what any, l Limit, out []push, strict bool) {
	t.Helper()
	sort.SliceStable(out, func(i, j int) bool { return out[i].at < out[j].at })
	c, _ := l.Class()
	switch l.Kind {
	case Bucket, Leaky:
		slack := c.Num
		if strict || c.Num == 1 {
			slack = 0
		}
		if excess := evenExcess(c, out); excess > slack {
			t.Fatalf("%v: %v exceeded by %d/%d tokens, %d/%[4]d allowed", what, l, excess, c.Den, slack)
		}
	case Window:
		checkWindows(t, what, l, c, out)
	case Sliding:
		n, i := int64(0), 0
		for _, p := range out {
			for n += p.cost; out[i].at <= p.at-c.Den; i++ {
				n -= out[i].cost
			}
			if n > c.Num {
				t.Fatalf("%v: %d within %d us of %v", what, n, p.at-out[i].at+1, l)
			}
		}
	}
}

// evenExcess is P1: the greatest, over all windows with both ends counted, of (tokens - burst) x den - num x length.
func evenExcess(c Class, out []push) int64 {
	worst, least, sum := -c.Burst*c.Den, int64(0), int64(0)
	for i, p := range out {
		spent := sum*c.Den - c.Num*(p.at-epoch0)
		if i == 0 || spent < least {
			least = spent
		}
		sum += p.cost
		worst = max(worst, sum*c.Den-c.Num*(p.at-epoch0)-least-c.Burst*c.Den)
	}
	return worst
}

// checkWindows is P3, and without a larger cap, that no window of the state's own counting has more than its share.
func checkWindows(t *testing.T, what any, l Limit, c Class, out []push) {
	t.Helper()
	checkAnyWindows(t, what, l, c, out)
	if c.Burst > c.Num || len(out) == 0 {
		return
	}
	in := map[int64]int64{}
	for _, p := range out {
		q := (p.at - out[0].at) / c.Den
		if in[q] += p.cost; in[q] > c.Num {
			t.Fatalf("%v: %d in window %d of %v", what, in[q], q, l)
		}
	}
}

// checkAnyWindows is P3, wherever the state counts from.
func checkAnyWindows(t *testing.T, what any, l Limit, c Class, out []push) {
	t.Helper()
	for i := range out {
		n := int64(0)
		for j := i; j < len(out) && j < i+200; j++ {
			n += out[j].cost
			if most := c.Burst + c.Num*((out[j].at-out[i].at)/c.Den+1); n > most {
				t.Fatalf("%v: %d within %d us of %v, at most %d", what, n, out[j].at-out[i].at, l, most)
			}
		}
	}
}
