package sink

import (
	"context"
	"net"
	"sync"
)

// socket is a connection that knows whether its reader waits for more. A reader with a buffer asks for more only when it has used
// up what came: while it waits after an answer, nothing came behind that.
type socket struct {
	net.Conn

	mu      sync.Mutex
	waits   bool          // in Read
	closed  bool          // from this side
	changed chan struct{} // closed when one of them becomes true; nil: nobody waits for it
}

func (s *socket) Read(p []byte) (int, error) {
	s.note(func() { s.waits = true })
	n, err := s.Conn.Read(p)
	s.mu.Lock()
	s.waits = false
	s.mu.Unlock()
	return n, err
}

func (s *socket) Close() error {
	s.note(func() { s.closed = true })
	return s.Conn.Close()
}

func (s *socket) note(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
	if s.changed != nil {
		close(s.changed)
		s.changed = nil
	}
}

// reading says whether the reader waits for more.
func (s *socket) reading() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.waits && !s.closed
}

// awaitReading waits until the reader waits for more; it says false if it never will, or when ctx ends.
func (s *socket) awaitReading(ctx context.Context) bool {
	s.mu.Lock()
	if s.waits || s.closed {
		defer s.mu.Unlock()
		return !s.closed
	}
	if s.changed == nil {
		s.changed = make(chan struct{})
	}
	changed := s.changed
	s.mu.Unlock()
	select {
	case <-changed:
		return s.reading()
	case <-ctx.Done():
		return false
	}
}
