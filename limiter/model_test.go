package limiter

import (
	"slices"
	"testing"
	"time"
)

const (
	seconds = int64(1_000_000) // in the unit of the models' times
	minutes = 60 * seconds
	hours   = 60 * minutes
	days    = 24 * hours

	// epoch0 is a time of our days, so that sums are as large as they will be.
	epoch0 = 1_795_998_300 * seconds
)

func mustModel(t testing.TB, limits string) *Model {
	t.Helper()
	m, err := NewModel(mustLimits(t, limits))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// modelOf is a model of one class that may be one that no Limit has, such as a burst of 0.
func modelOf(c Class) *Model {
	p := &plan{maxCost: max(1, c.Burst), classes: []Class{c}, names: []string{"it"}}
	return &Model{plan: p, states: make([]State, 1)}
}

// step is one call and what it should answer.
type step struct {
	at, n     int64
	granted   int64
	slots     []int64
	before    []int64 // tokens and frac of the usable level before the call; none: not looked at
	stored    int64   // State.Frac of a bucket, State.UpdatedAt of a window after the call, if not 0
	class     *Class  // rules from this call on
	updatedAt *int64
}

func bucket(num, den, burst int64) Class { return Class{num, den, burst, Bucket} }
func window(num, den, burst int64) Class { return Class{num, den, burst, Window} }
func at(us int64) *int64                 { return &us }

// The vectors were worked out on real Redis by an independent prototype, or by hand. Times are microseconds since the first
// call.
func TestVectors(t *testing.T) {
	t.Parallel()
	slow, raised := bucket(3, seconds, 4), bucket(3, seconds, 20)
	tests := []struct {
		name    string
		class   Class
		horizon int64
		origin  int64
		steps   []step
	}{
		{"V1 remainder is kept", bucket(3, seconds, 5), 0, epoch0, []step{
			{at: 0, n: 7, granted: 5},
			{at: 100_000, n: 1, before: []int64{0, 300_000}},
			{at: 333_333, n: 1, before: []int64{0, 999_999}},
			{at: 333_334, n: 1, granted: 1, stored: 2},
			{at: 1_000_000, n: 5, granted: 2},
			{at: 11_000_000, n: 6, granted: 5},
		}},
		{"V2 slots within the horizon", bucket(3, seconds, 2), seconds, epoch0, []step{
			{at: 0, n: 8, granted: 2, slots: []int64{333_334, 666_667, 1_000_000}},
			{at: 0, n: 1},
			{at: 400_000, n: 3, slots: []int64{1_333_334}},
			{at: 2_000_000, n: 1, granted: 1, before: []int64{2, 0}},
		}},
		{"V3 one token per microsecond", bucket(1, 1, 10), 5, epoch0, []step{
			{at: 0, n: 20, granted: 10, slots: []int64{1, 2, 3, 4, 5}},
			{at: 3, n: 20, slots: []int64{6, 7, 8}},
			{at: 3, n: 1},
		}},
		{"V4 one a day", bucket(1, days, 1), seconds, epoch0, []step{
			{at: 0, n: 2, granted: 1},
			{at: 86_398_999_999, n: 1},
			{at: 86_399_000_000, n: 1, slots: []int64{86_400_000_000}},
			{at: 86_400_000_000, n: 1, before: []int64{0, 0}},
		}},
		{"V5 leaky with a queue of 5", Class{1, 100_000, 1, Leaky}, 500_000, epoch0, []step{
			{at: 0, n: 10, granted: 1, slots: []int64{100_000, 200_000, 300_000, 400_000, 500_000}},
			{at: 50_000, n: 1},
			{at: 100_000, n: 2, slots: []int64{600_000}},
			{at: 2_000_000, n: 3, granted: 1, slots: []int64{2_100_000, 2_200_000}},
		}},
		{"V6 shaper without a burst", bucket(1, 100_000, 0), 300_000, epoch0, []step{
			{at: 0, n: 5, slots: []int64{100_000, 200_000, 300_000}},
			{at: 100_000, n: 2, slots: []int64{400_000}},
		}},
		{"V7 windows don't drift", window(10, seconds, 10), 0, epoch0, []step{
			{at: 0, n: 4, granted: 4},
			{at: 700_000, n: 8, granted: 6},
			{at: 999_999, n: 1},
			{at: 1_000_000, n: 12, granted: 10},
			{at: 2_600_000, n: 3, granted: 3, updatedAt: at(2_000_000)},
		}},
		{"V8 slots in windows", window(2, 400_000, 5), seconds, epoch0, []step{
			{at: 0, n: 9, granted: 5, slots: []int64{400_000, 400_000, 800_000, 800_000}},
			{at: 200_000, n: 4, slots: []int64{1_200_000, 1_200_000}},
			{at: 600_000, n: 1, slots: []int64{1_600_000}},
		}},
		{"V9 clock goes back", bucket(1, 100_000, 3), 0, 0, []step{
			{at: 10_000_000, n: 3, granted: 3},
			{at: 9_500_000, n: 1, before: []int64{-5, 0}, updatedAt: at(10_000_000)},
			{at: 10_100_000, n: 1, granted: 1},
			{at: 0, n: 1, updatedAt: at(0)},
			{at: 100_000, n: 1, granted: 1},
		}},
		{"V10 limit changes", bucket(1, 100_000, 10), 0, epoch0, []step{
			{at: 0, n: 3, granted: 3},
			{at: 50_000, n: 1, granted: 1, class: &slow, before: []int64{4, 0}},
			{at: 50_000, n: 9, granted: 3, class: &raised},
			{at: 400_000, n: 9, granted: 1, stored: 50_000},
		}},
		{"V16 burst, pause, burst", bucket(1, 100_000, 50), 0, epoch0, []step{
			{at: 0, n: 80, granted: 50},
			{at: 1_100_000, n: 80, granted: 11},
			{at: 2_200_000, n: 80, granted: 11},
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			m := modelOf(tt.class)
			for i, s := range tt.steps {
				checkStep(t, m, i, s, tt.origin, tt.horizon)
			}
		})
	}
}

func checkStep(t *testing.T, m *Model, i int, s step, origin, horizon int64) {
	t.Helper()
	now := origin + s.at
	if s.class != nil {
		m.follow(&plan{maxCost: s.class.Burst, classes: []Class{*s.class}, names: []string{"it"}})
	}
	c := m.plan.classes[0]
	level, _ := c.refill(m.states[0], now, 0)
	units := c.units(level) - c.Num*max(0, level.UpdatedAt-now)
	tokens := floorDiv(units, c.Den)
	if got := []int64{tokens, units - tokens*c.Den}; s.before != nil && !slices.Equal(got, s.before) {
		t.Errorf("step %d at %d: level %v before, want %v", i, s.at, got, s.before)
	}

	r := m.reserve(now, s.n, 1, horizon)
	var slots []int64
	for _, slot := range r.Slots {
		slots = append(slots, slot-origin)
	}
	if r.Granted != s.granted || !slices.Equal(slots, s.slots) || r.Scheduled != int64(len(slots)) {
		t.Errorf("step %d at %d: %d granted, slots %v; want %d, %v", i, s.at, r.Granted, slots, s.granted, s.slots)
	}
	state := m.State("it")
	if s.stored != 0 && state.Frac != s.stored {
		t.Errorf("step %d at %d: %+v stored, want a fraction of %d", i, s.at, state, s.stored)
	}
	if s.updatedAt != nil && state.UpdatedAt != origin+*s.updatedAt {
		t.Errorf("step %d at %d: %+v stored, want updated at %d", i, s.at, state, origin+*s.updatedAt)
	}
}

// V13: a state that is gone, because it expired or was deleted, is a full one.
func TestMissingStateIsFull(t *testing.T) {
	t.Parallel()
	for _, limits := range []string{"10/s burst 7", "7/s window", "7/s sliding"} {
		m := mustModel(t, limits)
		m.Reserve(epoch0, 7, 1, 0)
		clear(m.states)
		if r := m.Reserve(epoch0+1, 100, 1, 0); r.Granted != 7 {
			t.Errorf("%s: %d granted after the state was deleted, want 7", limits, r.Granted)
		}
	}
}

// V14: a window that is re-anchored at each call never refills when it is polled often.
func TestWindowPolledOftenRefills(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ every, calls, want int64 }{{100_000, 600, 600}, {130_000, 462, 462}, {700_000, 86, 86}} {
		m := mustModel(t, "10/s window")
		total := int64(0)
		for i := range tt.calls {
			total += m.Reserve(epoch0+i*tt.every, 1, 1, 0).Granted
		}
		if total != tt.want {
			t.Errorf("polled every %d us: %d granted, want %d", tt.every, total, tt.want)
		}
	}
}

