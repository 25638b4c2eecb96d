package pipeline

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"sluice/limiter"
)

func TestOutageOfAnyCallLosesNothingAndIsLoggedOnce(t *testing.T) {
	for _, call := range []string{"reserve", "append", "park", "claim", "lease", "settle", "read", "delete", "bury"} {
		t.Run(call, func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, r *rig) {
				r.sink.answer = func(_ string, ev *Event) answer {
					if ev.Source.Seq%10 == 0 {
						return answer{err: errStatus410}
					}
					return answer{takes: 20 * time.Millisecond}
				}
				stop, begin := r.start(), time.Now()
				keys := func(n int) {
					for i := range 10 {
						r.publish(fmt.Sprint("key", i), n)
					}
				}
				keys(20)
				pass(time.Second)
				r.failing(call)
				for range 10 {
					keys(1)
					pass(500 * time.Millisecond)
				}
				calls := r.index.all()
				r.failing()
				pass(15 * time.Second)
				r.wantRest(t)
				if n := r.count("delivered") + r.count("dead_lettered"); n != 300 {
					t.Errorf("%d events delivered or dead-lettered, want 300", n)
				}
				if n, list := r.log.about(); n > 2 {
					t.Errorf("%d log lines about an outage of 5s, want 2:\n%s", n, list)
				}
				if calls > 5000 {
					t.Errorf("%d calls of the index within 6s", calls)
				}
				for i := range 10 {
					r.checkBound(t, fmt.Sprint("key", i), 1)
				}
				for src, at := range r.acked {
					if at.Before(begin) {
						t.Errorf("event %d acked too early", src)
					}
				}
				_ = stop()
			})
		})
	}
}

// limiterFor lets all go at once, except keys for which it fails.
type limiterFor func(key string) error

func (l limiterFor) Reserve(_ context.Context, key, _ string, _ int64, _ time.Duration) (limiter.Decision, error) {
	return limiter.Decision{Verdict: limiter.Go, Stale: time.Now().Add(time.Hour)}, l(key)
}

func TestLimiterThatFailsForOneKeyHoldsNoSlots(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, r *rig) {
		r.cfg.Concurrency = 8
		r.limiter = limiterFor(func(key string) error {
			if strings.HasPrefix(key, "bad") {
				return errFault
			}
			return nil
		})
		stop, begin := r.start(), time.Now()
		for i := range 20 {
			r.publish(fmt.Sprint("bad", i), 1)
		}
		pass(time.Second)
		r.publish("good", 1)
		pass(time.Second)
		wantTimes(t, "pushes of a key whose limiter works", r.sink.after("good", begin), time.Second)
		_ = stop()
	})
}

func TestCallThatFailsNowAndThenIsNotLoggedEachTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var tr troubles
		counter := &logCounter{}
		log := slog.New(counter)
		for range 3000 { // 30 s
			tr.see(log, "park", errFault)
			tr.over(log, "park")
			time.Sleep(10 * time.Millisecond)
		}
		if n, list := counter.about(); n != 6 {
			t.Errorf("%d lines about a call that fails now and then for 30s, want 2 in 10s:\n%s", n, list)
		}
		for i := range 3000 {
			tr.see(log, "lease", fmt.Errorf("error %d", i))
			time.Sleep(10 * time.Millisecond)
		}
		if n, list := counter.about(); n != 6+30 {
			t.Errorf("%d lines, want one a second for texts that differ:\n%s", n, list)
		}
	})
}

// answerOf draws what a push meets, always the same for an event and its attempt.
func answerOf(seed uint64, ev *Event) answer {
	r := rand.New(rand.NewPCG(seed, ev.Source.Seq*1000+uint64(ev.Attempt)))
	a := answer{takes: time.Duration(r.IntN(400)) * time.Millisecond}
	switch n := r.IntN(100); {
	case n < 10:
		a.err = errStatus500
	case n < 15:
		a.err = errStatus503
	case n < 17:
		a.err = RetryAfter(errors.New("status 429"), 2*time.Second)
	case n < 20:
		a.err = errStatus410
	case n < 22:
		a.panic = true
	}
	return a
}

