package pipeline

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// wayward is a rig whose destination can go away, and whose probes come at exactly their latest.
type wayward struct {
	*rig
	away atomic.Bool
	says error
}

func newWayward(r *rig) *wayward {
	o := &wayward{rig: r, says: errStatus503}
	r.index.fallback = limit{every: time.Millisecond, burst: 100}
	r.sink.answer = func(string, *Event) answer {
		if o.away.Load() {
			return answer{takes: time.Millisecond, err: o.says}
		}
		return answer{takes: time.Millisecond}
	}
	return o
}

func exactly(w *Worker) { w.destination.draw = func() float64 { return 1 } }

// load publishes an event of each of 40 keys, one every 10 ms.
func (o *wayward) load(d time.Duration) {
	for i := range int(d / (10 * time.Millisecond)) {
		o.publish(fmt.Sprint("key", i%40), 1)
		pass(10 * time.Millisecond)
	}
}

// since lists how long after a moment all pushes started.
func (o *wayward) since(moment time.Time) (list []time.Duration) {
	o.sink.mu.Lock()
	defer o.sink.mu.Unlock()
	for _, s := range o.sink.starts {
		if d := s.at.Sub(moment); d >= 0 {
			list = append(list, d)
		}
	}
	return list
}

func (o *wayward) inLanes() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.bodies)
}

func TestDestinationThatIsAwayGetsFewProbesAndEventsStayInTheSource(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, r *rig) {
		o := newWayward(r)
		stop := r.start(exactly)
		o.load(time.Second)
		o.away.Store(true)
		left := time.Now()
		for i := range awayKeys {
			o.publish(fmt.Sprint("first", i), 1)
		}
		pass(2 * time.Millisecond)
		o.load(20 * time.Second)
		if _, away := r.workers[0].DestinationAway(); !away {
			t.Error("the destination isn't known to be away")
		}
		// The pushes of five keys; then probes, each 1 ms long, with events of the source.
		want := make([]time.Duration, awayKeys)
		at := time.Millisecond
		for wait := firstProbe; at+wait < 20*time.Second; wait *= 2 {
			want = append(want, at+wait)
			at += wait + time.Millisecond
		}
		wantTimes(t, "pushes while the destination is away", o.since(left), want...)
		if n := o.inLanes(); n > len(want) {
			t.Errorf("%d events were parked because the destination is away, want only those that were pushed", n)
		}
		for key, n := range r.attempts() {
			if n > 3 {
				t.Errorf("event %d was pushed %d times", key, n)
			}
		}
		o.away.Store(false)
		for at := time.Now(); ; pass(10 * time.Millisecond) {
			if _, away := r.workers[0].DestinationAway(); !away {
				break
			}
			if time.Since(at) > longestProbe {
				t.Fatal("no probe found the destination back")
			}
		}
		pass(time.Second)
		r.wantRest(t)
		r.wantLogged(t, "the destination is away for several keys in a row; their events stay in the source", "the destination answers again")
		_ = stop()
	})
}

// attempts are the pushes of each event.
func (r *rig) attempts() map[uint64]int {
	r.sink.mu.Lock()
	defer r.sink.mu.Unlock()
	n := map[uint64]int{}
	for _, s := range r.sink.starts {
		n[s.src]++
	}
	return n
}

// wantLogged fails unless each text was logged exactly once.
func (r *rig) wantLogged(t *testing.T, texts ...string) {
	t.Helper()
	r.log.mu.Lock()
	defer r.log.mu.Unlock()
	for _, text := range texts {
		if n := r.log.lines[text]; n != 1 {
			t.Errorf("%q was logged %d times, want once", text, n)
		}
	}
}

