package pipeline

import (
	"sync"
	"time"
)

const (
	maxHorizon  = time.Second
	minHorizon  = 50 * time.Millisecond
	minPromises = 64
)

// promises bounds what a worker promises for the near future by what it can keep: no more events held and leased than it
// pushed in the last second, and a shorter horizon while more than 1 % of its pushes come too late.
type promises struct {
	mu      sync.Mutex
	made    int // held and leased now
	horizon time.Duration

	second       time.Time // start of the second that is counted
	pushed, late int       // in this second
	before       int       // pushed in the second before
}

func newPromises() *promises { return &promises{horizon: maxHorizon} }

// ahead is how far ahead slots may be booked now: 0 when enough is promised.
func (p *promises) ahead(now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.roll(now)
	if p.made >= max(minPromises, p.pushed, p.before) {
		return 0
	}
	return p.horizon
}

func (p *promises) add(n int) {
	p.mu.Lock()
	p.made += n
	p.mu.Unlock()
}

// kept counts a push that started in time.
func (p *promises) kept(now time.Time) { p.count(now, 1, 0) }

// broken counts a token that grew stale.
func (p *promises) broken(now time.Time) { p.count(now, 0, 1) }

func (p *promises) count(now time.Time, pushed, late int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.roll(now)
	p.pushed += pushed
	p.late += late
}

func (p *promises) roll(now time.Time) {
	age := now.Sub(p.second)
	if age < time.Second {
		return
	}
	if p.late*100 > p.pushed+p.late {
		p.horizon = max(minHorizon, p.horizon/2)
	} else {
		p.horizon = min(maxHorizon, p.horizon+p.horizon/4)
	}
	p.before, p.pushed, p.late = p.pushed, 0, 0
	if age >= 2*time.Second {
		p.before = 0
	}
	p.second = now
}
