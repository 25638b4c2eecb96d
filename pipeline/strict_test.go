package pipeline

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// perKey sets the number of pushes of a key in flight.
func (r *rig) perKey(n int) {
	r.cfg.KeyConcurrency, r.index.perKey = n, n
}

// sources are the places of the pushes of a key, by the time of their start.
func (r *rig) sources(key string) (list []uint64) {
	for _, s := range r.sink.of(key) {
		list = append(list, s.src)
	}
	return list
}

// counted is 1 to n.
func counted(n uint64) (list []uint64) {
	for i := range n {
		list = append(list, i+1)
	}
	return list
}

func TestPushesOfAKeyInFlightAreCountedOverAllWorkers(t *testing.T) {
	for _, n := range []int{1, 3} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, r *rig) {
				r.perKey(n)
				r.index.fallback = limit{every: time.Millisecond, burst: 1000}
				r.sink.answer = func(string, *Event) answer { return answer{takes: 50 * time.Millisecond} }
				first, second := r.start(), r.start()
				r.publish("a", 60)
				pass(4 * time.Second)
				if got := r.sink.peak["a"]; got != n {
					t.Errorf("%d pushes of the key in flight, want %d", got, n)
				}
				if got := len(r.sink.of("a")); got != 60 {
					t.Errorf("%d pushes within 4s, want 60", got)
				}
				if got := r.count("throttled key_inflight") + r.count("throttled lane"); got == 0 {
					t.Error("no event counted as throttled")
				}
				r.wantRest(t)
				_, _ = first(), second()
			})
		})
	}
}

// The way from the source into the lane takes each event another time, on two workers: what is behind waits.
func TestStrictOrderIsThatOfTheSource(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, r *rig) {
		r.perKey(1)
		r.index.fallback = limit{every: time.Millisecond, burst: 1000}
		r.stores = func(ev *Event) time.Duration { return time.Duration(ev.Source.Seq*7%13) * 15 * time.Millisecond }
		first, second := r.start(), r.start()
		begin := time.Now()
		for range 20 {
			r.publish("a", 2)
			r.publish("b", 1)
			pass(10 * time.Millisecond)
		}
		pass(3 * time.Second)
		for _, key := range []string{"a", "b"} {
			if list := r.sources(key); !slices.IsSorted(list) {
				t.Errorf("%s was pushed in the order %v", key, list)
			}
		}
		if last := slices.Max(append(r.sink.after("a", begin), r.sink.after("b", begin)...)); last > 700*time.Millisecond {
			t.Errorf("the last push came after %s, want at most 700ms: stored after 385", last)
		}
		r.wantRest(t)
		_, _ = first(), second()
	})
}

// A worker dies with an event that isn't in its lane: what is behind waits for it, and the source isn't asked in a loop.
func TestStrictOrderWaitsForWhatADeadWorkerHad(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, r *rig) {
		r.perKey(1)
		r.index.fallback = limit{every: time.Millisecond, burst: 1000}
		stop := r.start()
		r.publish("a", 3)
		pass(time.Second)
		r.mu.Lock()
		r.seq++ // the fourth is with the dead one
		r.mu.Unlock()
		r.publish("a", 5)
		r.publish("b", 1)
		pass(10 * time.Second)
		if got := r.sources("a"); !slices.Equal(got, counted(3)) || len(r.sources("b")) > 0 {
			t.Errorf("pushed %v and %v while the fourth may come, want 1 to 3", got, r.sources("b"))
		}
		if n := r.count("asked how far it is settled"); n > 70 {
			t.Errorf("the source was asked %d times in 11s, want at most 70", n)
		}
		if n := r.index.made("lease", "a", time.Now().Add(-5*time.Second)); n > 12 {
			t.Errorf("%d leases of a barred lane in 5s, want at most 12", n)
		}
		d := &delivery{rig: r, redelivered: true, ev: &Event{
			ID: "EVENTS:4", Subject: "events.a", Time: time.Now(), Source: SourceID{Stream: "EVENTS", Created: 1, Seq: 4},
		}}
		r.offer(d)
		pass(3 * time.Second)
		if got := r.sources("a"); !slices.Equal(got, counted(9)) {
			t.Errorf("pushed %v, want 1 to 9", got)
		}
		r.wantRest(t)
		_ = stop()
	})
}

