// Package limitertest is the suite that every limiter has to pass, wherever it keeps its tokens.
package limitertest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sluice/limiter"
)

// Limiter is what is tested.
type Limiter interface {
	Reserve(ctx context.Context, key string, cost int64, horizon time.Duration) (limiter.Decision, error)
}

// Stepper is a limiter whose clock can be set, as that of a server can.
type Stepper interface {
	Limiter
	// Step sets the clock forward or back. From then on it may stand still between the steps.
	Step(by time.Duration)
}

// Run tests limiters that open makes, each with limits of its own and no state. Those that are a [Stepper] are tested on clocks
// that jump, too.
func Run(t *testing.T, open func(t *testing.T, limits limiter.Limits) Limiter) {
	for name, test := range map[string]func(*suite){
		"burst at once, then refused with a wait that suffices": (*suite).burst,
		"slots within the horizon are apart as the rate says":   (*suite).slots,
		"a refusal takes nothing":                               (*suite).refusal,
		"a horizon below 0 only asks":                           (*suite).asking,
		"cost counts, and what can never fit is told":           (*suite).cost,
		"keys don't share tokens":                               (*suite).keys,
		"several limits agree":                                  (*suite).several,
		"a sliding limit holds in any of its periods":           (*suite).sliding,
		"paused and unlimited":                                  (*suite).extremes,
		"many at once never exceed the limit":                   (*suite).concurrent,
		"many keys at once have what each has alone":            (*suite).manyKeys,
		"who is gone takes nothing":                             (*suite).gone,
		"what remains is told":                                  (*suite).remaining,
		"a clock that jumps brings no tokens":                   (*suite).steps,
		"a clock that goes to and fro brings no tokens":         (*suite).toAndFro,
	} {
		t.Run(name, func(t *testing.T) { test(&suite{t, open}) })
	}
}

type suite struct {
	*testing.T
	open func(*testing.T, limiter.Limits) Limiter
}

func (s *suite) limiter(limits string) Limiter {
	s.Helper()
	l, err := limiter.ParseLimits(limits)
	if err != nil {
		s.Fatal(err)
	}
	return s.open(s.T, l)
}

func (s *suite) ask(l Limiter, key string, cost int64, horizon time.Duration) limiter.Decision {
	s.Helper()
	d, err := l.Reserve(s.Context(), key, cost, horizon)
	if err != nil {
		s.Fatal(err)
	}
	return d
}

// want asks n times and wants the verdict each time.
func (s *suite) want(l Limiter, key string, n int, verdict limiter.Verdict) {
	s.Helper()
	for i := range n {
		if d := s.ask(l, key, 1, 0); d.Verdict != verdict {
			s.Fatalf("reservation %d of %d: %+v, want verdict %d", i+1, n, d, verdict)
		}
	}
}

func (s *suite) burst() {
	l := s.limiter("2/s burst 5")
	s.want(l, "k", 5, limiter.Go)
	d := s.ask(l, "k", 1, 0)
	if d.Verdict != limiter.Park || d.Wait <= 0 || d.Wait > 500*time.Millisecond {
		s.Fatalf("beyond the burst: %+v, want a wait of up to half a second", d)
	}
	time.Sleep(d.Wait)
	s.want(l, "k", 1, limiter.Go)
}

func (s *suite) slots() {
	l := s.limiter("10/s burst 1")
	s.want(l, "k", 1, limiter.Go)
	var before time.Time
	for i := range 9 {
		d := s.ask(l, "k", 1, time.Second)
		if d.Verdict != limiter.Hold {
			s.Fatalf("slot %d: %+v, want hold", i, d)
		}
		if apart := d.At.Sub(before); i > 0 && (apart < 80*time.Millisecond || apart > 200*time.Millisecond) {
			s.Errorf("slot %d is %s after the one before, want about 100 ms", i, apart)
		}
		if late := d.Stale.Sub(d.At); late <= 0 || late > 100*time.Millisecond {
			s.Errorf("the token of slot %d can be used for %s, want some time, and at most that of one token", i, late)
		}
		before = d.At
	}
}

func (s *suite) refusal() {
	l := s.limiter("10/m burst 2")
	s.want(l, "k", 2, limiter.Go)
	first := s.ask(l, "k", 1, 0)
	s.want(l, "k", 20, limiter.Park)
	if d := s.ask(l, "k", 1, 0); d.Wait > first.Wait {
		s.Errorf("after twenty refusals the wait is %s, it was %s", d.Wait, first.Wait)
	}
}

