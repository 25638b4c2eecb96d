package pipeline

import (
	"fmt"
	"testing"
	"time"
)

// costing gives an event a cost.
func costing(tokens int) func(*delivery) {
	return func(d *delivery) { d.ev.Header = Header{"Sluice-Cost": {fmt.Sprint(tokens)}} }
}

// A limit that is lowered below what an event costs that waits already: the event can't go any more, those behind it can.
func TestWaitingEventThatCostsMoreThanTheLoweredBurstIsBuriedAndItsLaneGoesOn(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, r *rig) {
		r.index.limits["a"] = limit{-1, 5} // paused
		stop := r.start()
		pass(time.Millisecond)
		for _, cost := range []int{5, 1, 3, 1, 5} {
			r.publish("a", 1, costing(cost))
		}
		pass(time.Second)
		if n := r.count("parked"); n != 5 {
			t.Fatalf("%d events parked, want all 5", n)
		}
		r.index.mu.Lock()
		r.index.limits["a"] = limit{time.Second, 3}
		r.index.mu.Unlock()
		pass(2 * time.Minute)
		if len(r.dead) != 2 || r.dead[1] != Cost || r.dead[5] != Cost {
			t.Errorf("dead letters %v, want the first and the last for their cost", r.dead)
		}
		if n := r.count("delivered"); n != 3 {
			t.Errorf("%d delivered, want 3", n)
		}
		r.wantRest(t)
		_ = stop()
	})
}

// While there is no room for its dead letters, a lane of such events takes no more than a key's places.
func TestCostlyEventsWhoseDeadLettersFindNoRoomStayInTheirLane(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, r *rig) {
		r.index.limits["a"] = limit{-1, 5}
		stop := r.start()
		pass(time.Millisecond)
		for range 100 {
			r.publish("a", 1, costing(5))
		}
		pass(time.Second)
		r.enlarge(1000, 0)
		r.index.mu.Lock()
		r.index.limits["a"] = limit{time.Millisecond, 3}
		r.index.mu.Unlock()
		pass(2 * time.Minute)
		r.index.mu.Lock()
		if n, most := len(r.index.of("a").busy), r.workers[0].keys.cap; n == 0 || n > 2*most {
			t.Errorf("%d events leased, want 1 to %d", n, 2*most)
		}
		r.index.mu.Unlock()
		r.enlarge(1000, 1000)
		pass(2 * time.Minute)
		if n := len(r.dead); n != 100 {
			t.Errorf("%d dead letters, want 100", n)
		}
		r.wantRest(t)
		_ = stop()
	})
}
