package limiter

import (
	"reflect"
	"slices"
	"sort"
	"testing"
	"time"
)

// P1, P3, P8, P14, and that every limit holds beside others: 60,000 calls.
func TestNoSequenceExceedsAnyOfItsLimits(t *testing.T) {
	t.Parallel()
	r := random(t)
	total := int64(0)
	for i := range 1000 {
		ls := randomLimits(r)
		m, err := NewModel(ls)
		if err != nil {
			t.Fatal(err)
		}
		horizon := time.Second * time.Duration(i%2)
		out, _ := run(t, r, m, ls, 60, horizon)
		for _, l := range ls {
			checkBound(t, ls, l, out, horizon == 0)
		}
		for _, p := range out {
			total += p.cost
		}
	}
	if total < 50_000 {
		t.Errorf("only %d tokens went: the sequences try nothing", total)
	}
}

// P2: with a backlog everything that the bound allows goes.
func TestBacklogGetsBurstAndRateTimesTime(t *testing.T) {
	t.Parallel()
	r := random(t)
	for range 500 {
		l := randomOf(r, []Kind{Bucket, Leaky}[r.IntN(2)])
		c, _ := l.Class()
		if c.Num*1000 > c.Den*100 { // a second of it would be many slots
			continue
		}
		m := modelOf(c)
		now, total := epoch0, int64(0)
		for range 20 {
			res := m.Reserve(now, 1<<40, 1, time.Second)
			total += res.Granted + res.Scheduled
			now += r.Int64N(seconds + (c.Burst-1)*c.Den/c.Num)
		}
		res := m.Reserve(now, 1<<40, 1, time.Second)
		total += res.Granted + res.Scheduled
		if want := c.Burst + (now+seconds-epoch0)*c.Num/c.Den; total != want {
			t.Fatalf("%v: %d went by a second after %d us, want %d", l, total, now-epoch0, want)
		}
	}
}

// P4, P5: asking, and being refused, change nothing.
func TestAskingAndRefusalChangeNothing(t *testing.T) {
	t.Parallel()
	r := random(t)
	for range 500 {
		ls := randomLimits(r)
		m, _ := NewModel(ls)
		now := epoch0
		for range 40 {
			now += randomGap(r, ls)
			before := slices.Clone(m.states)
			for _, res := range []Reservation{m.Reserve(now, 0, 1, time.Second), m.Reserve(now, 5, 1, -1)} {
				if res.Granted+res.Scheduled != 0 || !reflect.DeepEqual(m.states, before) {
					t.Fatalf("%v: asking gave %+v and changed %+v to %+v", ls, res, before, m.states)
				}
			}
			res := m.Reserve(now, 1+r.Int64N(50), randomCost(r, ls), time.Duration(r.Int64N(int64(time.Second))))
			if res.Granted+res.Scheduled == 0 && !reflect.DeepEqual(m.states, before) {
				t.Fatalf("%v: a refusal changed %+v to %+v", ls, before, m.states)
			}
		}
	}
}

// P6, P13: one call for n events is n calls for one; so it doesn't matter which worker asks for which.
func TestOneCallForManyIsManyCallsForOne(t *testing.T) {
	t.Parallel()
	r := random(t)
	for range 500 {
		ls := randomLimits(r)
		a, _ := NewModel(ls)
		b, _ := NewModel(ls)
		now := epoch0
		for range 20 {
			now += randomGap(r, ls)
			n, cost := 1+r.Int64N(60), randomCost(r, ls)
			horizon := time.Duration(r.Int64N(int64(time.Second)))
			want := a.Reserve(now, n, cost, horizon)
			var got Reservation
			for range n {
				one := b.Reserve(now, 1, cost, horizon)
				got.Granted, got.Scheduled = got.Granted+one.Granted, got.Scheduled+one.Scheduled
				got.Slots = append(got.Slots, one.Slots...)
				got.Wait, got.Remaining, got.Scarcest = one.Wait, one.Remaining, one.Scarcest
			}
			if !reflect.DeepEqual(got, want) || !reflect.DeepEqual(a.states, b.states) {
				t.Fatalf("%v: %d at once %+v %+v, one by one %+v %+v", ls, n, want, a.states, got, b.states)
			}
		}
	}
}

