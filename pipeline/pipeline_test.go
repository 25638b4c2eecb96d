package pipeline

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sluice/limiter"
)

// inVirtualTime runs a test in a world of its own, in which time passes only while all wait.
func inVirtualTime(t *testing.T, fn func(t *testing.T, r *rig)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { fn(t, newRig(t)) })
}

// pass lets time pass, and then all that is to happen at that moment.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// wantTrace compares what was done to events since the last call.
func (r *rig) wantTrace(t *testing.T, want string) {
	t.Helper()
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	if got := strings.Join(r.trace, ", "); got != want {
		t.Errorf("done: %s\nwant: %s", got, want)
	}
	r.trace = nil
}

func wantTimes(t *testing.T, what string, got []time.Duration, want ...time.Duration) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s at %v, want %v", what, got, want)
	}
}

// wantRest fails unless everything that was published has come to its end.
func (r *rig) wantRest(t *testing.T) {
	t.Helper()
	if left := r.rest(); len(left) > 0 {
		t.Errorf("%d left: %s", len(left), strings.Join(left[:min(len(left), 5)], "; "))
	}
}

func ms(n ...int) (list []time.Duration) {
	for _, n := range n {
		list = append(list, time.Duration(n)*time.Millisecond)
	}
	return list
}

// decisions is a limiter that gives answers in a row, and then Go.
type decisions struct {
	answers  []func() (limiter.Decision, error)
	horizons []time.Duration
}

func (l *decisions) Reserve(_ context.Context, _, _ string, _ int64, horizon time.Duration) (limiter.Decision, error) {
	l.horizons = append(l.horizons, horizon)
	if len(l.answers) == 0 {
		return limiter.Decision{Verdict: limiter.Go, Stale: time.Now().Add(time.Hour)}, nil
	}
	next := l.answers[0]
	l.answers = l.answers[1:]
	return next()
}

func decide(d limiter.Decision) func() (limiter.Decision, error) {
	return func() (limiter.Decision, error) { return d, nil }
}

// goWithin and holdFor are decisions relative to the moment of asking.
func goWithin(stale time.Duration) func() (limiter.Decision, error) {
	return func() (limiter.Decision, error) {
		return limiter.Decision{Verdict: limiter.Go, Stale: time.Now().Add(stale)}, nil
	}
}

func holdFor(d time.Duration) func() (limiter.Decision, error) {
	return func() (limiter.Decision, error) {
		at := time.Now().Add(d)
		return limiter.Decision{Verdict: limiter.Hold, Reason: limiter.Throttled, At: at, Stale: at.Add(20 * time.Millisecond)}, nil
	}
}

func TestEventWithATokenIsPushedAndThenAcked(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, r *rig) {
		stop := r.start()
		r.publish("a", 1)
		r.wantTrace(t, "push, ack")
		wantTimes(t, "direct latency", r.latency[Direct], 0)
		if n := r.count("delivered"); n != 1 {
			t.Errorf("%d events counted as delivered, want 1", n)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestEventIsHeldUntilExactlyItsSlot(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, r *rig) {
		stop, begin := r.start(), time.Now()
		r.publish("a", 3)
		pass(time.Second)
		wantTimes(t, "pushes", r.sink.after("a", begin), ms(0, 100, 200)...)
		wantTimes(t, "held latency", r.latency[Held], ms(100, 200)...)
		r.wantTrace(t, "push, ack, push, ack, push, ack")
		if n := r.count("held"); n != 0 {
			t.Errorf("%d events counted as held at rest, want 0", n)
		}
		_ = stop()
	})
}

func TestParkStoresTheBodyThenThePlaceThenAcks(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, r *rig) {
		r.index.fallback = limit{every: -1}
		stop := r.start()
		r.publish("a", 1)
		r.wantTrace(t, "append, park, ack")
		if n := r.index.of("a").opening; n != 0 {
			t.Errorf("%d events on their way into the lane after the park, want 0", n)
		}
		if n := r.count("throttled paused"); n != 1 {
			t.Errorf("%d events throttled because the key is paused, want 1", n)
		}
		_ = stop()
	})
}

func TestEventStaysInTheSourceUntilItsBodyIsStored(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, r *rig) {
		r.index.fallback = limit{every: -1}
		failures := 3
		r.faults = func(call string) fault {
			if call == "append" && failures > 0 {
				failures--
				return notDone
			}
			return noFault
		}
		stop := r.start()
		r.publish("a", 1)
		r.wantTrace(t, "append fails")
		pass(139 * time.Millisecond) // 20 + 40 + 80 ms between attempts
		r.wantTrace(t, "append fails, append fails")
		pass(time.Millisecond)
		r.wantTrace(t, "append, park, ack")
		_ = stop()
	})
}

