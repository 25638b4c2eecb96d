package redisstore

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"sluice/integration/testenv"
	"sluice/limiter"
)

func fixed(t testing.TB, text string) limiter.Resolver {
	t.Helper()
	limits, err := limiter.ParseLimits(text)
	if err != nil {
		t.Fatal(err)
	}
	return limiter.Fixed(limits)
}

// sharers are the shares of n workers, which know of each other.
type sharers struct {
	ids []string
	all []*shares
}

func newSharers(t *testing.T, limit string, n int) *sharers {
	t.Helper()
	s := &sharers{}
	for i := range n {
		s.ids = append(s.ids, fmt.Sprint("worker ", i))
	}
	for _, id := range s.ids {
		sh := newShares(fixed(t, limit), minAllowance, id, time.Now(), map[string]int64{})
		sh.goOn(time.Now(), s.ids)
		s.all = append(s.all, sh)
	}
	return s
}

// backlog lets each of the workers have more events of key than may go for so long, and returns when those went. They are
// asked at every step.
func (s *sharers) backlog(key string, d, step time.Duration) (times []time.Time) {
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(step) {
		for _, sh := range s.all {
			for sh.reserve(key, "", 1, 0).Verdict == limiter.Go {
				times = append(times, time.Now())
			}
		}
	}
	return times
}

func TestSharesAreTogetherWhatTheLimitIs(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		limit    string
		rate     float64
		burst    int
		workers  int
		idle, do time.Duration
	}{
		{"50/s burst 10", 50, 10, 3, 0, 10 * time.Second},
		{"50/s burst 10", 50, 10, 3, time.Minute, 10 * time.Second},
		{"50/s burst 10", 50, 10, 16, time.Minute, 10 * time.Second}, // more workers than tokens
		{"1/s burst 1", 1, 1, 3, time.Minute, time.Minute},
		{"2/m burst 2", 2. / 60, 2, 3, time.Hour, 10 * time.Minute},
		{"1000000/s burst 1000", 1e6, 1000, 3, time.Second, 5 * time.Millisecond},
		{"10/s leaky", 10, 1, 3, time.Minute, 5 * time.Second},
		{"5/s burst 5, 100/m burst 20", 100. / 60, 20, 4, 0, 2 * time.Minute},
		{"60/m window", 1, 60, 3, 10 * time.Minute, 2 * time.Minute},
		{"7/s burst 7", 7, 7, 1, time.Minute, time.Minute},
	} {
		t.Run(fmt.Sprint(test.limit, " ", test.workers, " ", test.idle), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSharers(t, test.limit, test.workers)
				time.Sleep(test.idle)
				for i := range 5 {
					times := s.backlog(fmt.Sprint("key", i), test.do, test.do/5000)
					if x := testenv.BoundExcess(times, test.rate, test.burst, time.Microsecond); x > 0.001 {
						t.Errorf("%g pushes more than the limit allows", x)
					}
					if want := test.rate * test.do.Seconds(); float64(len(times)) < 0.95*want-1 {
						t.Errorf("%d pushes, want about %g", len(times), want)
					}
				}
			})
		})
	}
}

func TestDecisionsByShareTellWhatIsLeftOfIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSharers(t, "10/s burst 10", 2)
		time.Sleep(2 * time.Second) // the share, 5 tokens, has accrued
		for _, want := range []int64{4, 3, 2} {
			if d := s.all[0].reserve("k", "", 1, 0); d.Verdict != limiter.Go || d.Remaining != want {
				t.Errorf("%+v, want it to go and %d to be left", d, want)
			}
		}
	})
}

func TestSlidingLimitIsDealtOut(t *testing.T) {
	t.Parallel()
	for _, workers := range []int{1, 3, 7} {
		synctest.Test(t, func(t *testing.T) {
			s := newSharers(t, "5/s sliding", workers)
			time.Sleep(time.Minute)
			times := s.backlog("k", 20*time.Second, time.Millisecond)
			for i := range times {
				if i >= 5 && times[i].Sub(times[i-5]) < time.Second {
					t.Fatalf("%d workers: 6 pushes within %s", workers, times[i].Sub(times[i-5]))
				}
			}
			if len(times) < 95 {
				t.Errorf("%d workers: %d pushes within 20 s, want about 100", workers, len(times))
			}
		})
	}
}

