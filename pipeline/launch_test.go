package pipeline

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestEventsWhoseTimeHasComeGoBeforeNewOnes(t *testing.T) {
	for _, way := range []string{"held", "leased"} {
		t.Run(way, func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, r *rig) {
				r.cfg.Concurrency = 1
				r.index.allowance = time.Second
				r.sink.answer = func(key string, _ *Event) answer {
					return answer{takes: map[string]time.Duration{"first": 500 * time.Millisecond}[key]}
				}
				r.index.of("due").full = time.Now().Add(200 * time.Millisecond)
				stop, begin := r.start(), time.Now()
				if way == "held" {
					r.publish("due", 1)
				} else {
					r.park("due", 1)
				}
				pass(100 * time.Millisecond)
				r.publish("first", 1)
				synctest.Wait()
				r.publish("new", 1)
				pass(time.Second)
				if r.sink.starts[1].key != "due" || r.sink.starts[2].key != "new" {
					t.Errorf("pushes: %+v, want first, due and new", r.sink.starts)
				}
				wantTimes(t, "push of the event that is due", r.sink.after("due", begin), 600*time.Millisecond)
				_ = stop()
			})
		})
	}
}

func TestHeldEventOfAKeyThatCoolsIsParked(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, r *rig) {
		stop := r.start()
		r.publish("a", 2)
		pass(50 * time.Millisecond)
		r.workers[0].Cooling("a", time.Minute)
		pass(time.Second)
		if n := len(r.sink.of("a")); n != 1 {
			t.Errorf("%d pushes of a key that cools, want only the one before", n)
		}
		if n := r.count("throttled cooling"); n != 1 {
			t.Errorf("%d events throttled because their key cools, want 1", n)
		}
		_ = stop()
	})
}

func TestEventsBehindAMissedSlotMoveUpInOrder(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, r *rig) {
		r.parkWithoutWorker("a", 5)
		stop, begin := r.start(func(w *Worker) {
			w.slots.free = 0 // all are taken for 250 ms
			time.AfterFunc(250*time.Millisecond, w.slots.release)
		}), time.Now()
		pass(2 * time.Second)
		wantTimes(t, "pushes", r.sink.after("a", begin), ms(300, 400, 500, 600, 700)...)
		if !inOrder(r.sink.of("a")) {
			t.Error("events left their lane out of order")
		}
		for _, s := range r.sink.of("a") {
			if s.attempt != 1 {
				t.Errorf("event %d was pushed as attempt %d, want 1: being late costs none", s.src, s.attempt)
			}
		}
		if n := r.count("late"); n != 3 {
			t.Errorf("%d late tokens counted, want those of 0, 100 and 200 ms", n)
		}
		r.wantRest(t)
		_ = stop()
	})
}

func TestSlotPaysForEventsOfItsCostOnly(t *testing.T) {
	t.Parallel()
	q, now := newLaunches(), time.Now()
	for cost := range int64(3) {
		q.add(&leasedEvent{slot: slot{at: now, stale: now.Add(time.Duration(cost) * time.Second), cost: cost + 1}})
	}
	if _, missed, ok := q.slot(1, now.Add(time.Second)); ok || missed != 1 {
		t.Errorf("a slot that pays for 2 is given to an event that costs 1: %t, %d missed", ok, missed)
	}
	if s, missed, ok := q.slot(2, now.Add(time.Second)); !ok || missed != 0 || s.cost != 2 {
		t.Errorf("slot = %+v, %d, %t; want the one that pays for 2", s, missed, ok)
	}
}

func TestLaneHasOneLauncherAtATimeAndNoneTooFew(t *testing.T) {
	t.Parallel()
	const n = 20_000
	q, all := newLaunches(), make(chan uint64, n)
	var launching atomic.Int32
	var launchers sync.WaitGroup
	var launch func()
	launch = func() {
		for e := q.next(); e != nil; e = q.next() {
			if launching.Add(1) > 1 {
				t.Error("two launch events of one lane")
			}
			all <- e.Seq
			launching.Add(-1)
			if e.Seq%3 > 0 { // pushes it, as it were
				if q.passOn() {
					launchers.Go(launch)
				}
				return
			}
		}
	}
	for seq := range uint64(n) {
		if q.add(&leasedEvent{Entry: Entry{BodyID: BodyID{Seq: seq}}}) {
			launchers.Go(launch)
		}
	}
	launchers.Wait()
	close(all)
	want := uint64(0)
	for seq := range all {
		if seq != want {
			t.Fatalf("event %d was launched when it was the turn of %d", seq, want)
		}
		want++
	}
	if want != n {
		t.Errorf("%d of %d events were launched", want, n)
	}
}