func TestUndeliverableEventsAreDeadLetteredWithTheirReason(t *testing.T) {
	tests := []struct {
		reason DeadReason
		change func(*delivery)
	}{
		{NoKey, func(d *delivery) { d.ev.Subject = "events" }},
		{BadKey, func(d *delivery) { d.ev.Subject = "events." + strings.Repeat("k", limiter.MaxKey+1) }},
		{BadHeader, func(d *delivery) { d.ev.Header = Header{"Sluice-Cost": {"none"}} }},
		{Cost, func(d *delivery) { d.ev.Header = Header{"Sluice-Cost": {"2"}} }},
		{TooLarge, func(d *delivery) { d.ev.Data, d.redelivered = []byte("too large"), true }},
	}
	for _, tt := range tests {
		t.Run(string(tt.reason), func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, r *rig) {
				stop := r.start()
				r.publish("a", 1, tt.change)
				r.wantTrace(t, "bury "+string(tt.reason)+", ack")
				if n, of := r.count("dead_lettered"), r.count("buried "+string(tt.reason)); n != 1 || of != 1 {
					t.Errorf("%d events counted as dead-lettered, %d for this reason, want 1", n, of)
				}
				_ = stop()
			})
		})
	}
}

func TestRedeliveredEventAlwaysGoesThroughItsLane(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, r *rig) {
		stop, begin := r.start(), time.Now()
		r.publish("a", 1, func(d *delivery) { d.redelivered = true })
		pass(claimPause)
		r.wantTrace(t, "append, park, ack, push, delete, settle")
		if n := r.index.made("reserve", "a", begin); n != 1 {
			t.Errorf("the limiter was asked %d times whether a redelivered event may wait, want once", n)
		}
		r.wantRest(t)
		_ = stop()
	})
}

func TestEventThatWouldWaitTooLongOverflows(t *testing.T) {
	tests := map[string]struct {
		cfg   func(*Config)
		ahead int64
		want  string
	}{
		"dead letter":           {func(*Config) {}, 5, "bury max_wait, ack"},
		"dead letter, key full": {func(c *Config) { c.KeyMaxWaiting = 5 }, 5, "bury key_full, ack"},
		"not quite full":        {func(c *Config) { c.KeyMaxWaiting = 6 }, 5, "bury max_wait, ack"},
		"drop":                  {func(c *Config) { c.Drop = true }, 5, "ack"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, r *rig) {
				tt.cfg(&r.cfg)
				r.mayDrop = r.cfg.Drop
				r.limiter = &decisions{answers: []func() (limiter.Decision, error){
					decide(limiter.Decision{Verdict: limiter.Overflow, Reason: limiter.Throttled, Ahead: tt.ahead, Wait: time.Hour}),
				}}
				stop := r.start()
				r.publish("a", 1)
				r.wantTrace(t, tt.want)
				if dropped := r.count("dropped"); (dropped == 1) != r.cfg.Drop {
					t.Errorf("%d events counted as dropped", dropped)
				}
				_ = stop()
			})
		})
	}
}

// A rolling restart hands back what flooded a key: it may wait no more than other events may.
func TestRedeliveredEventsKeepToTheBoundsUnlessTheyWaitAlready(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, r *rig) {
		r.cfg.MaxWait, r.index.maxWait = 5*time.Second, 5*time.Second
		r.index.limits["a"] = limit{time.Second, 1}
		redelivered := func(d *delivery) { d.redelivered = true }
		stop := r.start()
		r.publish("a", 20, redelivered)
		pass(100 * time.Millisecond)
		if dead := len(r.dead); dead < 13 || dead > 15 {
			t.Errorf("%d of 20 events were dead-lettered, want those that would wait longer than 5s", dead)
		}
		r.index.mu.Lock()
		last := ordered(r.index.of("a").lane)[len(r.index.of("a").lane)-1]
		r.index.mu.Unlock()
		r.mu.Lock()
		body := r.bodies[last.Seq]
		r.mu.Unlock()
		waits := &delivery{rig: r, ev: &body, redelivered: true} // its ack was lost
		before := len(r.dead)
		r.offer(waits)
		pass(100 * time.Millisecond)
		if len(r.dead) != before {
			t.Error("an event that waits already was dead-lettered when it came again")
		}
		pass(10 * time.Second)
		r.wantRest(t)
		for src := range uint64(20) {
			if n := r.sink.times(src + 1); n+min(1, len(r.dead[src+1])) != 1 {
				t.Errorf("event %d was delivered %d times, dead letter %q", src+1, n, r.dead[src+1])
			}
		}
		_ = stop()
	})
}

func TestPushSlotIsTakenBeforeTheTokens(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, r *rig) {
		r.cfg.Concurrency = 1
		r.index.fallback = limit{}
		r.sink.answer = func(string, *Event) answer { return answer{takes: time.Second} }
		stop, begin := r.start(), time.Now()
		r.publish("a", 1)
		synctest.Wait()
		r.publish("b", 1)
		pass(3 * time.Second)
		if at := r.index.calls["reserve"]["b"][0].at.Sub(begin); at != time.Second {
			t.Errorf("tokens of b reserved after %s, want 1s: when a's push slot is free", at)
		}
		_ = stop()
	})
}

