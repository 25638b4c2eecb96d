package pipeline

import (
	"context"
	"sync"
)

// slots are a worker's push slots. Events whose time has come get a free one before new events do.
type slots struct {
	mu    sync.Mutex
	free  int
	due   queue
	fresh queue
}

type queue []chan struct{}

func newSlots(n int) *slots { return &slots{free: n} }

// acquire waits for a slot. It fails only when ctx ends.
func (s *slots) acquire(ctx context.Context, due bool) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	if s.free > 0 {
		s.free--
		s.mu.Unlock()
		return nil
	}
	turn := make(chan struct{})
	q := &s.fresh
	if due {
		q = &s.due
	}
	*q = append(*q, turn)
	s.mu.Unlock()

	select {
	case <-turn:
		if err := ctx.Err(); err != nil {
			s.release()
			return err
		}
		return nil
	case <-ctx.Done():
		if !s.forget(q, turn) {
			s.release() // the turn came at the same moment
		}
		return ctx.Err()
	}
}

// forget takes turn out of q, and says whether it was still there.
func (s *slots) forget(q *queue, turn chan struct{}) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, t := range *q {
		if t == turn {
			*q = append((*q)[:i], (*q)[i+1:]...)
			return true
		}
	}
	return false
}

func (s *slots) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, q := range []*queue{&s.due, &s.fresh} {
		if len(*q) > 0 {
			close((*q)[0])
			*q = (*q)[1:]
			return
		}
	}
	s.free++
}

// crowded says that events whose time has come wait for a slot: the sink is slower than what was promised.
func (s *slots) crowded() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.due) > 0
}