// All that a limit can bring may have been spent just before, at the latest by a slot that Redis had promised for a second later.
func TestSharesBeginAsIfAllHadJustBeenSpent(t *testing.T) {
	t.Parallel()
	for limit, want := range map[string]time.Duration{
		"1/2s burst 10":        2 * time.Second,
		"1/2s leaky":           2 * time.Second,
		"1000/d":               86400 * time.Millisecond,
		"10/2s window":         3200 * time.Millisecond,
		"4/2s sliding":         3500 * time.Millisecond,
		"1000/d sliding":       24*time.Hour + time.Second + 86400*time.Millisecond,
		"10/s, 100/10s window": 11100 * time.Millisecond,
	} {
		synctest.Test(t, func(t *testing.T) {
			s := newShares(fixed(t, limit), minAllowance, "a", time.Now(), map[string]int64{})
			s.goOn(time.Now(), []string{"a"})
			start := time.Now()
			if d := s.reserve("asked", "", 1, -1); d.Verdict != limiter.Park || d.Wait != want || d.Remaining != 0 {
				t.Errorf("%s: asked only: %+v, want a wait of %s", limit, d, want)
			}
			time.Sleep(want - time.Second - 1)
			if d := s.reserve("k", "", 1, time.Second); d.Verdict != limiter.Park || d.Wait != time.Second+1 {
				t.Errorf("%s: %+v, want it parked until its second begins", limit, d)
			}
			time.Sleep(time.Nanosecond)
			if d := s.reserve("k", "", 1, time.Second); d.Verdict != limiter.Hold || d.At.Sub(start) != want || d.Stale.Sub(d.At) != minAllowance {
				t.Errorf("%s: %+v, want it held until %s", limit, d, want)
			}
			if d := s.reserve("big", "", 1001, time.Second); d.Verdict != limiter.Park {
				t.Errorf("%s: more than the share ever holds: %+v, want it parked", limit, d)
			}
			time.Sleep(time.Second)
			if d := s.reserve("asked", "", 1, 0); d.Verdict != limiter.Go {
				t.Errorf("%s: asking took something: %+v", limit, d)
			}
		})
	}
}

// Of a sliding limit nobody knows when a worker that is gone spent its part.
func TestGreaterPartOfASlidingLimitBeginsAPeriodLater(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSharers(t, "6/2s sliding", 2)
		time.Sleep(time.Minute)
		times := s.backlog("k", 10*time.Second, time.Millisecond)
		s.all[0].share(time.Now(), s.ids[:1])
		s.all = s.all[:1]
		before := len(times)
		times = append(times, s.backlog("k", 10*time.Second, time.Millisecond)...)
		for i := range times {
			if i >= 6 && times[i].Sub(times[i-6]) < 2*time.Second {
				t.Fatalf("7 pushes within %s", times[i].Sub(times[i-6]))
			}
		}
		if n := len(times) - before; n < 18 || n > 21 {
			t.Errorf("%d pushes in 10 s, of which the first three bring nothing, want about 21", n)
		}
	})
}

func TestSharesBeginEmptyAndWithWhatWasPromised(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newShares(fixed(t, "10/s burst 10"), minAllowance, "a", time.Now(), map[string]int64{"k": 5})
		s.goOn(time.Now(), []string{"a"})
		for key, want := range map[string]time.Duration{"k": 600 * time.Millisecond, "other": 100 * time.Millisecond} {
			start := time.Now()
			d := s.reserve(key, "", 1, time.Second)
			if d.Verdict != limiter.Hold || d.At.Sub(start) != want || d.Stale.Sub(d.At) != minAllowance {
				t.Errorf("%s: %+v, want it held for %s", key, d, want)
			}
		}
		if d := s.reserve("big", "", 11, time.Second); d.Verdict != limiter.Park {
			t.Errorf("more than the share ever holds: %+v, want it parked", d)
		}
		if d := s.reserve("asked", "", 1, -1); d.Verdict != limiter.Park {
			t.Errorf("only asked: %+v", d)
		}
		time.Sleep(100 * time.Millisecond)
		if d := s.reserve("asked", "", 1, 0); d.Verdict != limiter.Go {
			t.Errorf("asking took something: %+v", d)
		}
	})
}

