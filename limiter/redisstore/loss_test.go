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

// backlogged is an outage in which a key has a backlog all the time: with Redis, by the shares of some workers, and with Redis again.
type backlogged struct {
	*rig
	class   limiter.Class
	period  int64
	workers int
	random  *rand.Rand
	pushes  []int64 // us
}

// byRedis asks for all that can be had, from a time to another.
func (o *backlogged) byRedis(from, to int64, horizon int64) {
	for now := from; now <= to; now += o.period/23 + o.random.Int64N(o.period/23) {
		o.at(now)
		a := o.ask("k", 200, horizon)
		for range a.granted {
			o.pushes = append(o.pushes, now)
		}
		for _, wait := range a.slots {
			o.pushes = append(o.pushes, now+integer(wait))
		}
	}
}

// byShares goes on without Redis, for as long as Redis is away. Half of the time a worker more is there.
func (o *backlogged) byShares(t *testing.T, from, to int64) (debts [][]debt) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		s := &sharers{}
		for i := range o.workers {
			s.ids = append(s.ids, fmt.Sprint("worker ", i))
		}
		resolver := limiter.Fixed(o.rule("k", "").ruling.Limits)
		for _, id := range s.ids {
			sh := newShares(resolver, minAllowance, id, start, map[string]int64{})
			sh.goOn(start, s.ids)
			s.all = append(s.all, sh)
		}
		if o.random.IntN(2) == 0 { // a backlog begins only now
			time.Sleep(micros(o.random.Int64N(to - from)))
		}
		leaves := start.Add(micros((to - from) / 2))
		live := s.all
		for time.Since(start) < micros(to-from) {
			if len(live) > 1 && !time.Now().Before(leaves) {
				live = live[:len(live)-1]
				for _, sh := range live {
					sh.share(time.Now(), s.ids[:len(live)])
				}
				s.all[len(live)].rest(time.Now())
				leaves = start.Add(time.Hour)
			}
			for i, sh := range live {
				horizon := time.Second * time.Duration(o.random.IntN(4)/3)
				if i > 0 && time.Until(leaves) < time.Second { // who leaves hands back what it holds
					horizon = 0
				}
				for {
					d := sh.reserve("k", "", 1, horizon)
					if d.Verdict == limiter.Park {
						break
					}
					o.pushes = append(o.pushes, from+max(0, d.At.Sub(start).Microseconds()))
				}
			}
			time.Sleep(micros(o.period/100 + o.random.Int64N(o.period/100)))
		}
		for _, sh := range s.all {
			sh.rest(time.Now())
			owed, _ := sh.owed()
			debts = append(debts, owed)
		}
	})
	return debts
}

// excess is by how many pushes the fullest time was too full.
func (o *backlogged) excess() int64 {
	slices.Sort(o.pushes)
	c, worst := o.class, int64(0)
	for i, first := range o.pushes {
		for j := i; j < len(o.pushes); j++ {
			took, n := o.pushes[j]-first, int64(j-i+1)
			switch c.Kind {
			case limiter.Sliding:
				if took < c.Den {
					worst = max(worst, n-c.Num)
				}
			case limiter.Window:
				worst = max(worst, n-c.Burst-c.Num*(took/c.Den+1))
			default:
				worst = max(worst, n-c.Burst-(c.Num*took+c.Num)/c.Den)
			}
		}
	}
	return worst
}

// A limit holds over an outage, whatever was spent before it: what the workers don't know counts as spent, and what they spend is
// charged as if it had been spent last.
func TestOutageKeepsTheLimitsOfEveryKind(t *testing.T) {
	t.Parallel()
	for _, limit := range []string{
		"20/20s sliding", "6/2s sliding", "10/4s window", "10/4s burst 25 window", "12/500ms window", "12/4s burst 30", "5/4s", "3/2s leaky",
	} {
		t.Run(limit, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(8) {
				r := newRig(t, limit)
				class, err := r.rule("k", "").ruling.Limits[0].Class()
				if err != nil {
					t.Fatal(err)
				}
				period := r.rule("k", "").ruling.Limits[0].Period.Microseconds()
				o := &backlogged{rig: r, class: class, period: period, workers: 1 + int(seed%3), random: rand.New(rand.NewPCG(seed, 7))}
				away := 2*period + o.random.Int64N(period)
				back := away + o.random.Int64N(4*period) + 1_100_000
				horizon := o.random.Int64N(2) * 1_000_000
				if class.Kind == limiter.Bucket || class.Kind == limiter.Leaky { // there each worker knows of its own promises, and only it
					horizon = 0
				}
				o.byRedis(0, away, horizon)
				debts := o.byShares(t, away, back)
				r.at(back)
				if seed%4 == 3 { // it comes back without its data
					r.rdb.FlushAll(t.Context())
					r.passed(true)
					if err := r.Open(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				for _, owed := range debts {
					if err := r.charge(owed); err != nil {
						t.Fatal(err)
					}
				}
				before := len(o.pushes)
				o.byRedis(back, back+4*period, 0)
				if x := o.excess(); x > 0 {
					t.Errorf("seed %d, %d workers, away from %d to %d us: %d pushes too many", seed, o.workers, away, back, x)
				}
				if len(o.pushes) == before {
					t.Errorf("seed %d: nothing goes after the return", seed)
				}
			}
		})
	}
}
