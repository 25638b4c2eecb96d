package redisstore

import (
	"sync"
	"time"
)

// promised remembers the tokens that Redis has promised to this worker for later, until then.
type promised struct {
	mu    sync.Mutex
	slots []promise // about in order: none is more than a second ahead
}

type promise struct {
	key    string
	at     time.Time
	tokens int64
}

func (p *promised) add(key string, at time.Time, tokens int64) {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	over := 0
	for over < len(p.slots) && !p.slots[over].at.After(now) {
		over++
	}
	p.slots = append(p.slots[over:], promise{key, at, tokens})
}

// after answers what is promised for later than now, by key.
func (p *promised) after(now time.Time) map[string]int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	tokens := map[string]int64{}
	for _, s := range p.slots {
		if s.at.After(now) {
			tokens[s.key] += s.tokens
		}
	}
	return tokens
}