func TestWhatHasNotStartedGoesBackWithoutAnAttemptWhenTheDestinationGoesAway(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, r *rig) {
		o := newWayward(r)
		r.index.limits["held"] = limit{500 * time.Millisecond, 1}
		r.index.limits["leased"] = limit{300 * time.Millisecond, 1}
		stop := r.start(exactly)
		r.publish("held", 2)
		r.park("leased", 3)
		pass(100 * time.Millisecond)
		if n := r.count("held"); n != 1 {
			t.Fatalf("%d events are held, want 1", n)
		}
		o.away.Store(true)
		for i := range awayKeys {
			r.publish(fmt.Sprint("key", i), 1)
		}
		pass(2 * time.Millisecond)
		if n := r.count("held"); n != 0 {
			t.Errorf("%d events are still held", n)
		}
		if left := r.index.left(); !slices.Contains(left, "index of leased: 2 wait, 0 leased") || strings.Contains(fmt.Sprint(left), "lease of") {
			t.Errorf("in the index: %v, want the two of the lane, and no lease", left)
		}
		r.index.mu.Lock()
		for _, e := range r.index.of("leased").lane {
			if e.Attempt != 0 {
				t.Errorf("event %d went back to its lane with attempt %d", e.Seq, e.Attempt)
			}
		}
		for i := range awayKeys {
			for _, e := range r.index.of(fmt.Sprint("key", i)).lane {
				if e.Attempt != 1 {
					t.Errorf("an event whose push failed waits with attempt %d, want 1", e.Attempt)
				}
			}
		}
		r.index.mu.Unlock()
		o.away.Store(false)
		pass(3 * time.Second)
		r.wantRest(t)
		_ = stop()
	})
}

func TestDeadReceiversOfSomeKeysStopNobodyElse(t *testing.T) {
	for name, dead := range map[string]int{"one key": 1, "several keys": 10} {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, r *rig) {
				r.index.fallback = limit{every: time.Millisecond, burst: 100}
				r.sink.answer = func(key string, _ *Event) answer {
					if strings.HasPrefix(key, "dead") {
						return answer{takes: 20 * time.Millisecond, err: Unavailable(fmt.Errorf("no answer"))}
					}
					return answer{}
				}
				stop, begin := r.start(), time.Now()
				var published []time.Duration
				for i := range 1000 {
					r.publish(fmt.Sprint("dead", i%dead), 1)
					r.publish("well", 1)
					published = append(published, time.Since(begin))
					pass(10 * time.Millisecond)
				}
				wantTimes(t, "pushes of a key that is well", r.sink.after("well", begin), published...)
				r.wantNotLogged(t, "the destination is away for several keys in a row; their events stay in the source")
				_ = stop()
			})
		})
	}
}

func (r *rig) wantNotLogged(t *testing.T, text string) {
	t.Helper()
	r.log.mu.Lock()
	defer r.log.mu.Unlock()
	if n := r.log.lines[text]; n != 0 {
		t.Errorf("%q was logged %d times, want never", text, n)
	}
}

// At night nobody but keys whose receivers are dead is pushed to: that looks like a destination that is away.
func TestFirstEventOfAKeyThatIsWellDoesNotWaitForTheLanesOfDeadOnes(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, r *rig) {
		r.index.fallback = limit{every: time.Millisecond, burst: 100}
		r.sink.answer = func(key string, _ *Event) answer {
			if strings.HasPrefix(key, "dead") {
				return answer{err: RetryAfter(errStatus503, time.Second)}
			}
			return answer{}
		}
		stop := r.start(exactly)
		pass(time.Millisecond)
		for i := range 2 * awayKeys {
			r.park(fmt.Sprint("dead", i), 3)
		}
		pass(5 * time.Minute)
		if _, away := r.workers[0].DestinationAway(); !away {
			t.Fatal("the destination isn't taken to be away")
		}
		begin := time.Now()
		r.publish("well", 1)
		pass(time.Second)
		wantTimes(t, "pushes of a key that is well", r.sink.after("well", begin), 0)
		_ = stop()
	})
}

func TestDestinationIsLeftAloneForAsLongAsAllItsKeysWereAskedTo(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, r *rig) {
		o := newWayward(r)
		o.says = RetryAfter(errStatus503, 2*time.Minute)
		stop := r.start(exactly)
		pass(time.Millisecond)
		o.away.Store(true)
		begin := time.Now()
		o.load(time.Second)
		pass(121 * time.Second)
		want := append(every(10*time.Millisecond, awayKeys), 40*time.Millisecond+time.Millisecond+121*time.Second)
		wantTimes(t, "pushes", o.since(begin)[:awayKeys+1], want...)
		o.away.Store(false)
		pass(10 * time.Minute)
		r.wantRest(t)
		_ = stop()
	})
}