func TestNoEventIsLostWhateverFails(t *testing.T) {
	for seed := range uint64(12) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, r *rig) { conserve(t, r, seed) })
		})
	}
}

// conserve publishes events of a few keys to two workers, of which one stops midway, while receivers and calls fail at
// random. Seeds that are a multiple of three go without failing calls: then nothing may be pushed twice either.
func conserve(t *testing.T, r *rig, seed uint64) {
	const events = 300
	rng, faulty := rand.New(rand.NewPCG(seed, 1)), seed%3 > 0
	r.cfg.Concurrency = 16
	r.cfg.Retry = Retry{For: time.Hour, Max: 5, Base: 200 * time.Millisecond, Cap: 5 * time.Second}
	r.cfg.MaxWait, r.cfg.Drop = 25*time.Second, seed%2 == 0
	r.index.maxWait, r.mayDrop = r.cfg.MaxWait, r.cfg.Drop
	r.index.took = time.Millisecond
	r.sink.answer = func(_ string, ev *Event) answer { return answerOf(seed, ev) }
	keys := []string{"slow", "quick", "burst", "steady"}
	r.index.limits = map[string]limit{
		"slow": {500 * time.Millisecond, 1}, "quick": {5 * time.Millisecond, 5}, "burst": {100 * time.Millisecond, 20},
	}
	if faulty {
		var mu sync.Mutex
		draws := rand.New(rand.NewPCG(seed, 2))
		r.faults = func(string) fault {
			mu.Lock()
			defer mu.Unlock()
			switch n := draws.IntN(100); {
			case n < 4:
				return notDone
			case n < 7:
				return replyLost
			}
			return noFault
		}
		r.index.fault = r.faults
	}

	stop, other := r.start(), r.start()
	for i := range events {
		r.publish(keys[rng.IntN(len(keys))], 1)
		if rng.IntN(3) == 0 {
			pass(time.Duration(rng.IntN(100)) * time.Millisecond)
		}
		if i == events/2 {
			if err := stop(); err != nil {
				t.Error(err)
			}
		}
	}
	for range 200 {
		if pass(5 * time.Second); len(r.rest()) == 0 {
			break
		}
	}
	_ = other()
	r.wantRest(t)

	dropped := r.count("dropped")
	for src := uint64(1); src <= events; src++ {
		times, dead := r.sink.times(src), r.dead[src]
		switch {
		case r.acked[src].IsZero():
			t.Errorf("event %d was never acked", src)
		case times == 0 && dead == "":
			dropped--
		case times+min(1, len(dead)) != 1 && !faulty:
			t.Errorf("event %d was delivered %d times, dead letter %q, although no call failed", src, times, dead)
		}
	}
	if dropped != 0 {
		t.Errorf("%d more events counted as dropped than are missing elsewhere", dropped)
	}
	ends := r.count("delivered") + r.count("dead_lettered") + r.count("dropped")
	if ends < events || !faulty && ends != events {
		t.Errorf("%d ends counted for %d events", ends, events)
	}
	for _, key := range keys {
		r.checkBound(t, key, 1)
	}
	if r.count("held") != 0 || r.count("in flight") != 0 {
		t.Errorf("at rest %d events are counted as held, %d as in flight", r.count("held"), r.count("in flight"))
	}
	for _, w := range r.workers {
		if w.slots.free != r.cfg.Concurrency || (w.promises.held+w.promises.leased) != 0 || len(w.lanes.drained) != 0 {
			t.Errorf("at rest %d slots are free, %d events promised, %d lanes drained",
				w.slots.free, (w.promises.held + w.promises.leased), len(w.lanes.drained))
		}
	}
}
