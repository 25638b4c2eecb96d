package pipeline

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// enlarge gives lanes and dead letters room for so many.
func (r *rig) enlarge(lanes, dead int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.room["append"], r.room["bury"] = lanes, dead
}

// tries counts the calls that found no room since it was called last.
func (r *rig) tries() (lanes, dead int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	lanes, dead = r.asked["append"], r.asked["bury"]
	clear(r.asked)
	return lanes, dead
}

func TestEventsThatFindNoRoomInTheLanesOverflow(t *testing.T) {
	for name, drop := range map[string]bool{"deadletter": false, "drop": true} {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, r *rig) {
				r.cfg.Drop, r.mayDrop = drop, drop
				r.index.fallback = limit{time.Second, 1}
				r.enlarge(5, 1000)
				stop := r.start()
				pass(time.Millisecond)
				r.park("a", 12)
				synctest.Wait()
				if n := r.count("parked"); n != 5 {
					t.Errorf("%d events parked, want as many as there is room for, 5", n)
				}
				if dead, dropped := r.count("dead_lettered"), r.count("dropped"); dead+dropped != 7 || (dropped > 0) != drop {
					t.Errorf("%d dead-lettered and %d dropped, want 7 by the policy", dead, dropped)
				}
				if n := r.count("buried lanes_full"); n != r.count("dead_lettered") {
					t.Errorf("%d dead letters counted for the reason", n)
				}
				for _, reason := range r.dead {
					if reason != LanesFull {
						t.Errorf("dead letter for %s", reason)
					}
				}
				pass(10 * time.Second)
				r.park("a", 1)
				pass(2 * time.Second)
				r.wantRest(t)
				if n := r.count("delivered"); n != 6 {
					t.Errorf("%d delivered, want 6", n)
				}
				r.wantLogged(t, "the lanes are full: SLUICE_OVERFLOW applies to events that would have to wait: lanes full",
					"the lanes have room again: lanes full")
				_ = stop()
			})
		})
	}
}

func TestEventsWaitInTheSourceWhileNothingHasRoomAndGoOnByThemselves(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, r *rig) {
		r.index.fallback = limit{-1, 1} // paused: no event leaves its lane
		r.enlarge(5, 5)
		stop := r.start()
		pass(time.Millisecond)
		for i := range 200 {
			r.park(fmt.Sprint("key", i%20), 1)
		}
		pass(time.Second)
		r.tries()
		pass(time.Minute)
		if n := len(r.acked); n != 10 {
			t.Errorf("%d events acked, want as many as there is room for, 10", n)
		}
		if lanes, dead := r.tries(); lanes > 40 || dead > 40 || lanes < 20 {
			t.Errorf("%d and %d tries within a minute of 190 events that wait, want one in two seconds", lanes, dead)
		}
		if n, list := r.log.about(); n > 10 {
			t.Errorf("%d log lines about a minute without room:\n%s", n, list)
		}

		r.enlarge(5, 25)
		pass(longestPause + 500*time.Millisecond)
		if n := r.count("dead_lettered"); n != 25 {
			t.Errorf("%d dead-lettered after there was room, want 25", n)
		}
		r.index.mu.Lock()
		r.index.fallback = limit{time.Millisecond, 100}
		r.index.mu.Unlock()
		for range 10 {
			pass(time.Minute)
		}
		r.wantRest(t)
		if n := r.count("delivered"); n != 175 {
			t.Errorf("%d delivered, want the 175 that weren't dead-lettered", n)
		}
		_ = stop()
	})
}

func TestStopHandsBackEventsThatWaitForRoomAtOnce(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, r *rig) {
		r.index.fallback = limit{-1, 1}
		r.enlarge(0, 0)
		r.sink.answer = func(string, *Event) answer { return answer{err: errStatus410} }
		stop := r.start()
		pass(time.Millisecond)
		r.park("a", 20)
		r.index.limits["rejected"] = limit{time.Millisecond, 100}
		r.publish("rejected", 20)
		pass(10 * time.Second)
		stopped := time.Now()
		_ = stop()
		if took := time.Since(stopped); took != 0 {
			t.Errorf("the stop took %s", took)
		}
		if n := len(r.queue); n != 40 {
			t.Errorf("%d events in the source, want all 40", n)
		}
	})
}

// It came when messages might be larger. Nobody has asked for it to be lost, and it must not keep anybody busy.
func TestEventTooLargeForADeadLetterWaitsAndHoldsUpNobody(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, r *rig) {
		stop := r.start()
		r.publish("a", 1, func(d *delivery) { d.ev.Data, d.redelivered = []byte("too large for both"), true })
		pass(time.Minute)
		r.publish("a", 1)
		pass(time.Second)
		if tries := strings.Count(strings.Join(r.trace, " "), "bury fails"); tries > 40 || tries < 20 {
			t.Errorf("%d tries within a minute, want one in two seconds", tries)
		}
		if n := r.count("delivered"); n != 1 {
			t.Errorf("%d delivered, want the other event", n)
		}
		stopped := time.Now()
		_ = stop()
		if took := time.Since(stopped); took > longestPause {
			t.Errorf("the stop took %s", took)
		}
		if n := len(r.queue); n != 1 {
			t.Errorf("%d events in the source, want the one", n)
		}
	})
}

// The dead letters of one key find no room: its lane gets no further, and the others go on.
func TestLaneWhoseDeadLettersFindNoRoomHoldsUpNobodyElse(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, r *rig) {
		r.index.fallback = limit{time.Millisecond, 100}
		r.sink.answer = func(key string, _ *Event) answer {
			if strings.HasPrefix(key, "refused") {
				return answer{err: errStatus410}
			}
			return answer{}
		}
		r.enlarge(10_000, 3)
		r.parkWithoutWorker("refused", 500)
		stop := r.start()
		pass(10 * time.Second)
		r.park("well", 100)
		pass(time.Second)
		if n := r.count("delivered"); n != 100 {
			t.Errorf("%d events of another key delivered, want 100", n)
		}
		if n := len(r.sink.of("refused")); n > 3+2*r.workers[0].keys.cap {
			t.Errorf("%d events of the key were pushed, want no more than its places", n)
		}
		r.enlarge(10_000, 10_000)
		pass(10 * time.Second)
		r.wantRest(t)
		_ = stop()
	})
}
