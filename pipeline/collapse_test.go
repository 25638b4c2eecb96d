package pipeline

import (
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestCollapseOf(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 256)
	for _, tt := range []struct {
		header Header
		want   string
		bad    bool
	}{
		{nil, "", false},
		{Header{"sluice-collapse": {" position "}}, "zz-position", false},
		{Header{"Sluice-Collapse": {long}}, "zz-" + long, false},
		{Header{"Sluice-Collapse": {long + "x"}}, "", true},
		{Header{"Sluice-Collapse": {""}}, "", true},
		{Header{"Sluice-Collapse": nil}, "", true},
	} {
		got, err := CollapseOf(tt.header, SourceID{Created: 36*36 - 1})
		if got != tt.want || (err != nil) != tt.bad {
			t.Errorf("%v: %q, %v, want %q", tt.header, got, err, tt.want)
		}
	}
}

// called gives an event a name that it collapses under.
func called(name string) func(*delivery) {
	return func(d *delivery) { d.ev.Header = Header{"Sluice-Collapse": {name}} }
}

// one publishes one event and lets it find its place.
func (r *rig) one(key string, change ...func(*delivery)) {
	r.publish(key, 1, change...)
	synctest.Wait()
}

func TestOnlyTheNewestOfANameLeavesTheLane(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, r *rig) {
		r.index.fallback = limit{every: 2 * time.Second, burst: 1}
		stop, begin := r.start(), time.Now()
		r.one("a") // 1, at once
		for range 4 {
			r.one("a", called("position")) // 2 to 8
			r.one("a", called("mood"))     // 3 to 9
		}
		r.one("a") // 10
		r.one("b", called("position"))
		if n := r.count("collapsed"); n != 6 || len(r.bodies) != 3 {
			t.Errorf("%d collapsed and %d bodies left at once, want 6 and 3", n, len(r.bodies))
		}
		r.one("a", called(""))
		pass(10 * time.Second)
		if got := r.sources("a"); !slices.Equal(got, []uint64{1, 8, 9, 10}) {
			t.Errorf("pushed %v, want the newest of each name and those without one", got)
		}
		wantTimes(t, "pushes", r.sink.after("a", begin), every(2*time.Second, 4)...)
		if r.dead[12] != BadHeader {
			t.Errorf("an empty name: dead letters %v", r.dead)
		}
		r.wantRest(t)
		_ = stop()
	})
}

func TestLateOlderEventIsCollapsedItself(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, r *rig) {
		r.index.fallback = limit{every: 2 * time.Second, burst: 1}
		stop := r.start()
		r.one("a")
		r.mu.Lock()
		r.seq++ // the second is with a worker that died
		r.mu.Unlock()
		r.one("a", called("position"))
		old := &delivery{rig: r, redelivered: true, ev: &Event{
			ID: "EVENTS:2", Subject: "events.a", Time: time.Now(), Source: SourceID{Stream: "EVENTS", Created: 1, Seq: 2},
		}}
		called("position")(old)
		r.offer(old)
		pass(5 * time.Second)
		if got := r.sources("a"); !slices.Equal(got, []uint64{1, 3}) || r.count("collapsed") != 1 {
			t.Errorf("pushed %v, %d collapsed, want 1 and 3, and the second collapsed", got, r.count("collapsed"))
		}
		r.wantRest(t)
		_ = stop()
	})
}

// In a source that was created anew places begin anew: its first event is no older than what waits.
func TestEventsOfAnotherSourceAreNotCompared(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, r *rig) {
		r.index.fallback = limit{every: 2 * time.Second, burst: 1}
		r.seq = 7
		stop := r.start()
		r.one("a")
		r.one("a", called("position"))
		r.seq = 0
		r.one("a", called("position"), func(d *delivery) { d.ev.Source.Created = 2 })
		pass(5 * time.Second)
		if got := r.sources("a"); len(got) != 3 {
			t.Errorf("pushed %v, want all three", got)
		}
		r.wantRest(t)
		_ = stop()
	})
}

func TestEventThatWaitsForItsNextAttemptIsCollapsed(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, r *rig) {
		r.cfg.Retry.Base, r.cfg.Retry.Cap = time.Hour, time.Hour
		r.sink.answer = func(_ string, ev *Event) answer {
			if ev.Source.Seq == 1 {
				return answer{err: errStatus500, takes: 100 * time.Millisecond}
			}
			return answer{}
		}
		stop := r.start()
		r.one("a", called("position"))
		pass(time.Second)
		r.one("a", called("position"))
		pass(time.Second)
		if got := r.sources("a"); !slices.Equal(got, []uint64{1, 2}) || r.count("collapsed") != 1 {
			t.Errorf("pushed %v, %d collapsed, want the first dropped and the second pushed", got, r.count("collapsed"))
		}
		r.wantRest(t)
		_ = stop()
	})
}

// Each step of dropping an event fails, or is done and its answer lost: whoever leases the lane ends it, and the newest comes
// through.
func TestCollapseIsSafeAtEachStep(t *testing.T) {
	for _, call := range []string{"append", "park", "read", "delete", "forget"} {
		for name, f := range map[string]fault{"fails": notDone, "answer lost": replyLost} {
			t.Run(call+" "+name, func(t *testing.T) {
				inVirtualTime(t, func(t *testing.T, r *rig) {
					r.index.fallback = limit{every: 2 * time.Second, burst: 1}
					stop := r.start()
					r.one("a")
					r.one("a", called("position"))
					var faults atomic.Int32
					once := func(c string) fault {
						if c == call && faults.Add(1) <= 2 {
							return f
						}
						return noFault
					}
					r.mu.Lock()
					r.faults = once
					r.mu.Unlock()
					r.index.mu.Lock()
					r.index.fault = once
					r.index.mu.Unlock()
					r.one("a", called("position"))
					r.one("a", called("position"))
					pass(10 * time.Second)
					if got := r.sources("a"); !slices.Equal(got, []uint64{1, 4}) {
						t.Errorf("pushed %v, want the first and the newest", got)
					}
					if n := faults.Load(); n < 2 {
						t.Errorf("%d faults, want two", n)
					}
					// Who isn't told that it has forgotten an event can't count it.
					if n := r.count("collapsed"); n != 2 && (call != "forget" || f != replyLost) {
						t.Errorf("%d counted as collapsed, want 2", n)
					}
					r.wantRest(t)
					_ = stop()
				})
			})
		}
	}
}