func TestFailedEventKeepsItsAttemptsAndItsOwnTimeInTheIndex(t *testing.T) {
	for _, way := range []string{"direct", "lane"} {
		t.Run(way, func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, r *rig) {
				r.cfg.Retry.Base, r.cfg.Retry.Cap = 1000*time.Hour, 1000*time.Hour
				r.sink.answer = func(string, *Event) answer { return answer{err: errStatus500} }
				stop := r.start()
				if way == "direct" {
					r.publish("a", 1)
				} else {
					r.park("a", 1)
				}
				pass(time.Second)
				s := r.index.of("a")
				if len(s.retry) != 1 || len(s.lane) != 0 {
					t.Errorf("%d events wait for their own time and %d for their lane's, want 1 and 0", len(s.retry), len(s.lane))
				}
				for _, e := range s.retry {
					if e.Attempt != 1 || time.Since(e.First) > time.Second || time.Until(e.due) <= 0 {
						t.Errorf("in the index: %+v, want one attempt and a time to come", e)
					}
				}
				_ = stop()
			})
		})
	}
}

func TestAgeOfAnEventCountsFromItsFirstAttempt(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, r *rig) {
		r.cfg.Retry.For = time.Minute
		r.sink.answer = func(string, *Event) answer { return answer{err: errStatus503} }
		stop := r.start()
		r.publish("a", 1)
		pass(5 * time.Minute)
		r.wantRest(t)
		if got := r.dead[1]; got != Exhausted {
			t.Errorf("dead letter %q, want exhausted", got)
		}
		_ = stop()
	})
}

func TestEventsLeasedFromAReceiverThatIsAwayGoBackAtOnce(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, r *rig) {
		r.sink.answer = func(string, *Event) answer { return answer{err: RetryAfter(errStatus503, time.Minute)} }
		r.parkWithoutWorker("a", 10)
		stop := r.start()
		pass(time.Millisecond)
		s := r.index.of("a")
		if len(s.busy) != 0 || len(s.lane) != 10 || s.token != 0 {
			t.Errorf("%d events leased, %d waiting, lease %d; want 10 waiting, no lease", len(s.busy), len(s.lane), s.token)
		}
		if time.Until(s.closedUntil) < 59*time.Second || s.fails != 1 {
			t.Errorf("the key sleeps for %s after %d failures, want a minute and 1", time.Until(s.closedUntil), s.fails)
		}
		_ = stop()
	})
}

// The lane's next events are often being leased at the moment at which one finds no slot.
func TestEventThatFindsNoSlotIsNotOvertakenByTheNextLease(t *testing.T) {
	for seed := range uint64(20) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, r *rig) {
				random := rand.New(rand.NewPCG(seed, 0))
				r.index.limits["a"] = limit{every: 5 * time.Millisecond, burst: 20}
				r.index.took = time.Duration(1+random.IntN(30)) * time.Millisecond
				r.parkWithoutWorker("a", 300)
				stop := r.start(func(w *Worker) { go hogSlots(w, random, 2*time.Second) })
				pass(8 * time.Second)
				if !inOrder(r.sink.of("a")) {
					t.Error("events left their lane out of order")
				}
				if r.count("late") == 0 {
					t.Error("no slot was missed, so this shows nothing")
				}
				r.wantRest(t)
				_ = stop()
			})
		})
	}
}

// hogSlots takes all push slots again and again for some time.
func hogSlots(w *Worker, random *rand.Rand, d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); {
		time.Sleep(time.Duration(1+random.IntN(40)) * time.Millisecond)
		n := 0
		for ; n < w.cfg.Concurrency && w.slots.acquire(context.Background(), true) == nil; n++ {
		}
		time.Sleep(time.Duration(1+random.IntN(60)) * time.Millisecond)
		for range n {
			w.slots.release()
		}
	}
}
