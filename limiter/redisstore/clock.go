package redisstore

import (
	"sync"
	"time"
)

// clock relates Redis' clock to this process' monotonic one, so that a reply tells when its script ran however late it
// comes: by the least difference between receiving a reply and the script's time that was seen lately. That is the true
// difference and the shortest way of a reply. A time that it answers is never before the script's, so that nothing counted
// from it is too early, and after it by no more than that way.
type clock struct {
	mu           sync.Mutex
	start        time.Time // of the window
	best, before int64     // least differences in this window and the one before it, in microseconds
}

const (
	clockWindow = 5 * time.Second // the clocks run apart by less than a millisecond in two of them
	never       = int64(1) << 62
)

var processStart = time.Now()

// at answers when a script ran whose Redis time was now.
func (c *clock) at(sent, received time.Time, now int64) time.Time {
	seen := received.Sub(processStart).Microseconds() - now
	c.mu.Lock()
	switch age := received.Sub(c.start); {
	case c.start.IsZero() || age >= 2*clockWindow:
		c.start, c.best, c.before = received, never, never
	case age >= clockWindow:
		c.start, c.best, c.before = received, never, c.best
	}
	c.best = min(c.best, seen)
	offset := min(c.best, c.before)
	c.mu.Unlock()

	ran := processStart.Add(micros(now + offset))
	switch {
	case ran.Before(sent): // Redis' clock went back
		return sent
	case ran.After(received):
		return received
	}
	return ran
}
