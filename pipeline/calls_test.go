package pipeline

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// These tests count calls of the index: a lane must never be asked about in a loop.

func TestEventsOfALeaseWhoseReplyIsLostComeBack(t *testing.T) {
	tests := map[string]struct {
		takes       time.Duration
		concurrency int
		lost        int // the lease of that number
	}{
		"first":                     {0, 256, 1},
		"while others are out":      {2 * time.Second, 16, 2}, // two of a key
		"while nothing else is out": {0, 8, 2},
		"the last one":              {0, 8, 4},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, r *rig) {
				r.cfg.Concurrency = tt.concurrency
				r.sink.answer = func(string, *Event) answer { return answer{takes: tt.takes} }
				leases := 0
				r.index.fault = func(call string) fault {
					if call == "lease" {
						if leases++; leases == tt.lost {
							return replyLost
						}
					}
					return noFault
				}
				r.parkWithoutWorker("a", 4)
				stop, begin := r.start(), time.Now()
				pass(8 * time.Second)
				r.wantRest(t)
				if n := r.index.made("lease", "a", begin); n > 60 {
					t.Errorf("%d leases for 4 events, want at most 60", n)
				}
				r.checkBound(t, "a", 1)
				_ = stop()
			})
		})
	}
}

func TestEventsOfALostLeaseDoNotWaitForTheOthers(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, r *rig) {
		r.index.fallback = limit{every: 500 * time.Millisecond, burst: 1}
		r.sink.answer = func(string, *Event) answer { return answer{takes: 700 * time.Millisecond} } // some are always out
		leases := 0
		r.index.fault = func(call string) fault {
			if call == "lease" {
				if leases++; leases == 2 {
					return replyLost
				}
			}
			return noFault
		}
		r.parkWithoutWorker("a", 20)
		stop, begin := r.start(), time.Now()
		pass(20 * time.Second)
		for _, s := range r.sink.of("a") {
			if at, soon := s.at.Sub(begin), time.Duration(s.src)*500*time.Millisecond+3*time.Second; at > soon {
				t.Errorf("event %d was pushed after %s, want at most %s", s.src, at, soon)
			}
		}
		r.wantRest(t)
		_ = stop()
	})
}

func TestEmptyLaneWithPushesInFlightIsLookedAtTenTimesASecond(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, r *rig) {
		r.index.fallback = limit{every: time.Millisecond, burst: 10}
		r.sink.answer = func(string, *Event) answer { return answer{takes: 10 * time.Second} }
		r.park("a", 3)
		stop, begin := r.start(), time.Now()
		pass(9 * time.Second)
		if n := r.index.made("lease", "a", begin); n > 92 {
			t.Errorf("%d leases in 9s, want at most ten a second", n)
		}
		if n := r.index.made("claim", "", begin); n > 9*5 {
			t.Errorf("%d claims in 9s, want at most five a second", n)
		}
		r.park("a", 1)
		pass(leaseLead)
		if n := len(r.sink.of("a")); n != 4 {
			t.Errorf("%d pushes, want the fourth within %s of its arrival", n, leaseLead)
		}
		pass(20 * time.Second)
		r.wantRest(t)
		_ = stop()
	})
}

func TestLaneKeepsItsRateWithoutAHorizon(t *testing.T) {
	for _, takes := range ms(0, 300) {
		t.Run(takes.String(), func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, r *rig) {
				r.index.fallback = limit{every: 50 * time.Millisecond, burst: 1}
				r.sink.answer = func(string, *Event) answer { return answer{takes: takes} }
				r.parkWithoutWorker("a", 100)
				stop, begin := r.start(func(w *Worker) { w.promises.hold(1 << 20) }), time.Now() // far too many
				pass(6 * time.Second)
				wantTimes(t, "pushes", r.sink.after("a", begin), every(50*time.Millisecond, 100)...)
				if n := r.index.made("lease", "a", begin); n > 320 {
					t.Errorf("%d leases for 100 events, want about two each", n)
				}
				r.wantRest(t)
				_ = stop()
			})
		})
	}
}

