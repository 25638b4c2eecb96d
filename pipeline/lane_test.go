package pipeline

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// park publishes n events of key that go straight to its lane.
func (r *rig) park(key string, n int) {
	r.publish(key, n, func(d *delivery) { d.redelivered = true })
}

// parkWithoutWorker puts n events of key into its lane.
func (r *rig) parkWithoutWorker(key string, n int) {
	for range n {
		r.mu.Lock()
		r.seq++
		ev := Event{Key: key, Cost: 1, ID: fmt.Sprint(r.seq), Time: time.Now(), Source: SourceID{"EVENTS", 1, r.seq}}
		r.bodies[laneSeq(r.seq)] = ev
		r.mu.Unlock()
		_, _ = r.index.Park(context.Background(), ParkRequest{Key: key, Entry: entryOf(&ev, laneBody(ev.Source.Seq))})
	}
}

// every is n moments, one period after the other.
func every(period time.Duration, n int) (list []time.Duration) {
	for i := range n {
		list = append(list, time.Duration(i)*period)
	}
	return list
}

// inOrder says that no event started at an earlier moment than one that stood before it in the source.
func inOrder(starts []start) bool {
	byTime := slices.SortedFunc(slices.Values(starts), func(a, b start) int {
		return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.src, b.src))
	})
	return slices.IsSortedFunc(byTime, func(a, b start) int { return cmp.Compare(a.src, b.src) })
}

func TestLaneLeavesInSourceOrderAtExactlyItsRate(t *testing.T) {
	for _, takes := range ms(0, 300) {
		t.Run(takes.String(), func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, r *rig) {
				r.sink.answer = func(string, *Event) answer { return answer{takes: takes} }
				stop, begin := r.start(), time.Now()
				r.publish("a", 100)
				pass(12 * time.Second)
				wantTimes(t, "pushes", r.sink.after("a", begin), every(100*time.Millisecond, 100)...)
				if !inOrder(r.sink.of("a")[11:]) { // those before were held, not parked
					t.Error("events left their lane out of order")
				}
				r.wantRest(t)
				_ = stop()
			})
		})
	}
}

func TestLaneKeepsItsRateAlthoughCallsTakeTime(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, r *rig) {
		r.index.took = 2 * time.Millisecond
		r.sink.answer = func(string, *Event) answer { return answer{takes: 300 * time.Millisecond} }
		stop, begin := r.start(), time.Now()
		r.publish("a", 100)
		pass(12 * time.Second)
		times := r.sink.after("a", begin)
		if last := times[len(times)-1]; len(times) != 100 || last > 9900*time.Millisecond+20*time.Millisecond {
			t.Errorf("%d pushes, the last after %s, want 100 and 9.9s", len(times), last)
		}
		r.checkBound(t, "a", 1)
		r.wantRest(t)
		_ = stop()
	})
}

func TestReceiverThatIsAwayPutsItsKeyToSleep(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, r *rig) {
		r.index.fallback = limit{every: 10 * time.Millisecond, burst: 5}
		var away atomic.Bool
		r.sink.answer = func(key string, _ *Event) answer {
			if key == "a" && away.Load() {
				return answer{err: RetryAfter(errStatus503, 3*time.Second)}
			}
			return answer{}
		}
		r.park("a", 50)
		r.park("b", 1)
		away.Store(true)
		stop, begin := r.start(), time.Now()
		pass(2 * time.Second)
		first := r.sink.of("a")
		if len(first) > 5 { // the burst started at the same moment
			t.Errorf("%d pushes within 2s to a receiver that is away for 3s, want at most 5", len(first))
		}
		r.publish("b", 100)
		away.Store(false)
		pass(10 * time.Second)
		r.wantRest(t)
		for _, s := range r.sink.of("a")[len(first):] {
			tried := slices.ContainsFunc(first, func(f start) bool { return f.src == s.src })
			if s.at.Sub(begin) < 3*time.Second || (s.attempt == 2) != tried {
				t.Errorf("event %d was pushed after %s as attempt %d, tried before: %t", s.src, s.at.Sub(begin), s.attempt, tried)
			}
		}
		if !inOrder(r.sink.of("a")[len(first):]) {
			t.Error("events left their lane out of order after the pause")
		}
		if n := len(r.sink.of("b")); n != 101 {
			t.Errorf("%d pushes of another key, want 101", n)
		}
		_ = stop()
	})
}

func TestOnlyOneEventProbesAReceiverThatFailed(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, r *rig) {
		r.index.fallback = limit{every: time.Millisecond, burst: 20}
		var away time.Time
		r.sink.answer = func(string, *Event) answer {
			if time.Now().Before(away) {
				return answer{takes: 2 * time.Second, err: RetryAfter(errStatus503, 4*time.Second)}
			}
			return answer{}
		}
		away = time.Now().Add(9 * time.Second)
		stop, begin := r.start(), time.Now()
		r.publish("a", 1)
		synctest.Wait()
		pass(3 * time.Second)
		r.park("a", 30)
		pass(5 * time.Second) // the probe starts after 6 to 6.4 s and takes 2
		starts := r.sink.of("a")
		if len(starts) != 2 || starts[1].src != 1 || starts[1].attempt != 2 {
			t.Errorf("pushes within 8s: %+v, want the first and one probe of the same event", starts)
		}
		if n := r.index.of("a").fails; n != 1 {
			t.Errorf("%d failures in a row counted while the second is on its way, want 1", n)
		}
		if n := r.index.made("lease", "a", begin.Add(6*time.Second)); n > 25 {
			t.Errorf("%d calls of lease within 2s of a probe, want at most 25", n)
		}
		pass(20 * time.Second)
		r.wantRest(t)
		if n := r.index.of("a").fails; n != 0 {
			t.Errorf("%d failures in a row counted after deliveries, want 0", n)
		}
		_ = stop()
	})
}

