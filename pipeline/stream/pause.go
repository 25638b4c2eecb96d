package stream

// Pause ends pulling until Resume, for a worker that can't work while others can: all that has come and wasn't handed out
// goes back to the server at once. What was handed out stays with its holders, and is kept from others until it is settled.
func (s *Source) Pause() {
	s.mu.Lock()
	if s.paused || s.stopping {
		s.mu.Unlock()
		return
	}
	s.paused = true
	back := s.queue
	s.queue = nil
	if s.session != nil {
		s.drain(s.session)
	}
	s.mu.Unlock()
	for _, d := range back {
		s.settle(d, handedBack)
	}
}

// Resume pulls again.
func (s *Source) Resume() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.paused {
		s.paused = false
		signal(s.kick)
	}
}

// closed says that nothing is taken in. The mutex is held.
func (s *Source) closed() bool { return s.stopping || s.paused }
