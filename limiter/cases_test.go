package limiter

import (
	"math"
	"reflect"
	"slices"
	"testing"
	"time"
)

// The cases of this file come from bug reports on other limiters.

// poll asks for one event every so many microseconds, both ends included, and returns the times at which one went.
func poll(m *Model, from, to, every int64) []int64 {
	var times []int64
	for t := from; t <= to; t += every {
		for range m.Reserve(t, 1, 1, 0).Granted {
			times = append(times, t)
		}
	}
	return times
}

// A1: 3 per 5 s polled every 20 ms passed 10 in 10 s.
func TestPolledLimitPassesNoMoreThanItsBound(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		limits string
		most   int
	}{
		{"3/5s burst 1", 7}, {"3/5s leaky", 7}, {"1/1500ms", 7}, {"1/1900ms", 6}, {"3/5s sliding", 6}, {"3/5s window", 7},
	} {
		m := mustModel(t, tt.limits)
		if got := poll(m, epoch0, epoch0+10*seconds, 20_000); len(got) > tt.most || len(got) < tt.most-1 {
			t.Errorf("%s: %d passed in 10 s, want at most %d and no more than one less", tt.limits, len(got), tt.most)
		}
	}
}

// A2: a refused call moved the time of the last refill, so that an eager caller never got a token again.
func TestRefusedCallsDontDelayTheRefill(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		limits string
		every  int64 // polled
		token  int64 // one each
	}{
		{"1/s", 500_000, seconds}, {"1/10s", seconds, 10 * seconds}, {"100/15m burst 1", seconds, 9 * seconds},
		{"1/s window", 300_000, seconds}, {"1/10s leaky", seconds, 10 * seconds},
	} {
		m := mustModel(t, tt.limits)
		got := poll(m, epoch0, epoch0+100*tt.token, tt.every)
		if want := 101; len(got) < want-1 || len(got) > want {
			t.Errorf("%s polled every %d us: %d tokens in the time of 100, want 101", tt.limits, tt.every, len(got))
		}
	}
}

// A4, and upstash: a refused cost was taken all the same, and 1,000,000 of it left a debt of months.
func TestRefusalTakesNothing(t *testing.T) {
	t.Parallel()
	for _, limits := range []string{"1/10s burst 10", "10/10s window", "10/10s sliding"} {
		m := mustModel(t, limits)
		m.Reserve(epoch0, 8, 1, 0)
		before := m.State(mustLimits(t, limits)[0].Name())
		if r := m.Reserve(epoch0, 1, 5, 0); r.Granted+r.Scheduled != 0 || r.Wait <= 0 || r.Wait == Forever {
			t.Errorf("%s: %+v for a cost of 5 with 2 left, want to wait", limits, r)
		}
		if r := m.Reserve(epoch0, 1, 1_000_000, time.Second); r.Granted+r.Scheduled != 0 || r.Wait != Forever {
			t.Errorf("%s: %+v for a cost of 1,000,000, want never", limits, r)
		}
		if after := m.State(mustLimits(t, limits)[0].Name()); !reflect.DeepEqual(after, before) {
			t.Errorf("%s: refusals changed %+v to %+v", limits, before, after)
		}
		if r := m.Reserve(epoch0, 5, 1, 0); r.Granted != 2 {
			t.Errorf("%s: %d left after the refusals, want 2", limits, r.Granted)
		}
	}
}

// A6, B1: a rate of 0 is a pause, not an error and not 1; a new rate rules at once.
func TestRateOfZeroPausesAndResumes(t *testing.T) {
	t.Parallel()
	m := mustModel(t, "30/s")
	set := func(limits string) {
		if err := m.SetLimits(mustLimits(t, limits)); err != nil {
			t.Fatal(err)
		}
	}
	m.Reserve(epoch0, 30, 1, 0)
	set("0")
	if r := m.Reserve(epoch0+seconds, 1, 1, time.Second); r.Granted+r.Scheduled != 0 || r.Wait != Forever {
		t.Errorf("%+v while paused", r)
	}
	set("150/s")
	if got := m.State("bucket/1s"); got.Tokens != 0 || got.UpdatedAt != epoch0 {
		t.Errorf("%+v after the pause, want the state from before", got)
	}
	if r := m.Reserve(epoch0+seconds, 200, 1, 0); r.Granted != 150 {
		t.Errorf("%d granted a second after the raise, want 150", r.Granted)
	}
}

