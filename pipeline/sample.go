package pipeline

import (
	"log/slog"
	"sync"
	"sync/atomic"
)

const (
	sampleShown = 5
	sampleSize  = 1000
)

// sample shows an operator at the start what SLUICE_KEY makes of the events, and warns when it tells no users apart.
type sample struct {
	log  *slog.Logger
	done atomic.Bool

	mu    sync.Mutex
	n     int
	count map[string]int
}

func (s *sample) see(ev *Event) {
	if s.done.Load() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.n == sampleSize {
		return
	}
	if s.count == nil {
		s.count = map[string]int{}
	}
	if s.n < sampleShown {
		s.log.Info("key of an event", "subject", ev.Subject, "key", ev.Key)
	}
	s.n++
	s.count[ev.Key]++
	if s.n < sampleSize {
		return
	}
	s.done.Store(true)
	for key, n := range s.count {
		if n*100 > sampleSize*95 {
			s.log.Warn("nearly all events have one key, so one limit rules them all: is SLUICE_KEY right?",
				"key", key, "events", n, "of", sampleSize)
		}
	}
	s.count = nil
}