func TestNothingIsDeadLetteredForItsWaitWhileTheDestinationIsAway(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, r *rig) {
		o := newWayward(r)
		r.cfg.MaxWait, r.index.maxWait = 5*time.Second, 5*time.Second
		r.index.fallback = limit{100 * time.Millisecond, 1}
		stop := r.start(exactly)
		pass(time.Millisecond)
		o.away.Store(true)
		for range 20 {
			for i := range 40 {
				r.publish(fmt.Sprint("key", i), 3) // well within the limit
			}
			pass(30 * time.Second)
		}
		o.away.Store(false)
		for range 100 {
			if pass(5 * time.Second); len(r.rest()) == 0 {
				break
			}
		}
		r.wantRest(t)
		if n := r.count("delivered"); n != 2400 || len(r.dead) != 0 {
			t.Errorf("%d of 2400 delivered, %d dead-lettered", n, len(r.dead))
		}
		_ = stop()
	})
}

func TestEventThatWouldWaitTooLongStaysInTheSourceWhileTheDestinationIsAway(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, r *rig) {
		o := newWayward(r)
		r.cfg.MaxWait, r.index.maxWait = 5*time.Second, 5*time.Second
		r.index.limits["slow"] = limit{time.Minute, 1}
		stop := r.start(exactly)
		pass(time.Millisecond)
		r.publish("slow", 1)
		pass(time.Millisecond)
		o.away.Store(true)
		for i := range awayKeys {
			r.publish(fmt.Sprint("key", i), 1)
		}
		pass(2 * time.Millisecond)
		r.publish("slow", 1)
		pass(10 * time.Second)
		if len(r.dead) != 0 {
			t.Errorf("dead-lettered while the destination is away: %v", r.dead)
		}
		_ = stop()
	})
}

func TestLaneWithABacklogProbesWithOneEvent(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, r *rig) {
		o := newWayward(r)
		o.away.Store(true)
		stop := r.start(exactly)
		pass(time.Millisecond)
		for i := range awayKeys {
			r.publish(fmt.Sprint("key", i), 1)
		}
		pass(2 * time.Millisecond)
		for i := range 5 {
			r.parkWithoutWorker(fmt.Sprint("backlog", i), 30)
		}
		before := len(o.since(time.Time{}))
		pass(20 * time.Second)
		if n := len(o.since(time.Time{})) - before; n < 5 || n > 10 {
			t.Errorf("%d pushes from lanes within 20s, want one a probe", n)
		}
		o.away.Store(false)
		pass(longestProbe)
		r.wantRest(t)
		_ = stop()
	})
}

func TestLanesProbeADestinationWhenTheSourceIsEmpty(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, r *rig) {
		o := newWayward(r)
		stop := r.start(exactly)
		pass(time.Millisecond)
		o.away.Store(true)
		for i := range 3 * awayKeys {
			r.publish(fmt.Sprint("key", i), 20)
		}
		pass(time.Hour)
		attempts := 0
		for _, n := range r.attempts() {
			attempts += n
		}
		if most := 300 + 2*int(time.Hour/longestProbe) + 20; attempts > most || attempts < int(time.Hour/longestProbe) {
			t.Errorf("%d attempts within an hour, want some and at most %d", attempts, most)
		}
		o.away.Store(false)
		for at := time.Now(); ; pass(10 * time.Millisecond) {
			if _, away := r.workers[0].DestinationAway(); !away {
				break
			}
			if time.Since(at) > longestProbe {
				t.Fatal("no probe found the destination back")
			}
		}
		pass(time.Second)
		r.wantRest(t)
		_ = stop()
	})
}

func TestStopWhileTheDestinationIsAwayHandsBackAtOnce(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, r *rig) {
		o := newWayward(r)
		stop := r.start(exactly)
		pass(time.Millisecond)
		o.away.Store(true)
		o.load(5 * time.Second)
		stopped := time.Now()
		if err := stop(); err != nil {
			t.Error(err)
		}
		if took := time.Since(stopped); took > 0 {
			t.Errorf("the stop took %s", took)
		}
		o.away.Store(false)
		again := r.start()
		pass(10 * time.Second)
		synctest.Wait()
		r.wantRest(t)
		_ = again()
	})
}
