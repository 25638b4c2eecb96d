package pipeline

import (
	"fmt"
	"maps"
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

// Of events that cost 1 and 5 tokens those overflow, and only those, that ten seconds of one token each don't pay for.
func TestExactlyWhatCostsTooMuchWaitOverflows(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, r *rig) {
		r.cfg.MaxWait, r.index.maxWait = 10*time.Second, 10*time.Second
		r.index.limits["a"] = limit{time.Second, 5}
		r.index.took = time.Microsecond
		stop, begin := r.start(), time.Now()
		want := map[uint64]DeadReason{}
		ahead, seq := int64(0), uint64(0)
		for _, cost := range []int64{5, 5, 1, 5, 1, 1, 1, 1, 1, 5, 1} {
			r.one("a", costing(int(cost)))
			pass(time.Millisecond)
			seq++
			switch {
			case seq == 1: // the burst
			case ahead+cost > 10:
				want[seq] = MaxWait
			default:
				ahead += cost
			}
		}
		if !maps.Equal(r.dead, want) || len(want) != 4 {
			t.Errorf("dead letters %v, want %v", r.dead, want)
		}
		pass(20 * time.Second)
		var costs []time.Duration
		for _, at := range r.sink.after("a", begin) {
			costs = append(costs, at.Round(time.Second))
		}
		wantTimes(t, "pushes", costs, 0, 5*time.Second, 6*time.Second, 7*time.Second, 8*time.Second, 9*time.Second, 10*time.Second)
		r.wantRest(t)
		_ = stop()
	})
}

// A worker that knows a lane asks about it near the bound, and its memory counts tokens as the limiter does.
func TestFloodOfDearEventsStaysWithinTheLongestWait(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, r *rig) {
		r.cfg.MaxWait, r.index.maxWait = 10*time.Second, 10*time.Second
		r.index.limits["a"] = limit{10 * time.Millisecond, 5} // 1,000 tokens in ten seconds
		stop := r.start()
		for range 30 {
			r.one("a")
		}
		for range 400 { // beside so cheap ones that their average says nothing of these
			r.one("a", costing(5))
		}
		overflown := 0
		for _, reason := range r.dead {
			if reason != MaxWait {
				t.Errorf("dead letter for %s", reason)
			}
			overflown++
		}
		if overflown != 205 { // 2,030 tokens are asked for, 5 are of the burst and 1,000 may be ahead
			t.Errorf("%d of 400 events of 5 tokens overflow, want 205", overflown)
		}
		pass(20 * time.Second)
		r.wantRest(t)
		_ = stop()
	})
}
