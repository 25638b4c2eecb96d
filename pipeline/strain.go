package pipeline

import (
	"sync/atomic"
	"time"
)

const (
	fewHeld    = 4 // events of a key
	highStrain = 10 * time.Millisecond
	strainOf   = 64 // calls
)

// strain is how long the limiter takes to answer, on average over the last calls. On a machine, or a Redis, with something left
// to give that is a millisecond or two; it grows with the load of both.
type strain struct{ mean atomic.Int64 }

func (s *strain) took(d time.Duration) {
	mean := s.mean.Load()
	s.mean.Store(mean + (int64(d)-mean)/strainOf) // a call that is lost to a race is no loss
}

func (s *strain) high() bool { return time.Duration(s.mean.Load()) > highStrain }