// P9: a state that has become full may be deleted; windows then begin anew, with no more than before.
func TestFullStateMayBeForgotten(t *testing.T) {
	t.Parallel()
	r := random(t)
	for range 1000 {
		ls := randomLimits(r)
		kept, _ := NewModel(ls)
		_, now := run(t, r, kept, ls, 10, time.Second)
		full := kept.FullAt(now)
		fresh, _ := NewModel(ls)
		for i := range int64(3) {
			at := full + i*r.Int64N(seconds)
			a, b := kept.Reserve(at, 40, 1, 0), fresh.Reserve(at, 40, 1, 0)
			if b.Granted > a.Granted || i == 0 && a.Granted != b.Granted {
				t.Fatalf("%v: %d granted by the kept state, %d by a new one", ls, a.Granted, b.Granted)
			}
			if slices.ContainsFunc(ls, func(l Limit) bool { return l.Kind == Window }) {
				break
			}
			if a.Granted != b.Granted {
				t.Fatalf("%v: %d granted by the kept state, %d by a new one", ls, a.Granted, b.Granted)
			}
		}
	}
}

// P11: while the limits change, each piece keeps the bound of its own, and a change adds no tokens.
func TestChangedLimitsKeepTheBoundOfEachPiece(t *testing.T) {
	t.Parallel()
	r := random(t)
	for range 500 {
		l := randomOf(r, Bucket)
		m, _ := NewModel(Limits{l})
		now := epoch0
		for range 8 {
			next := randomOf(r, Bucket)
			next.Period = l.Period
			if _, err := next.Class(); err != nil {
				continue
			}
			// The change comes when the state was written: the time since would be paid at the new rate.
			before := m.Reserve(now, 1<<40, 1, 0).Granted
			if err := m.SetLimits(Limits{next}); err != nil {
				t.Fatal(err)
			}
			if after := m.Reserve(now, 1<<40, 1, 0).Granted; after != 0 && before > 0 {
				t.Fatalf("%v to %v: %d more after %d were taken", l, next, after, before)
			}
			l = next
			c, _ := l.Class()
			var piece []push
			for range 10 {
				now += randomGap(r, Limits{l})
				piece = append(piece, pushes(m.Reserve(now, 1+r.Int64N(100), 1, 0), now, 1)...)
			}
			checkBound(t, "after a change", l, piece, true)
			now += r.Int64N(2 * c.Den)
		}
	}
}

// P12: a clock that goes back by less than the tolerance delivers nothing twice; by more, at most a burst, or what the step
// is worth.
func TestClockGoingBackIsBounded(t *testing.T) {
	t.Parallel()
	r := random(t)
	for range 500 {
		ls := randomLimits(r)
		m, _ := NewModel(ls)
		now, highest := epoch0, epoch0
		var out []push
		for range 60 {
			now = max(now+randomGap(r, ls), highest-clockTolerance)
			highest = max(highest, now)
			at := now - r.Int64N(1+min(clockTolerance-(highest-now), now-epoch0))
			cost := randomCost(r, ls)
			res := m.Reserve(at, 1+r.Int64N(50), cost, time.Duration(r.Int64N(2))*time.Second/2)
			out = append(out, pushes(res, at, cost)...)
		}
		for _, l := range ls {
			if l.Kind != Window {
				checkBound(t, ls, l, out, false)
			}
		}
	}
	for _, limits := range []string{"10/s burst 50", "50/s window", "50/s sliding"} {
		m := mustModel(t, limits)
		total := int64(0)
		for i := range int64(600) { // a minute, an hour back half-way
			now := epoch0 + i*100_000
			if i >= 300 {
				now -= hours
			}
			total += m.Reserve(now, 100, 1, 0).Granted
		}
		l := mustLimits(t, limits)[0]
		if least, most := l.Events*55, l.Burst+l.Events*60+l.Burst; total < least || total > most {
			t.Errorf("%s: %d in a minute with a step of an hour, want %d to %d", limits, total, least, most)
		}
	}
}

