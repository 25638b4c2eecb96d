package pipeline

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// withAWrongClock runs fn where this process' clock is an hour before all others, and where it is an hour behind.
func withAWrongClock(t *testing.T, fn func(t *testing.T, r *rig)) {
	for _, ahead := range []time.Duration{-time.Hour, time.Hour} {
		t.Run(fmt.Sprint("all others ", ahead), func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, r *rig) {
				r.index.ahead = ahead
				fn(t, r)
			})
		})
	}
}

func TestWorkerWithAWrongClockLetsEventsExpireInTime(t *testing.T) {
	withAWrongClock(t, func(t *testing.T, r *rig) {
		r.index.limits = map[string]limit{"a": {every: 500 * time.Millisecond, burst: 1}}
		r.mayDrop = true
		stop, begin := r.start(), time.Now()
		r.publish("a", 5, expiring("30m")) // direct, held and out of the lane
		synctest.Wait()
		r.publish("a", 3, expiring("2700ms"))                                                  // the first is in time, at 2.5 s
		r.publish("a", 1, expiring(r.index.Now().Add(time.Minute).UTC().Format(time.RFC3339))) // 3 s or soon after
		pass(10 * time.Second)
		wantTimes(t, "pushes", r.sink.after("a", begin)[:6], every(500*time.Millisecond, 6)...)
		if n := r.count("expired"); n != 2 || r.count("delivered") != 7 {
			t.Errorf("%d expired, %d delivered, want 2 and 7", n, r.count("delivered"))
		}
		for path, all := range r.latency {
			for _, d := range all {
				if d < 0 || d > 4*time.Second {
					t.Errorf("latency %s of an event on path %s", d, path)
				}
			}
		}
		r.wantRest(t)
		_ = stop()
	})
}

func TestWorkerWithAWrongClockRetriesForAsLongAsAnyOther(t *testing.T) {
	withAWrongClock(t, func(t *testing.T, r *rig) {
		r.cfg.Retry = Retry{For: 30 * time.Minute, Base: time.Minute, Cap: time.Minute}
		r.sink.answer = func(key string, ev *Event) answer {
			if r.index.Now().Sub(ev.First).Abs() > 40*time.Minute {
				t.Errorf("attempt %d of an event that others take to be tried since %s", ev.Attempt, ev.First)
			}
			if key == "never" || ev.Attempt < 3 {
				return answer{err: errStatus500}
			}
			return answer{}
		}
		stop, begin := r.start(), time.Now()
		r.publish("never", 1)
		r.publish("late", 1)
		pass(2 * time.Hour)
		if n := len(r.sink.of("late")); n != 3 {
			t.Errorf("%d attempts of what is delivered by the third", n)
		}
		tried := r.sink.after("never", begin)
		if last := tried[len(tried)-1]; last < 30*time.Minute || last > 31*time.Minute || r.dead[1] != Exhausted || len(r.dead) != 1 {
			t.Errorf("given up after %s, dead-lettered: %v; want after 30 to 31 min, for want of success, and nothing else", last, r.dead)
		}
		r.wantRest(t)
		_ = stop()
	})
}

func TestDestinationExcusesEventsThatCameWhileItWasAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &destination{since: time.Now(), lasted: 7 * time.Minute} // it came back now
		time.Sleep(time.Minute)
		if got := d.excuses(59 * time.Second); got != 0 {
			t.Errorf("an event that came after is excused for %s", got)
		}
		if got := d.excuses(61 * time.Second); got != 7*time.Minute {
			t.Errorf("an event that came before is excused for %s, want as long as the absence", got)
		}
	})
}