func TestKeyThatCoolsHereOnlyIsNotLeasedInALoop(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, r *rig) {
		r.index.fallback = limit{}
		r.parkWithoutWorker("a", 10)
		stop, begin := r.start(func(w *Worker) { w.Cooling("a", 5*time.Second) }), time.Now()
		pass(4900 * time.Millisecond)
		if n := len(r.sink.of("a")); n != 0 {
			t.Errorf("%d pushes of a key that cools, want 0", n)
		}
		if n := r.index.made("lease", "a", begin); n > 10 {
			t.Errorf("%d leases of a key that cools for 5s, want at most 10", n)
		}
		pass(1200 * time.Millisecond)
		r.wantRest(t)
		_ = stop()
	})
}

func TestKeyWhoseCoolDownIsOverGoesOnAtOnce(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, r *rig) {
		r.index.fallback = limit{}
		stop := r.start(func(w *Worker) { w.Cooling("a", time.Hour) })
		r.publish("a", 5)
		pass(time.Second)
		if n := len(r.sink.of("a")); n != 0 {
			t.Errorf("%d pushes of a key that cools, want 0", n)
		}
		r.workers[0].Cooling("a", 0)
		pass(1200 * time.Millisecond)
		r.wantRest(t)
		_ = stop()
	})
}

func TestLaneWhoseKeyBeginsToCoolIsReleased(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, r *rig) {
		r.cfg.Concurrency = 8 // one at a time, so that the lane is kept from one to the next
		r.parkWithoutWorker("a", 5)
		stop := r.start()
		pass(150 * time.Millisecond)
		r.workers[0].Cooling("a", 5*time.Second)
		pass(200 * time.Millisecond)
		if s := r.index.of("a"); s.token != 0 || len(s.busy) != 0 {
			t.Errorf("lease %d is held, %d events leased, although nothing of the key may be pushed", s.token, len(s.busy))
		}
		_ = stop()
	})
}

func TestLaneIsKeptFromOneEventToTheNext(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, r *rig) {
		r.cfg.Concurrency = 8 // one at a time
		r.index.fallback = limit{every: 250 * time.Millisecond, burst: 1}
		r.parkWithoutWorker("a", 40)
		stop, begin := r.start(), time.Now()
		pass(10 * time.Second)
		wantTimes(t, "pushes", r.sink.after("a", begin), every(250*time.Millisecond, 40)...)
		if n := r.index.made("claim", "", begin); n > 60 {
			t.Errorf("%d claims in 10s, want at most 60", n)
		}
		if n := r.index.made("lease", "a", begin); n > 45 {
			t.Errorf("%d leases for 40 events, want about one each", n)
		}
		if n := r.count("leases"); n > 2 {
			t.Errorf("the lane was taken %d times, want once", n)
		}
		_ = stop()
	})
}

func TestWorkerWithoutSlotsLeavesLanesToOthers(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, r *rig) {
		r.cfg.Concurrency = 8
		r.sink.answer = func(key string, _ *Event) answer {
			if key == "late" {
				return answer{}
			}
			return answer{takes: 10 * time.Second}
		}
		stop, begin := r.start(), time.Now()
		for _, key := range []string{"1", "2", "3", "4", "5", "6", "7", "8", "9"} {
			r.parkWithoutWorker(key, 1) // the ninth waits for a slot
		}
		pass(time.Second)
		r.parkWithoutWorker("late", 1)
		pass(time.Second)
		if n := r.index.made("lease", "late", begin); n != 0 {
			t.Errorf("%d leases by a worker whose slots are taken, want 0", n)
		}
		other := r.start()
		pass(time.Millisecond)
		wantTimes(t, "push by another worker", r.sink.after("late", begin), 2*time.Second)
		_, _ = stop(), other()
	})
}

func TestLanesOfAClaimThatFailedInPartAreDrained(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, r *rig) {
		r.index.fault = func(call string) fault {
			if call == "claim" {
				return partly
			}
			return noFault
		}
		r.parkWithoutWorker("a", 1)
		stop, begin := r.start(), time.Now()
		pass(100 * time.Millisecond)
		wantTimes(t, "push", r.sink.after("a", begin), 0)
		_ = stop()
	})
}

