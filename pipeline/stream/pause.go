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

// Ease makes Next take one event from the server at a time, and only when it is called, for a worker that can hardly work. All
// that has come and wasn't handed out goes back to the server at once. Ease(false) ends that.
func (s *Source) Ease(on bool) {
	s.mu.Lock()
	if s.eased == on || s.stopping {
		s.mu.Unlock()
		return
	}
	s.eased, s.wanted = on, false
	var back []*delivery
	if on {
		back, s.queue = s.queue, nil
	}
	if s.session != nil {
		s.drain(s.session) // the next one pulls as many as it may
	}
	s.mu.Unlock()
	signal(s.kick)
	signal(s.arrived) // so that a waiting Next is known to want one
	for _, d := range back {
		s.settle(d, handedBack)
	}
}

// closed says that nothing is taken in. The mutex is held.
func (s *Source) closed() bool { return s.stopping || s.paused }
