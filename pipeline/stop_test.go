package pipeline

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestStopHandsBackAtOnceWhatHasNotStarted(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, r *rig) {
		r.cfg.Concurrency = 8 // one push of a key
		r.index.fallback = limit{every: 100 * time.Millisecond, burst: 1}
		hanging := func(key string) bool { return strings.HasPrefix(key, "hang") }
		r.sink.answer = func(key string, _ *Event) answer {
			if hanging(key) {
				return answer{takes: 5 * time.Second}
			}
			return answer{}
		}
		stop, begin := r.start(), time.Now()
		for range 3 { // one after the other: the key has room for one push, also while tokens are asked for
			r.publish("held", 1)
			synctest.Wait()
		}
		r.park("leased", 3)
		pass(10 * time.Millisecond)
		for _, key := range []string{"hang1", "hang2", "hang3", "hang4", "hang5", "hang6", "hang7", "hang8"} {
			r.publish(key, 1)
		}
		synctest.Wait()
		r.publish("waits for a slot", 2)
		pass(50 * time.Millisecond)
		before := len(r.sink.starts)
		stopped := time.Now()
		done := make(chan error, 1)
		go func() { done <- stop() }()
		synctest.Wait()

		if n := r.count("held"); n != 0 {
			t.Errorf("%d events are still held", n)
		}
		var waits int
		for _, d := range r.queue {
			if d.redelivered && !hanging(d.ev.Subject[len("events."):]) {
				waits++
			}
		}
		if waits != 4 {
			t.Errorf("%d events were handed back to the source at once, want 2 held and 2 without a slot", waits)
		}
		if left := r.index.left(); !slices.Equal(left, []string{"index of leased: 2 wait, 0 leased"}) {
			t.Errorf("in the index: %v, want the two of the lane, waiting", left)
		}
		for _, e := range r.index.of("leased").lane {
			if e.Attempt != 0 {
				t.Errorf("event %d went back to its lane with attempt %d", e.Seq, e.Attempt)
			}
		}

		if err := <-done; err != nil {
			t.Error(err)
		}
		if took, want := time.Since(stopped), 5*time.Second-stopped.Sub(begin)+10*time.Millisecond; took != want {
			t.Errorf("the stop took %s, want %s: until the pushes in flight were done", took, want)
		}
		if n := len(r.sink.starts); n != before {
			t.Errorf("%d pushes were started after the stop", n-before)
		}
		if acked := len(r.acked); acked != before+2 { // those that wait in their lane are acked, too
			t.Errorf("%d events acked, want %d", acked, before+2)
		}
		if n, list := r.log.about(); n != 0 {
			t.Errorf("a stop is logged as trouble: %s", list)
		}
	})
}

func TestPushThatOutlastsTheDrainTimeIsCutOffAndHandedBack(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, r *rig) {
		r.cfg.Drain = 3 * time.Second
		r.index.fallback = limit{every: time.Millisecond, burst: 10}
		r.sink.answer = func(string, *Event) answer { return answer{takes: time.Minute} }
		stop := r.start()
		r.publish("direct", 1)
		r.park("lane", 2)
		pass(time.Second)
		stopped := time.Now()
		if err := stop(); err != nil {
			t.Error(err)
		}
		if took := time.Since(stopped); took != 3*time.Second {
			t.Errorf("the stop took %s, want exactly the drain time of 3s", took)
		}
		if len(r.sink.cut) != 3 {
			t.Errorf("%d pushes were cut off, want 3", len(r.sink.cut))
		}
		for _, cause := range r.sink.cut {
			if !errors.Is(cause, ErrDrainTimeout) {
				t.Errorf("a push was cut off by %v, want ErrDrainTimeout", cause)
			}
		}
		if len(r.queue) != 1 || !r.queue[0].redelivered {
			t.Errorf("%d events in the source, want the one that was pushed directly", len(r.queue))
		}
		if left := r.index.left(); !slices.Equal(left, []string{"index of lane: 2 wait, 0 leased"}) {
			t.Errorf("in the index: %v, want both of the lane, and no lease", left)
		}
		if slices.Contains(r.trace, "append fails") {
			t.Error("an event that was cut off was to be parked")
		}
		for _, key := range []string{"direct", "lane"} {
			if r.workers[0].keys.cooling(key) {
				t.Errorf("the receiver of %s is taken to be away because the worker stopped", key)
			}
		}
		for _, e := range r.index.of("lane").lane {
			if e.Attempt != 0 || !e.First.IsZero() {
				t.Errorf("event %d went back to its lane with attempt %d", e.Seq, e.Attempt)
			}
		}

		r.sink.answer = nil
		again, begin := r.start(), time.Now()
		pass(time.Second)
		for _, s := range r.sink.starts[3:] {
			if s.attempt != 1 || s.at.Sub(begin) > 300*time.Millisecond {
				t.Errorf("event %d pushed as attempt %d after %s", s.src, s.attempt, s.at.Sub(begin))
			}
		}
		r.wantRest(t)
		_ = again()
	})
}

func TestStopWaitsForTheReplyToALease(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, r *rig) {
		stop := r.start()
		synctest.Wait()
		r.index.took = 50 * time.Millisecond
		r.park("a", 3)
		pass(3*50*time.Millisecond + 20*time.Millisecond) // asked whether it may wait, parked, claimed, asked for a lease
		_ = stop()
		if left := r.index.left(); !slices.Equal(left, []string{"index of a: 3 wait, 0 leased"}) {
			t.Errorf("in the index: %v, want all three and no lease", left)
		}
		if n := r.index.made("lease", "a", time.Time{}); n != 1 {
			t.Errorf("%d leases were asked for, want one in flight at the stop", n)
		}
	})
}

func TestPushesThatAreCutOffDuringACallOfTheIndexAreGivenBack(t *testing.T) {
	for i := range 40 { // the lease is renewed once in this time
		drain := 3*time.Second + time.Duration(i)*40*time.Millisecond
		t.Run(drain.String(), func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, r *rig) {
				r.cfg.Drain = drain
				r.index.took = 50 * time.Millisecond
				r.sink.answer = func(string, *Event) answer { return answer{takes: time.Minute} }
				r.parkWithoutWorker("a", 2)
				stop := r.start()
				pass(time.Second)
				_ = stop()
				if left := r.index.left(); !slices.Equal(left, []string{"index of a: 2 wait, 0 leased"}) {
					t.Errorf("in the index: %v, want both events waiting, and no lease", left)
				}
			})
		})
	}
}

func TestStopDoesNotWaitForAnIndexThatIsAway(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, r *rig) {
		r.parkWithoutWorker("a", 3)
		claims := 0
		r.index.fault = func(call string) fault {
			if call == "claim" {
				claims++
			}
			if call == "lease" || claims > 1 {
				return notDone
			}
			return noFault
		}
		stop := r.start()
		pass(5 * time.Second)
		stopped := time.Now()
		_ = stop()
		if took := time.Since(stopped); took != 0 {
			t.Errorf("the stop took %s although nothing was in flight", took)
		}
	})
}

func TestStopGivesUpOnLanesThatCannotBeGivenBack(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, r *rig) {
		r.cfg.Drain = 3 * time.Second
		r.sink.answer = func(string, *Event) answer { return answer{takes: time.Second} }
		r.park("a", 3)
		stop := r.start()
		pass(500 * time.Millisecond)
		r.failing("lease", "settle", "claim")
		stopped := time.Now()
		_ = stop()
		if took := time.Since(stopped); took != 3*time.Second+laneShutdown {
			t.Errorf("the stop took %s, want the drain time and a moment", took)
		}
	})
}