// Workers come and go. One that comes back begins empty.
func TestSharesHoldWhileWorkersComeAndGo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSharers(t, "50/s burst 10", 5)
		random := rand.New(rand.NewPCG(1, 2))
		var times []time.Time
		before := 5
		for i := range 200 {
			n := 1 + random.IntN(5)
			live := s.ids[:n]
			for j, sh := range s.all[:n] {
				if j < before {
					sh.share(time.Now(), live)
				} else {
					sh.goOn(time.Now(), live)
				}
			}
			before = n
			part := &sharers{ids: live, all: s.all[:n]}
			times = append(times, part.backlog("k", time.Duration(random.IntN(300))*time.Millisecond, time.Millisecond)...)
			if i%10 == 0 {
				time.Sleep(time.Second)
			}
		}
		if x := testenv.BoundExcess(times, 50, 10, time.Microsecond); x > 0 {
			t.Errorf("%g pushes more than the limit allows", x)
		}
	})
}

func TestRestartedSharesHaveAccruedNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newShares(fixed(t, "10/s burst 10"), minAllowance, "a", time.Now(), map[string]int64{})
		s.goOn(time.Now(), []string{"a"})
		time.Sleep(time.Minute)
		s.reserve("k", "", 1, 0)
		s.goOn(time.Now(), []string{"a"})
		for _, key := range []string{"k", "new"} {
			if d := s.reserve(key, "", 1, 0); d.Verdict != limiter.Park {
				t.Errorf("%s: %+v, want nothing there", key, d)
			}
		}
	})
}

func TestOwedIsWhatTheBucketsInRedisMustNotHold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newShares(fixed(t, "10/s burst 10, 1000/d, 50/m sliding"), minAllowance, "a", time.Now(), map[string]int64{})
		s.goOn(time.Now(), []string{"a", "b"})
		time.Sleep(time.Hour) // shares of 5, 500 and 25
		s.reserve("early", "", 1, 0)
		time.Sleep(10 * time.Minute)
		s.reserve("held", "", 1, 0)
		s.reserve("none", "", 100, 0)
		for range 3 {
			s.reserve("busy", "", 1, 0)
			time.Sleep(2400 * time.Millisecond) // as far apart as the sliding limit has them
		}
		s.reserve("now", "", 1, 0)
		for i := range 2 {
			debts, spent := s.owed()
			got := map[string][]int64{}
			for _, d := range debts {
				got[d.key] = d.tokens
			}
			want := map[string][]int64{"early": {0, 1, 1}, "busy": {0, 3, 3}, "held": {0, 1, 1}, "now": {1, 1, 1}}
			if i == 1 {
				want = map[string][]int64{}
			}
			if fmt.Sprint(got) != fmt.Sprint(want) || spent != int64(6*(1-i)) {
				t.Errorf("time %d: owes %v of %d, want %v", i+1, got, spent, want)
			}
			s.paid()
		}
	})
}

// A worker that returns after another owes what it owed when Redis began to rule for that one: since then the tokens accrue
// there.
func TestOwedTokensDontComeBackOnceTheSharesRest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newShares(fixed(t, "10/s burst 10"), minAllowance, "a", time.Now(), map[string]int64{})
		s.goOn(time.Now(), []string{"a"})
		time.Sleep(time.Second)
		for range 6 {
			s.reserve("k", "", 1, 0)
		}
		time.Sleep(100 * time.Millisecond)
		s.rest(time.Now())
		time.Sleep(400 * time.Millisecond)
		for i := range 2 { // the first charge fails
			if debts, _ := s.owed(); len(debts) != 1 || debts[0].key != "k" || debts[0].tokens[0] != 5 {
				t.Errorf("time %d: owes %v, want the 5 of 6 that hadn't come back", i, debts)
			}
		}
		s.paid()
		if debts, _ := s.owed(); len(debts) > 0 {
			t.Errorf("owes %v after it has paid", debts)
		}
	})
}

func TestPromisesAreRememberedUntilTheirTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var p promised
		start := time.Now()
		for i := range 10 {
			p.add("k", start.Add(time.Duration(i)*100*time.Millisecond), 2)
		}
		time.Sleep(450 * time.Millisecond)
		if got := p.after(time.Now()); got["k"] != 10 {
			t.Errorf("%v, want those of the five later slots", got)
		}
		p.add("other", time.Now(), 1)
		if len(p.slots) != 6 {
			t.Errorf("%d slots are remembered, want those that are not over", len(p.slots))
		}
	})
}