// A8: a limit of 20 with a hidden burst passed 22.
func TestNoHiddenBurst(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		limits string
		most   int
	}{{"20/m sliding", 20}, {"20/m burst 1", 20}, {"20/m", 40}, {"20/m window", 20}, {"20/m leaky", 20}} {
		m := mustModel(t, tt.limits)
		if got := poll(m, epoch0, epoch0+minutes-1, 10_000); len(got) > tt.most || len(got) < tt.most-1 {
			t.Errorf("%s: %d in the first minute, want at most %d", tt.limits, len(got), tt.most)
		}
	}
}

// A9: the time to wait was rounded down, so that who waited was refused again.
func TestWhoWaitsAsToldIsServed(t *testing.T) {
	t.Parallel()
	for _, limits := range []string{"2/3s burst 1", "7/1500ms leaky", "3/s", "999983/s burst 1", "3/s window", "7/s sliding",
		"3/s, 7/10s sliding, 11/m window"} {
		m := mustModel(t, limits)
		now := epoch0
		for range 200 {
			r := m.Reserve(now, 1, 1, 0)
			if r.Granted == 1 {
				continue
			}
			if early := m.Reserve(now+r.Wait.Microseconds()-1, 1, 1, -1); early.Wait <= 0 {
				t.Fatalf("%s: told to wait %v, but it could go earlier", limits, r.Wait)
			}
			now += r.Wait.Microseconds()
			if again := m.Reserve(now, 1, 1, 0); again.Granted != 1 {
				t.Fatalf("%s: after waiting %v as told: %+v", limits, r.Wait, again)
			}
		}
	}
}

// A10: 10 at 59.9 s and 10 at 60.1 s of a limit of 10 a minute.
func TestNoDoubleBurstAroundAMinute(t *testing.T) {
	t.Parallel()
	for _, limits := range []string{"10/m", "10/m sliding"} {
		m := mustModel(t, limits)
		n := m.Reserve(epoch0+59_900_000, 10, 1, 0).Granted + m.Reserve(epoch0+60_100_000, 10, 1, 0).Granted
		if n != 10 {
			t.Errorf("%s: %d within 0.2 s, want 10", limits, n)
		}
	}
}

// A15: all five events of a key with one a minute went at once.
func TestOneAMinuteIsOneAMinute(t *testing.T) {
	t.Parallel()
	for _, limits := range []string{"1/60s", "1/m leaky", "1/m window"} {
		r := mustModel(t, limits).reserve(epoch0, 5, 1, hours)
		want := []int64{epoch0 + minutes, epoch0 + 2*minutes, epoch0 + 3*minutes, epoch0 + 4*minutes}
		if r.Granted != 1 || !slices.Equal(r.Slots, want) {
			t.Errorf("%s: %+v, want one now and one each minute", limits, r)
		}
	}
}

// A19: of two limits one was not enforced, or both shared one counter, or a refusal by one took from the other.
func TestTwoLimitsRuleTogether(t *testing.T) {
	t.Parallel()
	m := mustModel(t, "5/s, 12/d sliding")
	var got []int64
	for i := range int64(5) {
		got = append(got, m.Reserve(epoch0+i*seconds, 100, 1, 0).Granted)
	}
	if want := []int64{5, 5, 2, 0, 0}; !slices.Equal(got, want) {
		t.Errorf("%v granted each second, want %v", got, want)
	}
	if s := m.State("bucket/1s"); s.Tokens != 3 || s.UpdatedAt != epoch0+2*seconds {
		t.Errorf("the bucket is %+v: the refusals of the day's limit changed it", s)
	}

	m = mustModel(t, "5/s, 1000/d sliding")
	m.Reserve(epoch0, 100, 1, 0)
	if n := m.State("sliding/1d").Counts[0]; n != 5 {
		t.Errorf("%d count for the day after 5 went and 95 were refused by the second's limit", n)
	}
}