// arrival is the generic cell rate algorithm: tat is when the last token's place ends, in 1/num microseconds.
type arrival struct{ num, den, burst, tat int64 }

func (a *arrival) reserve(now, n, horizon int64) (granted, scheduled int64) {
	now *= a.num
	for range n {
		tat := max(a.tat, now) + a.den
		switch wait := tat - a.burst*a.den - now; {
		case wait <= 0:
			granted++
		case wait <= horizon*a.num:
			scheduled++
		default:
			return granted, scheduled
		}
		a.tat = tat
	}
	return granted, scheduled
}

// For one configuration the bucket is the generic cell rate algorithm.
func TestBucketIsTheGenericCellRateAlgorithm(t *testing.T) {
	t.Parallel()
	r := random(t)
	for range 500 {
		l := randomOf(r, []Kind{Bucket, Leaky}[r.IntN(2)])
		c, _ := l.Class()
		m := modelOf(c)
		gcra := arrival{num: c.Num, den: c.Den, burst: c.Burst}
		now := int64(1) // small, so that the sums stay below 2^63
		for range 60 {
			now += randomGap(r, Limits{l})
			n, horizon := 1+r.Int64N(60), r.Int64N(2)*r.Int64N(seconds)
			res := m.reserve(now, n, 1, horizon)
			granted, scheduled := gcra.reserve(now, n, horizon)
			if res.Granted != granted || res.Scheduled != scheduled {
				t.Fatalf("%v at %d: %d and %d, the cell rate algorithm says %d and %d", l, now, res.Granted, res.Scheduled, granted, scheduled)
			}
		}
	}
}

// A9 for any limits: after the wait it goes, and a microsecond earlier it wouldn't have.
func TestWaitIsExact(t *testing.T) {
	t.Parallel()
	r := random(t)
	for range 500 {
		ls := randomLimits(r)
		m, _ := NewModel(ls)
		now := epoch0
		for range 20 {
			now += randomGap(r, ls)
			cost := randomCost(r, ls)
			m.Reserve(now, 1+r.Int64N(100), cost, time.Duration(r.Int64N(int64(time.Second))))
			wait := m.Reserve(now, 1, cost, -1).Wait.Microseconds()
			if wait == 0 {
				continue
			}
			if early := m.Reserve(now+wait-1, 1, cost, 0); early.Granted != 0 {
				t.Fatalf("%v: a cost of %d goes before the wait of %d us ends", ls, cost, wait)
			}
			if late := m.Reserve(now+wait, 1, cost, 0); late.Granted != 1 {
				t.Fatalf("%v: a cost of %d doesn't go after the wait of %d us: %+v", ls, cost, wait, late)
			}
			now += wait
		}
	}
}

// A sliding limit is used but for one slice in each period.
func TestBacklogUsesTheSlidingLimit(t *testing.T) {
	t.Parallel()
	r := random(t)
	for range 100 {
		l := randomOf(r, Sliding)
		c, _ := l.Class()
		m := modelOf(c)
		periods := int64(30)
		total := int64(0)
		now := epoch0 + r.Int64N(c.Den)
		end := now + periods*c.Den
		for now < end {
			res := m.Reserve(now, 1<<40, 1, time.Second)
			total += res.Granted
			for _, slot := range res.Slots {
				if slot < end {
					total++
				}
			}
			now += max(min(seconds, res.Wait.Microseconds()), 1)
		}
		if least := c.Num * periods * (Slices - 1) / Slices; total < least || total > c.Num*periods {
			t.Fatalf("%v: %d in %d periods, want at least %d", l, total, periods, least)
		}
	}
}

