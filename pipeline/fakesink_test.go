package pipeline

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"
)

// scriptedSink answers as the test says and remembers every start.
type scriptedSink struct {
	rig    *rig
	answer func(key string, ev *Event) answer // nil: delivered at once

	mu     sync.Mutex
	starts []start
	pushed map[uint64]int // by place in the source: times delivered
	flying map[string]int // by key: pushes in flight
	peak   map[string]int // the most of those
	cut    []error        // causes of pushes that were cut off
}

// answer is what a push meets: it takes a time and ends in an error, or a panic.
type answer struct {
	takes time.Duration
	err   error
	panic bool
}

type start struct {
	key     string
	src     uint64
	attempt int
	at      time.Time
}

var (
	errStatus500 = errors.New("status 500")
	errStatus503 = Unavailable(errors.New("status 503"))
	errStatus410 = Permanent(errors.New("status 410"))
)

func (s *scriptedSink) Name() string { return "scripted" }

func (s *scriptedSink) Push(ctx context.Context, ev *Event) error {
	var a answer
	if s.answer != nil {
		a = s.answer(ev.Key, ev)
	}
	s.mu.Lock()
	s.starts = append(s.starts, start{ev.Key, ev.Source.Seq, ev.Attempt, time.Now()})
	s.flying[ev.Key]++
	s.peak[ev.Key] = max(s.peak[ev.Key], s.flying[ev.Key])
	s.mu.Unlock()
	s.rig.note("push")
	err := sleepUntil(ctx, time.Now().Add(a.takes))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.flying[ev.Key]--
	switch {
	case err != nil:
		s.cut = append(s.cut, context.Cause(ctx))
		return Unavailable(fmt.Errorf("pushing: %w", context.Cause(ctx)))
	case a.panic:
		panic("a nil map")
	case a.err == nil:
		s.pushed[ev.Source.Seq]++
	}
	return a.err
}

func (s *scriptedSink) times(src uint64) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pushed[src]
}

// of lists the starts of a key.
func (s *scriptedSink) of(key string) (list []start) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, st := range s.starts {
		if st.key == key {
			list = append(list, st)
		}
	}
	return list
}

// after lists how long after a moment the pushes of a key started.
func (s *scriptedSink) after(key string, moment time.Time) (list []time.Duration) {
	for _, st := range s.of(key) {
		list = append(list, st.at.Sub(moment))
	}
	return list
}

// knows says that the index has an event of key.
func (m *memory) knows(key string, seq uint64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.of(key)
	for _, e := range s.retry {
		if e.Seq == seq {
			return true
		}
	}
	has := func(e Entry) bool { return e.Seq == seq }
	return slices.ContainsFunc(slices.Collect(maps.Values(s.lane)), has) ||
		slices.ContainsFunc(slices.Collect(maps.Values(s.busy)), has)
}

// left lists all that waits or is leased.
func (m *memory) left() (list []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for key, s := range m.state {
		if n, busy := s.waiting(), len(s.busy); n > 0 || busy > 0 {
			list = append(list, fmt.Sprintf("index of %s: %d wait, %d leased", key, n, busy))
		}
		if !s.until.IsZero() {
			list = append(list, "lease of "+key+" held by "+s.holder)
		}
	}
	return list
}

// checkBound fails the test if pushes of key ever started faster than its limit and an allowance for lateness permit.
func (r *rig) checkBound(t *testing.T, key string, cost int64) {
	t.Helper()
	l := r.index.limit(key)
	starts := r.sink.of(key)
	for i := range starts {
		for j := i; j < len(starts); j++ {
			window := starts[j].at.Sub(starts[i].at) + r.index.allowance
			if n := int64(j-i+1) * cost; n > l.burst+int64(window/l.every) {
				t.Fatalf("%d tokens of %s used within %s, want at most %d and %s each", n, key, window, l.burst, l.every)
			}
		}
	}
}