// A promise is booked in every limit at its time: what a bucket would lose at its brim until then is not there afterwards.
func TestPromiseForLaterLeavesNoSecondBurst(t *testing.T) {
	t.Parallel()
	m := mustModel(t, "10/s burst 2, 1/s leaky")
	m.Reserve(epoch0, 1, 1, 0)
	if r := m.Reserve(epoch0, 1, 1, time.Second); !slices.Equal(r.Slots, []int64{epoch0 + seconds}) {
		t.Fatalf("%+v, want a slot in a second", r)
	}
	// At its slot the bucket was full again, so one is left then.
	if err := m.SetLimits(mustLimits(t, "10/s burst 2")); err != nil {
		t.Fatal(err)
	}
	if r := m.Reserve(epoch0+seconds, 5, 1, 0); r.Granted != 1 {
		t.Errorf("%d beside the promised one, want 1: the bucket holds 2", r.Granted)
	}
}

// A22: the largest and the slowest limits stay in their range.
func TestExtremeLimitsStayInRange(t *testing.T) {
	t.Parallel()
	for _, limits := range []string{
		"1000000/s burst 2147483648", "1/1000000s", "1/365d", "1/365d burst 100", "1/365d burst 100 window",
		"2147483648/365d sliding", "1000000/s window", "1000000/s sliding", "31535999999999/365d burst 1", "1/365d leaky",
	} {
		m := mustModel(t, limits)
		burst := mustLimits(t, limits)[0].Burst
		now, last := epoch0, int64(0)
		for i := range int64(300) {
			r := m.Reserve(now, burst/3+1, 1, 0)
			if r.Wait < 0 {
				t.Fatalf("%s: %+v", limits, r)
			}
			if s := m.State(mustLimits(t, limits)[0].Name()); s.Tokens < 0 || s.Tokens > burst || s.Frac < 0 || s.Frac >= s.Den {
				t.Fatalf("%s: level %+v out of 0 to %d", limits, s, burst)
			}
			if full := m.FullAt(now); full < now || full < last && r.Granted > 0 {
				t.Fatalf("%s: full at %d, before %d or now", limits, full, last)
			} else if r.Granted > 0 {
				last = full
			}
			now += 1 + i*i*i*seconds
		}
	}
}

// A debt in the tokens of a fast rate would take a slow one years, and more than its arithmetic holds. All of it was
// promised for a second at most.
func TestDebtOfAFastLimitIsOverWithinASecondUnderASlowOne(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		from, to string
		periods  int64 // until the next token
	}{
		{"31535999999999/365d burst 1", "1/365d", 1}, {"2147483648/365d window", "1/365d window", 2}, // one is promised already
		{"3600000/h", "1/h", 1}, {"7/s", "3/s", 1},
	} {
		m := mustModel(t, tt.from)
		m.Reserve(epoch0, 1, 1, 0)
		m.states[0].Tokens = -1 << 31 // as by promises within a second at many thousand per microsecond
		if err := m.SetLimits(mustLimits(t, tt.to)); err != nil {
			t.Fatal(err)
		}
		every := m.plan.classes[0].Every()
		r, full := m.Reserve(epoch0, 10, 1, time.Second), m.FullAt(epoch0)
		if late := r.Wait - time.Duration(tt.periods)*every; r.Granted+r.Scheduled != 0 || late < 0 || late > time.Second || full > 1<<54 {
			t.Errorf("%s to %s: %+v, full at %d; want to wait for %d tokens' time", tt.from, tt.to, r, full, tt.periods)
		}
	}
}

// Workers learn of a change one after the other. What the fast limit has promised is not promised again because a slow one
// was gone by in between.
func TestPromisesOutlastASlowerLimitInBetween(t *testing.T) {
	t.Parallel()
	fast, slow := mustLimits(t, "1000/s burst 1"), mustLimits(t, "20/s")
	m, _ := NewModel(fast)
	slots := map[int64]int{}
	for i := range int64(16) {
		now := epoch0 + i*60_000 // a token's time under the slow one
		for _, limits := range []Limits{slow, fast} {
			if err := m.SetLimits(limits); err != nil {
				t.Fatal(err)
			}
			r := m.Reserve(now, 1<<20, 1, time.Second)
			slots[now] += int(r.Granted)
			for _, s := range r.Slots {
				slots[s]++
			}
		}
	}
	n := 0
	for _, of := range slots {
		n += of
	}
	if n > 1+1000*2 { // of the second in which it was asked, and the one after
		t.Errorf("%d slots within two seconds, want at most 2001", n)
	}
}