func TestStaleTokenIsAskedForOnceMoreAndThenParked(t *testing.T) {
	old, good := goWithin(-time.Millisecond), goWithin(time.Millisecond)
	tests := map[string]struct {
		answers []func() (limiter.Decision, error)
		want    string
		late    int
	}{
		"fresh":       {[]func() (limiter.Decision, error){goWithin(0)}, "push, ack", 0},
		"stale once":  {[]func() (limiter.Decision, error){old, good}, "push, ack", 1},
		"stale twice": {[]func() (limiter.Decision, error){old, old}, "append, park, ack", 2},
		"stale, then parked": {
			[]func() (limiter.Decision, error){old, decide(limiter.Decision{Verdict: limiter.Park})}, "append, park, ack", 1,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, r *rig) {
				r.index.fallback = limit{every: -1}
				r.limiter = &decisions{answers: tt.answers}
				stop := r.start()
				r.publish("a", 1)
				r.wantTrace(t, tt.want)
				if n := r.count("late"); n != tt.late {
					t.Errorf("%d late tokens counted, want %d", n, tt.late)
				}
				if n := r.workers[0].slots.free; n != 256 {
					t.Errorf("%d push slots are free at rest, want 256", n)
				}
				_ = stop()
			})
		})
	}
}

func TestHeldEventWhoseTokenGrewStaleIsParked(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, r *rig) {
		r.cfg.Concurrency = 1
		r.index.fallback = limit{every: -1}
		r.limiter = &decisions{answers: []func() (limiter.Decision, error){holdFor(100 * time.Millisecond)}}
		r.sink.answer = func(string, *Event) answer { return answer{takes: time.Second} }
		stop := r.start()
		r.publish("a", 1)
		synctest.Wait()
		r.publish("b", 1) // has the only push slot for a second
		r.wantTrace(t, "push")
		pass(time.Second)
		r.wantTrace(t, "ack, append, park, ack")
		if n := r.count("throttled late"); n != 1 {
			t.Errorf("%d events throttled because they were late, want 1", n)
		}
		_ = stop()
	})
}

func TestNewEventOfAKeyBeyondItsCapIsParked(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, r *rig) {
		r.cfg.Concurrency = 24 // 3 of a key
		r.index.fallback = limit{}
		r.sink.answer = func(string, *Event) answer { return answer{takes: 10 * time.Second} }
		stop := r.start()
		r.publish("a", 3)
		r.wantTrace(t, "push, push, push")
		r.publish("a", 1)
		r.wantTrace(t, "append, park, ack")
		if n := r.count("throttled key_inflight"); n != 1 {
			t.Errorf("%d events throttled by the key's cap, want 1", n)
		}
		r.publish("b", 1)
		r.wantTrace(t, "push")
		if a, b := r.count("decided a"), r.count("decided b"); a != 4 || b != 1 {
			t.Errorf("%d and %d decisions observed, want 4 and 1", a, b)
		}
		pass(10 * time.Second)
		if a, b := r.count("pushed a"), r.count("pushed b"); a < 3 || b != 1 {
			t.Errorf("%d and %d pushes observed, want at least 3, and 1", a, b)
		}
		_ = stop()
	})
}

func TestNothingOfAKeyIsPushedOnceItsReceiverIsAway(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, r *rig) {
		r.index.fallback = limit{}
		r.sink.answer = func(string, *Event) answer { return answer{err: RetryAfter(errStatus503, 10*time.Second)} }
		r.failing("append") // so that the index doesn't hear of it at once
		stop := r.start()
		other := r.start()
		r.publish("a", 1)
		synctest.Wait()
		r.publish("a", 10)
		pass(9 * time.Second)
		r.failing()
		if n := len(r.sink.of("a")); n != 1 {
			t.Errorf("%d pushes to a receiver that asked for a pause, want 1", n)
		}
		_, _ = stop(), other()
	})
}

func TestSinkThatPanicsIsTriedAgain(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, r *rig) {
		r.sink.answer = func(_ string, ev *Event) answer { return answer{panic: ev.Attempt == 1} }
		stop := r.start()
		r.publish("a", 1)
		r.wantTrace(t, "push, append, park, ack")
		pass(2 * time.Second)
		r.wantTrace(t, "push, delete, settle")
		r.wantRest(t)
		_ = stop()
	})
}

func TestRunEndsWithTheSource(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, r *rig) {
		gone := errors.New("no such stream")
		w := New(r.cfg, Ports{
			Source: failingSource{gone}, Limiter: r.index, Index: indexOf{r.index, "w"}, Lanes: lanesOf{r}, DeadLetters: lanesOf{r},
			Sink: r.sink, Gossip: gossipOf{r, 0}, Observer: observerOf{r}, Log: slog.New(r.log),
		})
		if err := w.Run(t.Context()); !errors.Is(err, gone) {
			t.Errorf("Run = %v, want the source's error", err)
		}
	})
}

type failingSource struct{ err error }

func (s failingSource) Next(context.Context) (Delivery, error) { return nil, s.err }
func (s failingSource) Ease(bool)                              {}

func (s failingSource) Settled(context.Context, uint64) (upTo, last uint64, err error) {
	return 0, 0, s.err
}