func TestStrictRetryKeepsItsPlace(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, r *rig) {
		r.perKey(1)
		r.cfg.Retry.Max = 3
		r.index.fallback = limit{every: time.Millisecond, burst: 1000}
		r.sink.answer = func(_ string, ev *Event) answer {
			switch {
			case ev.Source.Seq == 2 && ev.Attempt < 3, ev.Source.Seq == 4:
				return answer{err: errStatus500}
			case ev.Source.Seq == 5:
				return answer{err: errStatus410}
			}
			return answer{}
		}
		first, second := r.start(), r.start()
		r.publish("a", 6)
		pass(20 * time.Second)
		if got, want := r.sources("a"), []uint64{1, 2, 2, 2, 3, 4, 4, 4, 5, 6}; !slices.Equal(got, want) {
			t.Errorf("pushed %v, want %v", got, want)
		}
		if r.dead[4] != Exhausted || r.dead[5] != Rejected {
			t.Errorf("dead letters: %v, want the fourth exhausted and the fifth rejected", r.dead)
		}
		r.wantRest(t)
		_, _ = first(), second()
	})
}

// An event whose place the source never gave out is of another one: it needn't wait.
func TestStrictOrderDoesNotWaitForAnotherSource(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, r *rig) {
		r.perKey(1)
		r.seq = 5_000_000
		r.parkWithoutWorker("a", 3)
		r.seq = 0
		stop := r.start()
		r.publish("a", 2)
		pass(3 * time.Second)
		own, strays := []uint64{}, []uint64{}
		for _, place := range r.sources("a") { // which of the two goes first is open
			if place < 5_000_000 {
				own = append(own, place)
			} else {
				strays = append(strays, place)
			}
		}
		if !slices.Equal(own, []uint64{1, 2}) || !slices.Equal(strays, []uint64{5_000_001, 5_000_002, 5_000_003}) {
			t.Errorf("pushed %v, want both kinds whole and in order", r.sources("a"))
		}
		r.wantRest(t)
		_ = stop()
	})
}

func TestStrictOrderTrustsNoOldFloor(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, r *rig) {
		r.perKey(1)
		stop := r.start()
		r.publish("a", 50)
		pass(10 * time.Second)
		r.mu.Lock()
		r.seq, r.acked = 1, map[uint64]time.Time{} // a new stream, whose first event is on its way
		r.mu.Unlock()
		before := len(r.sources("a"))
		r.publish("a", 1)
		pass(3 * time.Second)
		if got := r.sources("a")[before:]; len(got) > 0 {
			t.Errorf("pushed %v while the first of the new source may come", got)
		}
		_ = stop()
	})
}

// A worker that can't renew its lease ends its push when another one may begin.
func TestCountedPushIsCutOffWhenItsLeaseRunsOut(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, r *rig) {
		r.perKey(1)
		r.sink.answer = func(string, *Event) answer { return answer{takes: 12 * time.Second} }
		stop, begin := r.start(), time.Now()
		r.publish("a", 1)
		pass(time.Second)
		r.failing("lease", "settle")
		pass(5 * time.Second)
		if n := r.sink.flying["a"]; n != 0 || len(r.sink.cut) != 1 || r.sink.cut[0] != errLapsed {
			t.Errorf("%d pushes in flight, cut off: %v, want the push cut off by the end of the lease", n, r.sink.cut)
		}
		r.failing()
		pass(30 * time.Second)
		synctest.Wait()
		if got := r.sink.after("a", begin); len(got) != 2 || r.sink.of("a")[1].attempt != 1 || r.sink.peak["a"] != 1 {
			t.Errorf("pushes at %v, %d at a time, want two, one after the other, of one attempt", got, r.sink.peak["a"])
		}
		r.wantRest(t)
		_ = stop()
	})
}