// Steps of the clock of up to a second are waited for, longer ones taken as they are, and that is remembered although
// nothing was granted.
func TestClockToleranceIsOneSecond(t *testing.T) {
	t.Parallel()
	for _, limits := range []string{"10/s", "10/s window", "10/s leaky", "10/s sliding"} {
		name := mustLimits(t, limits)[0].Name()
		m := mustModel(t, limits)
		m.Reserve(epoch0, 10, 1, 0)
		before := m.State(name)
		if r := m.Reserve(epoch0-seconds, 10, 1, 0); r.Granted != 0 || !reflect.DeepEqual(m.State(name), before) {
			t.Errorf("%s, a second back: %+v, %+v became %+v; want no change", limits, r, before, m.State(name))
		}
		if r := m.Reserve(epoch0-seconds-1, 10, 1, 0); r.Granted != 0 || m.State(name).UpdatedAt != epoch0-seconds-1 {
			t.Errorf("%s, more than a second back: %+v and %+v; want that time", limits, r, m.State(name))
		}
		if r := m.Reserve(epoch0+50_000, 10, 1, 0); r.Granted == 0 {
			t.Errorf("%s: still nothing a second after the step", limits)
		}
	}
}

// What a window brings isn't there before it begins, when the clock goes back over its begin.
func TestClockBeforeAWindowTakesNothingFromIt(t *testing.T) {
	t.Parallel()
	m := mustModel(t, "10/s burst 15 window")
	m.Reserve(epoch0, 2, 1, 0)
	for _, s := range []struct{ at, want int64 }{{-1, 3}, {-1, 0}, {0, 10}, {999_999, 0}, {1_000_000, 10}} {
		if r := m.Reserve(epoch0+s.at, 20, 1, 0); r.Granted != s.want {
			t.Errorf("%d granted at %d us, want %d", r.Granted, s.at, s.want)
		}
	}
}

// H: alternating old and new times minted a token with each pair.
func TestAlternatingTimesMintNoTokens(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		limits string
		most   int64
	}{{"10/s burst 5", 15}, {"5/s window", 10}, {"10/s leaky", 11}, {"10/s sliding", 10}} {
		m := mustModel(t, tt.limits)
		total := int64(0)
		for i := range 2000 {
			total += m.Reserve(epoch0+seconds*int64(1-i%2), 1, 1, 0).Granted
		}
		if total > tt.most {
			t.Errorf("%s: %d granted within a second, want at most %d", tt.limits, total, tt.most)
		}
	}
}

// H: nodes whose clocks differ by a second refilled twice per second.
func TestOlderTimeNeverRewinds(t *testing.T) {
	t.Parallel()
	m := mustModel(t, "150/s")
	total := int64(0)
	for i := range int64(1000) { // 10 s, every other call by a clock 1 s behind
		total += m.Reserve(epoch0+i*10_000-(i%2)*seconds, 10, 1, 0).Granted
	}
	if total > 150+150*10 {
		t.Errorf("%d granted in 10 s at 150/s, want at most 1650", total)
	}
}

// H: progress within an interval was lost by calls that were refused.
func TestProgressWithinAnIntervalIsKept(t *testing.T) {
	t.Parallel()
	m := mustModel(t, "1/10s burst 3")
	m.Reserve(epoch0, 3, 1, 0)
	for _, s := range []struct{ at, want int64 }{{25, 1}, {29, 1}, {30, 1}, {31, 0}} {
		if r := m.Reserve(epoch0+s.at*seconds, 1, 1, 0); r.Granted != s.want {
			t.Errorf("%d granted after %d s, want %d", r.Granted, s.at, s.want)
		}
	}
}