func (s *suite) asking() {
	l := s.limiter("1/m burst 1")
	for range 5 {
		if d := s.ask(l, "k", 1, -1); d.Verdict == limiter.Go || d.Verdict == limiter.Hold {
			s.Fatalf("asking took something: %+v", d)
		}
	}
	s.want(l, "k", 1, limiter.Go)
}

func (s *suite) cost() {
	l := s.limiter("1/m burst 10")
	if d := s.ask(l, "k", 7, 0); d.Verdict != limiter.Go {
		s.Fatalf("7 of 10: %+v", d)
	}
	if d := s.ask(l, "k", 4, 0); d.Verdict != limiter.Park {
		s.Fatalf("4 of the 3 left: %+v", d)
	}
	if d := s.ask(l, "k", 3, 0); d.Verdict != limiter.Go {
		s.Fatalf("3 of the 3 left: %+v", d)
	}
	if d := s.ask(l, "k", 11, 0); d.Verdict != limiter.Never {
		s.Errorf("11 of 10: %+v, want never", d)
	}
}

func (s *suite) keys() {
	l := s.limiter("1/m burst 1")
	for i, key := range []string{"a", "a.b", "*", ">", " ", "{x}", "%", "\x00", "🙂"} {
		if d := s.ask(l, key, 1, 0); d.Verdict != limiter.Go {
			s.Errorf("key %d, %q: %+v, want go", i, key, d)
		}
	}
}

func (s *suite) several() {
	l := s.limiter("5/s burst 5, 8/m, 20/h window")
	s.want(l, "k", 5, limiter.Go)
	s.want(l, "k", 1, limiter.Park)
	time.Sleep(1100 * time.Millisecond)
	s.want(l, "k", 3, limiter.Go)
	if d := s.ask(l, "k", 1, 0); d.Verdict != limiter.Park || d.Wait < 5*time.Second || d.Wait > 8*time.Second {
		s.Errorf("the ninth at 8 a minute: %+v, want to wait for the slowest", d)
	}
}

// sliding looks at a backlog. Whether the events go at once or evenly is up to the limiter.
func (s *suite) sliding() {
	const most, period = 6, 300 * time.Millisecond
	l := s.limiter("100/s, 6/300ms sliding")
	var times []time.Time
	for begin := time.Now(); time.Since(begin) < 4*period; {
		before := time.Now()
		d := s.ask(l, "k", 1, 0)
		switch {
		case d.Verdict != limiter.Go:
			time.Sleep(time.Millisecond)
		case len(times) >= most && time.Since(times[len(times)-most]) < period:
			s.Fatalf("%d went within %s", most+1, time.Since(times[len(times)-most]))
		default:
			times = append(times, before)
		}
	}
	if len(times) < 3*most {
		s.Errorf("%d went in four periods of %d", len(times), most)
	}
}

func (s *suite) extremes() {
	s.want(s.limiter("0"), "k", 3, limiter.Park)
	l := s.limiter("unlimited")
	for range 100 {
		if d := s.ask(l, "k", 1_000_000, 0); d.Verdict != limiter.Go {
			s.Fatalf("unlimited: %+v", d)
		}
	}
}

func (s *suite) concurrent() {
	const rate, burst = 500, 50
	l := s.limiter(fmt.Sprintf("%d/s burst %d", rate, burst))
	var passed atomic.Int64
	var asking sync.WaitGroup
	begin := time.Now()
	for range 8 {
		asking.Go(func() {
			for time.Since(begin) < 400*time.Millisecond {
				d, err := l.Reserve(s.Context(), "k", 1, 0)
				if err != nil {
					s.Error(err)
					return
				}
				if d.Verdict == limiter.Go {
					passed.Add(1)
				}
			}
		})
	}
	asking.Wait()
	most := burst + int64(time.Since(begin).Seconds()*rate) + 1
	if n := passed.Load(); n > most || n < most*7/10 {
		s.Errorf("%d passed, want at most %d and most of that", n, most)
	}
}

