package limiter

import "time"

// Step is as if the clock that l goes by jumped.
func (l *Local) Step(by time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.start = l.start.Add(-by)
}