// H, B5: a raised limit was denied until the old one's time had come.
func TestRaisedLimitRulesAtOnce(t *testing.T) {
	t.Parallel()
	m := mustModel(t, "1/h")
	m.Reserve(epoch0, 1, 1, 0)
	if err := m.SetLimits(mustLimits(t, "360000/h")); err != nil { // 100/s
		t.Fatal(err)
	}
	if r := m.Reserve(epoch0+10_000, 5, 1, 50*time.Millisecond); r.Granted != 1 || r.Scheduled != 4 {
		t.Errorf("%+v 10 ms after a raise to 100/s, want 1 now and 4 soon", r)
	}
}

// H: what a key had stored under a high limit stayed when the limit was lowered. B3: setting the same limit again changes
// nothing.
func TestLoweredLimitCutsWhatWasStored(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ from, to string }{
		{"1000/s", "10/s"}, {"1000/s window", "10/s window"}, {"1000/s sliding", "10/s sliding"},
	} {
		m := mustModel(t, tt.from)
		m.Reserve(epoch0, 1, 1, 0)
		if err := m.SetLimits(mustLimits(t, tt.to)); err != nil {
			t.Fatal(err)
		}
		if r := m.Reserve(epoch0+1, 1000, 1, 0); r.Granted > 10 {
			t.Errorf("%s to %s: %d granted, want at most 10", tt.from, tt.to, r.Granted)
		}
		for range 100 {
			if err := m.SetLimits(mustLimits(t, tt.to)); err != nil {
				t.Fatal(err)
			}
			if r := m.Reserve(epoch0+2, 1000, 1, 0); r.Granted > 0 {
				t.Fatalf("%s: %d granted after the same limit was set again", tt.to, r.Granted)
			}
		}
	}
}

// H: hours of idleness overflowed the refill.
func TestLongIdlenessFills(t *testing.T) {
	t.Parallel()
	for _, limits := range []string{"1000000/s burst 2147483648", "1000000/s window", "1000000/s sliding", "999983/s"} {
		m := mustModel(t, limits)
		burst := mustLimits(t, limits)[0].Burst
		m.Reserve(1, math.MaxInt64, 1, 0)
		if r := m.Reserve(1<<53-1-seconds, math.MaxInt64, 1, 0); r.Granted != burst {
			t.Errorf("%s: %d after 285 years, want %d", limits, r.Granted, burst)
		}
	}
}

// H: concurrent reservations of several tokens got the same time.
func TestReservationsOfSeveralTokensAreSpaced(t *testing.T) {
	t.Parallel()
	m := mustModel(t, "10/s burst 5")
	m.Reserve(epoch0, 5, 1, 0)
	for i, want := range []int64{300_000, 600_000, 900_000} {
		if r := m.Reserve(epoch0, 1, 3, time.Second); !slices.Equal(r.Slots, []int64{epoch0 + want}) {
			t.Errorf("reservation %d of 3 tokens: %+v, want a slot at %d", i, r, want)
		}
	}
	if r := m.Reserve(epoch0, 1, 3, time.Second); r.Scheduled != 0 {
		t.Errorf("%+v beyond the horizon", r)
	}
}

// H: one of six went for a key with one a minute; one a second came every two.
func TestKeyThatAsksOnTimeIsServedEachTime(t *testing.T) {
	t.Parallel()
	if got := poll(mustModel(t, "1/m"), epoch0, epoch0+5*minutes, minutes); len(got) != 6 {
		t.Errorf("%d of 6 in 5 minutes at 1/m", len(got))
	}
	if got := poll(mustModel(t, "1/s"), epoch0, epoch0+60*seconds, seconds); len(got) != 61 {
		t.Errorf("%d of 61 in a minute at 1/s", len(got))
	}
}

// H: after idleness a full bucket was granted twice at once.
func TestFullBucketIsGrantedOnce(t *testing.T) {
	t.Parallel()
	for _, limits := range []string{"10/s burst 20", "20/s window", "20/s sliding"} {
		m := mustModel(t, limits)
		m.Reserve(epoch0, 20, 1, 0)
		first, second := m.Reserve(epoch0+hours+1, 1, 20, 0), m.Reserve(epoch0+hours+1, 1, 20, 0)
		if first.Granted != 1 || second.Granted != 0 {
			t.Errorf("%s: %d and %d granted, want 1 and 0", limits, first.Granted, second.Granted)
		}
	}
}