// V15: asking for more than there is takes whole tokens only; the fraction stays.
func TestAskingForMoreThanThereIsKeepsTheFraction(t *testing.T) {
	t.Parallel()
	m := mustModel(t, "3/s burst 5")
	total := int64(0)
	for at := int64(0); at <= 9*seconds; at += 150_000 {
		total += m.Reserve(epoch0+at, 10, 1, 0).Granted
	}
	if total != 32 {
		t.Errorf("%d granted in 9 s at 3/s burst 5, want 32", total)
	}
}

// After the state of all keys was lost nobody gets a fresh burst: a missing state holds what has accrued since.
func TestLostStateHoldsWhatAccruedSince(t *testing.T) {
	t.Parallel()
	tests := []struct {
		limits string
		after  int64
		want   int64
	}{
		{"10/s burst 20", 0, 0},
		{"10/s burst 20", 1_050_000, 10},
		{"10/s burst 20", 60 * seconds, 20},
		{"10/s leaky", 99_999, 0},
		{"10/s leaky", 100_000, 1},
		{"10/s burst 20 window", 999_999, 0},
		{"10/s burst 20 window", 1_000_000, 10},
		{"10/s burst 20 window", 9 * seconds, 20},
		{"100/s sliding", 0, 0},
		{"100/s sliding", 500_000, 0}, // all may have been taken just before
		{"100/s sliding", 1_049_999, 0},
		{"100/s sliding", 1_050_000, 100},
		{"100/s sliding", 3600 * seconds, 100},
		{"100/d, 100/s sliding", 500_000, 0},
		{"10/s burst 20", -500_000, 0}, // the clock is behind
	}
	for _, tt := range tests {
		m := mustModel(t, tt.limits)
		m.Since = epoch0
		if r := m.Reserve(epoch0+tt.after, 1000, 1, 0); r.Granted != tt.want {
			t.Errorf("%s, %d us after the loss: %d granted, want %d", tt.limits, tt.after, r.Granted, tt.want)
		}
	}
}

func TestUnlimitedCountsNothing(t *testing.T) {
	t.Parallel()
	m := mustModel(t, "unlimited")
	if r := m.Reserve(epoch0, 1<<40, 1<<40, 0); r.Granted != 1<<40 || m.FullAt(epoch0) != epoch0 {
		t.Errorf("%+v from unlimited, want all granted", r)
	}
	if r := m.Reserve(epoch0, -1, 1, 0); r.Granted != 0 {
		t.Errorf("%+v for -1 events, want none", r)
	}
}

func TestReservationLooksAtMostOneSecondAhead(t *testing.T) {
	t.Parallel()
	m := mustModel(t, "1/s")
	if r := m.Reserve(epoch0, 9, 1, time.Hour); r.Granted != 1 || !slices.Equal(r.Slots, []int64{epoch0 + seconds}) {
		t.Errorf("%+v, want one now and one in a second", r)
	}
	if r := mustModel(t, "1/s").Reserve(epoch0, 1, 1, -1); r.Granted != 0 || r.Wait != 0 {
		t.Errorf("%+v with a horizon below 0, want nothing but that it could go now", r)
	}
}