func TestKeysOfFullSharesAreForgotten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newShares(fixed(t, "10/s burst 10"), minAllowance, "a", time.Now(), map[string]int64{})
		s.goOn(time.Now(), []string{"a"})
		for i := range 100_000 {
			s.reserve(fmt.Sprint(i), "", 1, 0)
			time.Sleep(time.Millisecond)
		}
		if n := len(s.keys); n > 5000 {
			t.Errorf("%d keys are remembered, want about those of the last second", n)
		}
	})
}

// What a sliding limit's tokens were spent for counts for its whole period, however soon the next may go.
func TestSpentTokensOfASlidingLimitAreOwedForItsPeriod(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newShares(fixed(t, "5/m sliding"), minAllowance, "a", time.Now(), map[string]int64{})
		s.goOn(time.Now(), []string{"a"})
		time.Sleep(75 * time.Second) // for a minute there is nothing
		s.reserve("k", "", 1, 0)
		time.Sleep(30 * time.Second)
		for i := range 1000 {
			s.reserve(fmt.Sprint(i), "", 1, -1) // each looks for keys to be forgotten
		}
		if debts, _ := s.owed(); len(debts) != 1 || debts[0].key != "k" {
			t.Errorf("owes %v, want the token of k", debts)
		}
	})
}

// Each key's first worker is another, and all agree on it.
func TestWorkersDrawLotsEvenly(t *testing.T) {
	t.Parallel()
	s := newSharers(t, "1/s burst 1", 3)
	counts := make([]int, 3)
	for i := range 3000 {
		key := fmt.Sprint("user", i)
		var has []int
		for w, sh := range s.all {
			if sh.parts(key, countedBy(sh.limits.Resolve(key, "").Limits), 0)[0].burst > 0 {
				has = append(has, w)
			}
		}
		if len(has) != 1 {
			t.Fatalf("%s: workers %v have the token", key, has)
		}
		counts[has[0]]++
	}
	if slices.Min(counts) < 900 {
		t.Errorf("the workers have the tokens of %v keys", counts)
	}
}

// Limits change while Redis is away, too: a change gives no tokens, and takes none that the new limit could hold.
func TestSharesFollowTheLimitsOfTheirKey(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		limits := &keyLimits{t: t, keys: map[string]*limiter.Ruling{}, tiers: map[string]*limiter.Ruling{}}
		limits.setAll("10/s burst 10")
		limits.set("slow", "1/s burst 1")
		limits.setTier("pro", "20/s burst 20")
		s := newShares(limits, minAllowance, "a", time.Now(), map[string]int64{})
		s.goOn(time.Now(), []string{"a"})
		taken := func(key, tier string) (n int) {
			for s.reserve(key, tier, 1, 0).Verdict == limiter.Go {
				n++
			}
			return n
		}
		time.Sleep(time.Minute)
		for key, want := range map[string]int{"slow": 1, "k": 10} {
			if n := taken(key, ""); n != want {
				t.Errorf("%s: %d go, want %d", key, n, want)
			}
		}
		if n := taken("other", "pro"); n != 20 {
			t.Errorf("%d of a tier go, want 20", n)
		}
		limits.setAll("100/s burst 100")
		if n := taken("k", ""); n != 0 {
			t.Errorf("%d go because the limit was raised", n)
		}
		time.Sleep(500 * time.Millisecond)
		if n := taken("k", ""); n < 49 || n > 50 {
			t.Errorf("%d go half a second later, want 50", n)
		}
		time.Sleep(time.Minute)
		s.reserve("k", "", 1, 0)
		limits.setAll("100/s burst 7, 50/m")
		if n := taken("k", ""); n != 0 {
			t.Errorf("%d go by a limit that nobody knows for how long it wasn't used", n)
		}
		time.Sleep(time.Minute)
		if n := taken("k", ""); n != 7 {
			t.Errorf("%d go, want the burst, 7", n)
		}
		debts, _ := s.owed()
		for _, d := range debts {
			if len(d.tokens) != len(d.ruling.Limits) {
				t.Errorf("%s owes %v by %v", d.key, d.tokens, d.ruling.Limits)
			}
		}
	})
}