func FuzzModel(f *testing.F) {
	f.Add("10/s burst 20, 100/m sliding", []byte("\x00\x10\x01\x01\x20\x03\x05\x40"))
	f.Add("3/s leaky, 5/s window", []byte("abcdefghijklmnopqrstuvwxyz"))
	f.Add("7/ms, 7/ms sliding", []byte{255, 255, 255, 255, 0, 0, 0, 0, 9, 9, 9, 9})
	f.Fuzz(func(t *testing.T, limits string, calls []byte) {
		ls, err := ParseLimits(limits)
		if err != nil || ls.Paused() || ls.Unlimited() {
			return
		}
		for _, l := range ls { // sums of the checks stay below 2^63
			if l.Events > 1<<13 || l.Burst > 1<<13 || l.Period > time.Hour {
				return
			}
		}
		m, err := NewModel(ls)
		if err != nil {
			t.Fatal(err)
		}
		now := epoch0
		var out []push
		for len(calls) >= 4 && len(out) < 5000 {
			now += int64(calls[0]) << (calls[1] % 20)
			cost := 1 + int64(calls[2])%min(ls.MaxCost(), 16)
			res := m.Reserve(now, int64(calls[2])/2, cost, time.Duration(int8(calls[3]))*time.Second/100)
			out = append(out, pushes(res, now, cost)...)
			calls = calls[4:]
		}
		checkLevels(t, m, ls)
		for _, l := range ls {
			checkBound(t, ls, l, out, false)
		}
	})
}

// What was lost counts as spent, at the latest moment at which it can have been: whatever the kind, what goes before and after
// a loss is within the limit. Promises for up to a horizon later are kept.
func TestLossOfStateKeepsTheLimits(t *testing.T) {
	t.Parallel()
	r := random(t)
	total := 0
	for i := range 2000 {
		ls := randomLimits(r)
		horizon := time.Second * time.Duration(i%2)
		now, since := epoch0, int64(0)
		var out []push
		for range 3 { // two losses
			m, err := NewModel(ls)
			if err != nil {
				t.Fatal(err)
			}
			m.Since = since
			for range 12 {
				now += randomGap(r, ls)
				cost := randomCost(r, ls)
				out = append(out, pushes(m.Reserve(now, 1+r.Int64N(1<<r.IntN(10)), cost, horizon), now, cost)...)
			}
			now += r.Int64N(2) * randomGap(r, ls)
			since = now + horizon.Microseconds()
		}
		total += len(out)
		for _, l := range ls {
			if l.Kind == Window { // its windows begin elsewhere after a loss
				c, _ := l.Class()
				sort.SliceStable(out, func(i, j int) bool { return out[i].at < out[j].at })
				checkAnyWindows(t, ls, l, c, out)
			} else {
				checkBound(t, ls, l, out, false)
			}
		}
	}
	if total < 20_000 {
		t.Errorf("only %d pushes: the sequences try nothing", total)
	}
}

// The same in figures: 37 went within 20 s.
func TestLossOfASlidingLimitsStateBringsNothingForAPeriod(t *testing.T) {
	t.Parallel()
	m := mustModel(t, "20/20s sliding")
	if r := m.Reserve(epoch0, 20, 1, 0); r.Granted != 20 {
		t.Fatalf("%+v, want all 20", r)
	}
	m = mustModel(t, "20/20s sliding")
	m.Since = epoch0
	granted := int64(0)
	for at := int64(0); at <= 22*seconds; at += seconds / 10 {
		r := m.Reserve(epoch0+at, 20, 1, 0)
		granted += r.Granted
		if at <= 20*seconds && granted > 0 {
			t.Fatalf("%d go %d ms after 20 went", granted, at/1000)
		}
	}
	if granted != 20 {
		t.Errorf("%d go in the 22 s after the loss, want 20", granted)
	}
}
