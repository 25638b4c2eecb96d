package pipeline

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

var errSilence = Unanswered(fmt.Errorf("connection reset by peer"))

// poison answers all events but some, of which it says nothing. With reach it is there all the same.
func poison(r *rig, isPoison func(key string, ev *Event) bool) {
	r.index.fallback = limit{every: time.Millisecond, burst: 100}
	r.sink.answer = func(key string, ev *Event) answer {
		if isPoison(key, ev) {
			return answer{takes: time.Millisecond, err: errSilence}
		}
		return answer{takes: time.Millisecond}
	}
}

func TestEventThatGetsNoAnswerHoldsItsKeyUpForAMomentOnly(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, r *rig) {
		poison(r, func(_ string, ev *Event) bool { return ev.Source.Seq == 1 })
		stop, begin := r.start(), time.Now()
		r.publish("a", 30)
		pass(3 * time.Second)
		if n := r.count("delivered"); n != 29 {
			t.Errorf("%d of 29 events delivered within 3s", n)
		}
		r.publish("a", 1)
		pass(10 * time.Minute)
		r.publish("a", 1)
		pass(2 * time.Second)
		if n := r.count("delivered"); n != 31 {
			t.Errorf("%d of 31 events delivered", n)
		}
		tried := 0
		for _, s := range r.sink.of("a") {
			if s.src == 1 {
				tried++
			}
		}
		if tried < 5 || tried > 30 {
			t.Errorf("the event was tried %d times within %s, want several times at growing distances", tried, time.Since(begin))
		}
		_ = stop()
	})
}

// They may be of as many keys as make an absence.
func TestEventsThatGetNoAnswerStopNobodyElseWhileTheDestinationIsThere(t *testing.T) {
	for _, healthy := range []bool{true, false} {
		t.Run(fmt.Sprintf("healthy traffic %t", healthy), func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, r *rig) {
				poison(r, func(key string, _ *Event) bool { return strings.HasPrefix(key, "poison") })
				asked := 0
				r.reach = func(context.Context) error { asked++; return nil }
				stop, begin := r.start(exactly), time.Now()
				for i := range 4 * awayKeys {
					r.publish(fmt.Sprint("poison", i), 1)
				}
				var published []time.Duration
				for i := range 600 {
					if healthy || i%200 == 199 {
						r.publish("well", 1)
						published = append(published, time.Since(begin))
					}
					pass(time.Second)
				}
				wantTimes(t, "pushes of a key that is well", r.sink.after("well", begin), published...)
				r.wantNotLogged(t, "the destination is away for several keys in a row; their events stay in the source")
				if asked == 0 || asked > 8 {
					t.Errorf("it was asked %d times whether it is there, want a few", asked)
				}
				_ = stop()
			})
		})
	}
}

func TestDestinationThatIsSilentAndNotThereIsAway(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, r *rig) {
		o := newWayward(r)
		o.says = errSilence
		r.reach = func(context.Context) error {
			time.Sleep(time.Millisecond)
			if o.away.Load() {
				return errSilence
			}
			return nil
		}
		stop := r.start(exactly)
		o.load(time.Second)
		o.away.Store(true)
		left := time.Now()
		o.load(10 * time.Second)
		if _, away := r.workers[0].DestinationAway(); !away {
			t.Error("the destination isn't known to be away")
		}
		if n := len(o.since(left)); n > 20 {
			t.Errorf("%d pushes within 10s, want few", n)
		}
		o.away.Store(false)
		pass(longestProbe + time.Second)
		r.wantRest(t)
		_ = stop()
	})
}

// A key that failed while others were served can't tell that the destination is still away.
func TestEventOfASuspectKeyIsNoFailedProbe(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, r *rig) {
		o := newWayward(r)
		var poisoned atomic.Bool
		poisoned.Store(true)
		healthy := r.sink.answer
		r.sink.answer = func(key string, ev *Event) answer {
			if poisoned.Load() && strings.HasPrefix(key, "poison") {
				return answer{err: errSilence}
			}
			return healthy(key, ev)
		}
		stop := r.start(exactly)
		pass(time.Millisecond)
		for i := range 3 {
			r.publish(fmt.Sprint("poison", i), 1)
		}
		pass(time.Millisecond)
		o.load(time.Second) // answered: the three are suspect
		o.away.Store(true)
		for i := range awayKeys {
			r.publish(fmt.Sprint("key", i), 1)
		}
		pass(2 * time.Millisecond)
		if _, away := r.workers[0].DestinationAway(); !away {
			t.Fatal("the destination isn't known to be away")
		}
		o.away.Store(false)
		begin := time.Now()
		for i := range 3 { // they are the first to probe
			r.publish(fmt.Sprint("poison", i), 1)
		}
		r.publish("well", 1)
		pass(10 * time.Second)
		if after := r.sink.after("well", begin); len(after) != 1 || after[0] > 5*firstProbe {
			t.Errorf("a key that is well was served after %v, want within some probes of the first distance", after)
		}
		_ = stop()
	})
}