func TestEventsOfAKeyWithALaneAreParkedWithoutAsking(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, r *rig) {
		r.cfg.MaxWait = time.Hour
		r.index.maxWait = time.Hour
		stop, begin := r.start(), time.Now()
		r.publish("a", 15) // more than the horizon holds
		pass(10 * time.Millisecond)
		asked := r.index.made("reserve", "a", begin)
		for range 100 {
			r.publish("a", 1)
			pass(5 * time.Millisecond)
		}
		if n := r.index.made("reserve", "a", begin) - asked; n > 10 {
			t.Errorf("%d reservations for 100 events of a key with a lane, want at most 10", n)
		}
		_ = stop()
	})
}

func TestKeyAtItsCapIsNotLeasedInALoop(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, r *rig) {
		r.cfg.Concurrency = 16
		r.index.fallback = limit{}
		r.sink.answer = func(string, *Event) answer { return answer{takes: 10 * time.Second} }
		stop, begin := r.start(), time.Now()
		r.publish("a", 2) // at once
		synctest.Wait()
		r.publish("a", 4) // wait in the lane
		pass(9 * time.Second)
		if n := r.index.made("lease", "a", begin); n > 0 {
			t.Errorf("%d leases while no push of the key may start, want 0", n)
		}
		if n := r.index.made("claim", "", begin); n > 60 {
			t.Errorf("%d claims in 9s, want at most 60", n)
		}
		pass(21 * time.Second)
		if n := r.sink.peak["a"]; n != 2 || len(r.sink.of("a")) != 6 {
			t.Errorf("%d pushes, at most %d at once, want 6 and 2", len(r.sink.of("a")), n)
		}
		pass(10 * time.Second)
		r.wantRest(t)
		_ = stop()
	})
}

func TestUnlimitedKeyIsDrainedInFewCalls(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, r *rig) {
		r.index.fallback, r.index.allowance = limit{}, time.Hour
		r.index.took = time.Millisecond
		r.sink.answer = func(string, *Event) answer { return answer{takes: 5 * time.Millisecond} }
		r.parkWithoutWorker("a", 400)
		stop, begin := r.start(), time.Now()
		pass(5 * time.Second)
		r.wantRest(t)
		if n := r.index.made("lease", "a", begin); n > 400/4 {
			t.Errorf("%d leases for 400 events, want at least 4 events each", n)
		}
		_ = stop()
	})
}

func TestLaneThatFallsDueDuringAClaimIsNotForgotten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		lanes, begin := newLaneTable(), time.Now()
		_ = lanes.wait(t.Context()) // the claim begins
		lanes.lookIn(0)             // a lane falls due that it may have missed
		lanes.lookIn(time.Second)   // it ends
		_ = lanes.wait(t.Context())
		if got := time.Since(begin); got != claimPause {
			t.Errorf("the next claim comes after %s, want %s", got, claimPause)
		}
	})
}

func TestLaneThatIsClaimedWhileItsDrainEndsIsDrainedAgain(t *testing.T) {
	t.Parallel()
	lanes := newLaneTable()
	begin := func() bool { return lanes.begin("a") != nil }
	end := func() bool { return lanes.end("a") }
	for i, got := range []bool{begin(), !begin(), !begin(), !end(), end(), begin(), end()} {
		if !got {
			t.Errorf("step %d has the wrong answer", i)
		}
	}
	if n := lanes.room(); n != maxLanes {
		t.Errorf("room for %d lanes at rest, want %d", n, maxLanes)
	}
}

// What a lost reply has leased comes back with the end of the lease only: until then nothing behind it may go.
func TestLostReplyOfALeaseLetsNothingOvertake(t *testing.T) {
	for nth := 2; nth < 8; nth++ {
		t.Run(fmt.Sprint("lease ", nth), func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, r *rig) {
				r.index.limits["a"] = limit{20 * time.Millisecond, 5}
				calls := 0
				r.index.fault = func(call string) fault {
					if call == "lease" {
						if calls++; calls == nth {
							return replyLost
						}
					}
					return noFault
				}
				r.parkWithoutWorker("a", 200)
				stop := r.start()
				pass(20 * time.Second)
				if calls < nth {
					t.Errorf("%d leases, so none was lost", calls)
				}
				if !inOrder(r.sink.of("a")) {
					t.Error("events left their lane out of order")
				}
				r.wantRest(t)
				_ = stop()
			})
		})
	}
}