func TestEventThatFailsAloneComesBackAtItsOwnTime(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, r *rig) {
		r.cfg.Retry.Base = time.Nanosecond // delays of exactly a millisecond
		r.cfg.Retry.Cap = time.Nanosecond
		r.sink.answer = func(_ string, ev *Event) answer {
			if ev.Source.Seq == 3 && ev.Attempt < 3 {
				return answer{err: errStatus500}
			}
			return answer{}
		}
		r.parkWithoutWorker("a", 6)
		stop, begin := r.start(), time.Now()
		pass(5 * time.Second)
		wantTimes(t, "pushes", r.sink.after("a", begin), every(100*time.Millisecond, 8)...)
		var seqs, attempts []int
		for _, s := range r.sink.of("a") {
			seqs = append(seqs, int(s.src))
			if s.src == 3 {
				attempts = append(attempts, s.attempt)
			}
		}
		if !slices.Equal(attempts, []int{1, 2, 3}) {
			t.Errorf("attempts of the poison event: %v, want 1 to 3; order %v", attempts, seqs)
		}
		r.wantRest(t)
		_ = stop()
	})
}

func TestRejectedEventIsBuriedBeforeItsBodyGoesAndItsPlaceLast(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, r *rig) {
		r.sink.answer = func(string, *Event) answer { return answer{err: errStatus410} }
		r.parkWithoutWorker("a", 1)
		stop := r.start()
		pass(claimPause)
		r.wantTrace(t, "park, push, bury rejected, delete, settle")
		r.wantRest(t)
		_ = stop()
	})
}

func TestEventWhoseBodyIsGoneIsSettledWithoutAPush(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, r *rig) {
		now := time.Now()
		for i, key := range []string{"a", "a", "b"} {
			e := Entry{BodyID: BodyID{Seq: uint64(500 + i)}, Order: uint64(i), Cost: 1}
			if _, err := r.index.Park(t.Context(), ParkRequest{Key: key, Entry: e}); err != nil {
				t.Fatal(err)
			}
		}
		stop := r.start()
		pass(time.Second)
		if n := len(r.sink.starts); n != 0 {
			t.Errorf("%d pushes of events without a body, want 0", n)
		}
		if n := r.index.made("lease", "a", now); n > 20 {
			t.Errorf("%d leases for two such events, want at most 20", n)
		}
		r.wantRest(t)
		_ = stop()
	})
}

func TestDrainEndsQuietlyWhenItsLeaseHasPassed(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, r *rig) {
		r.sink.answer = func(string, *Event) answer { return answer{takes: time.Second} }
		stop := r.start()
		r.park("a", 3)
		pass(50 * time.Millisecond)
		r.index.mu.Lock()
		r.index.of("a").token++ // another worker has taken the lane
		r.index.of("a").holder = "another"
		r.index.mu.Unlock()
		pass(3 * time.Second)
		if n := len(r.sink.of("a")); n > 1+10 {
			t.Errorf("%d pushes after the lease had passed", n-1)
		}
		if n, list := r.log.about(); n != 0 {
			t.Errorf("logged: %s", list)
		}
		pass(10 * time.Second) // the other worker never drains; its lease runs out
		r.wantRest(t)
		_ = stop()
	})
}

func TestLeaseIsRenewedDuringALongPush(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, r *rig) {
		r.index.fallback = limit{every: time.Minute, burst: 1}
		r.cfg.Concurrency = 8 // no room for a second event, so that nothing but the renewal is left to ask for
		r.sink.answer = func(string, *Event) answer { return answer{takes: 12 * time.Second} }
		stop, begin := r.start(), time.Now()
		r.park("a", 1)
		synctest.Wait()
		other := r.start()
		for range 11 {
			pass(time.Second)
			r.index.mu.Lock()
			if left := time.Until(r.index.of("a").until); left < 3*time.Second {
				t.Errorf("after %s the lease has %s left, want at least 3s", time.Since(begin), left)
			}
			r.index.mu.Unlock()
		}
		pass(3 * time.Second)
		wantTimes(t, "pushes", r.sink.after("a", begin), 0)
		r.wantRest(t)
		_, _ = stop(), other()
	})
}

func TestHangingReceiverTakesItsShareOfTheSlotsOnly(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, r *rig) {
		r.index.fallback = limit{every: 20 * time.Millisecond, burst: 1}
		r.sink.answer = func(key string, _ *Event) answer {
			if key == "slow" {
				return answer{takes: 10 * time.Second}
			}
			return answer{}
		}
		stop, begin := r.start(), time.Now()
		r.publish("slow", 400)
		var published []time.Duration
		for i := range 100 {
			pass(100 * time.Millisecond)
			r.publish("quick", 1)
			published = append(published, time.Duration(i+1)*100*time.Millisecond)
		}
		synctest.Wait()
		if n := r.sink.peak["slow"]; n != 32 {
			t.Errorf("at most %d pushes of one key in flight, want an eighth of 256", n)
		}
		wantTimes(t, "pushes of another key", r.sink.after("quick", begin), published...)
		pass(5 * time.Second)
		if n := r.index.made("lease", "slow", begin.Add(2*time.Second)); n > 100 {
			t.Errorf("%d calls of lease in 13s of hanging pushes, want at most 100", n)
		}
		r.checkBound(t, "slow", 1)
		_ = stop()
	})
}
