package pipeline

import (
	"sync"
	"time"
)

const (
	firstNotice  = 20 * time.Millisecond // before anything was measured
	maxNotice    = 100 * time.Millisecond
	bodiesMemory = 100 * time.Millisecond
)

// bodies measures how long it takes from asking for a lease until the bodies of its events are here. A slot that comes
// sooner is missed, and its tokens with it: on a busy machine those were most of a lane's first second.
type bodies struct {
	mu          sync.Mutex
	since       time.Time // start of the time that is measured
	now, before time.Duration
}

// came notes that a body was here so long after its lease was asked for.
func (b *bodies) came(now time.Time, took time.Duration) {
	b.mu.Lock()
	b.roll(now)
	b.now = max(b.now, took)
	b.mu.Unlock()
}

// notice is how far ahead the first slot of a lease should be: as long as the longest wait for a body lately. Longer would
// cost a key with a full bucket more than the slots that are missed all the same, which may be some milliseconds late.
func (b *bodies) notice(now time.Time) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.roll(now)
	return min(max(b.now, b.before), maxNotice)
}

func (b *bodies) roll(now time.Time) {
	if b.since.IsZero() {
		b.since, b.before = now, firstNotice
	}
	switch age := now.Sub(b.since); {
	case age >= 2*bodiesMemory:
		b.now, b.before, b.since = 0, 0, now
	case age >= bodiesMemory:
		b.now, b.before, b.since = 0, b.now, now
	}
}