// manyKeys asks for keys of all shards, if there are shards, at the same time.
func (s *suite) manyKeys() {
	const keys, most = 100, 2
	l := s.limiter(fmt.Sprintf("%d/h", most))
	var passed [keys]atomic.Int64
	var asking sync.WaitGroup
	for i := range keys * (most + 1) {
		asking.Go(func() {
			d, err := l.Reserve(s.Context(), fmt.Sprint("key ", i%keys), 1, 0)
			if err != nil {
				s.Error(err)
			}
			if d.Verdict == limiter.Go && err == nil {
				passed[i%keys].Add(1)
			}
		})
	}
	asking.Wait()
	for i := range passed {
		if n := passed[i].Load(); n != most {
			s.Errorf("key %d: %d of %d passed, want %d", i, n, most+1, most)
		}
	}
}

func (s *suite) gone() {
	gone, cancel := context.WithCancel(s.Context())
	cancel()
	for _, limits := range []string{"20/h", "20/h, 30/d", "20/h window", "0", "unlimited"} {
		l := s.limiter(limits)
		for range 30 {
			for _, horizon := range []time.Duration{0, time.Second} {
				if d, err := l.Reserve(gone, "k", 1, horizon); !errors.Is(err, context.Canceled) {
					s.Fatalf("%s: %+v, %v, want the end of the context", limits, d, err)
				}
			}
		}
		if limits[0] == '2' {
			s.want(l, "k", 20, limiter.Go)
		}
	}
}

func (s *suite) remaining() {
	l := s.limiter("10/h burst 5, 7/d window")
	left := func(what string, d limiter.Decision, tokens int64, scarcest int) {
		s.Helper()
		if d.Remaining != tokens || d.Scarcest != scarcest {
			s.Errorf("%s: %d tokens of limit %d remain, want %d of %d", what, d.Remaining, d.Scarcest, tokens, scarcest)
		}
	}
	left("asked before", s.ask(l, "k", 1, -1), 5, 0)
	left("one taken", s.ask(l, "k", 1, 0), 4, 0)
	left("three taken", s.ask(l, "k", 2, 0), 2, 0)
	left("refused", s.ask(l, "k", 3, 0), 2, 0)
	left("all taken", s.ask(l, "k", 2, 0), 0, 0)
	left("nothing left", s.ask(l, "k", 1, 0), 0, 0)

	l = s.limiter("9/h burst 12, 3/d window")
	left("of the slower one", s.ask(l, "k", 1, 0), 2, 1)
	if d := s.ask(s.limiter("unlimited"), "k", 1, 0); d.Remaining != math.MaxInt64 {
		s.Errorf("unlimited: %d tokens remain", d.Remaining)
	}
}

func (s *suite) steps() {
	for limits, most := range map[string]int{"3/h": 3, "3/h window": 3, "3/h sliding": 3, "3/h leaky": 1} {
		l, ok := s.limiter(limits).(Stepper)
		if !ok {
			return
		}
		const longer = 66 * time.Minute // than it takes to have all again
		steps := []struct {
			by   time.Duration
			then int // so many go
		}{{100 * time.Hour, most}, {-500 * time.Millisecond, 0}, {-100 * time.Minute, 0}, {longer, most}, {1000 * time.Hour, most}}
		for i, step := range steps {
			l.Step(step.by)
			for n := range step.then + 1 {
				want := limiter.Go
				if n == step.then {
					want = limiter.Park
				}
				if d := s.ask(l, "k", 1, 0); d.Verdict != want {
					s.Fatalf("%s, step %d by %s, event %d of %d: %+v, want verdict %d", limits, i, step.by, n, step.then, d, want)
				}
			}
		}
	}
}

// toAndFro is as two servers whose clocks differ, in turn.
func (s *suite) toAndFro() {
	for _, limits := range []string{"3/2s", "3/2s window", "3/2s sliding", "3/2s leaky"} {
		l, ok := s.limiter(limits).(Stepper)
		if !ok {
			return
		}
		begin, passed := time.Now(), 0
		for i := range 80 {
			l.Step(900 * time.Millisecond * time.Duration(1-i%2*2))
			for s.ask(l, "k", 1, 0).Verdict == limiter.Go {
				passed++
			}
		}
		// Some time may have passed, and the clock was 0.9 s ahead once.
		if most := 3 + int(3*(time.Since(begin)+900*time.Millisecond)/(2*time.Second)) + 3; passed > most {
			s.Errorf("%s: %d passed, want %d at most", limits, passed, most)
		}
	}
}
