package pipeline

import (
	"sync"
	"time"
)

const (
	maxHorizon    = time.Second
	minHorizon    = 50 * time.Millisecond
	minPromises   = 64
	leastPromises = 16 // while tokens grow too old
	leastShare    = 1.0 / 64
	fewEvents     = 4 // that one lane may lease in any case
)

// promises bounds what a worker promises for the near future by what it can keep: no more events held and leased than it
// pushed in the last second, and a shorter horizon while more than 1 % of its tokens grow too old. While most do, that number
// shrinks, too: a worker without enough processor then starts few events in time instead of many too late, each of which
// costs another round.
type promises struct {
	mu      sync.Mutex
	held    int // events of the source that wait for a slot now
	leased  int // events of lanes that are leased and not started; those held must not starve them
	horizon time.Duration
	share   float64 // of what was pushed that may be promised

	freed chan struct{} // an event more may be leased; holds one, for one lane that waits, which passes it on

	second       time.Time // start of the second that is counted
	pushed, late int       // in this second
	before       int       // pushed in the second before
}

func newPromises() *promises {
	return &promises{horizon: maxHorizon, share: 1, freed: make(chan struct{}, 1)}
}

// most is how many promises there may be.
func (p *promises) most() int {
	return max(leastPromises, int(p.share*float64(max(minPromises, p.pushed, p.before))))
}

// ahead is how far ahead slots may be booked now: 0 when enough is promised.
func (p *promises) ahead(now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.roll(now)
	if p.held+p.leased >= p.most() {
		return 0
	}
	return p.horizon
}

// spare is how many more events may be leased.
func (p *promises) spare(now time.Time) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.roll(now)
	return p.free()
}

// free is spare with the mutex held. Less than a few is none: a lease for each single event would cost the index more than
// waiting for some more does.
func (p *promises) free() int {
	if n := p.most() - p.leased; n >= fewEvents {
		return n
	}
	return 0
}

// take counts up to want events of a lane as leased, and says how many. One lane leaves most of what is spare to others: how
// many it can have is known only when its lease is answered, and most have few.
func (p *promises) take(now time.Time, want int) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.roll(now)
	spare := p.free()
	n := min(want, spare, max(fewEvents, spare/8))
	p.leased += n
	p.tell()
	return n
}

// tell wakes one lane that waits, if there is room for it. The mutex is held.
func (p *promises) tell() {
	if p.free() == 0 {
		return
	}
	select {
	case p.freed <- struct{}{}:
	default:
	}
}

// give changes the number of leased events.
func (p *promises) give(n int) {
	p.mu.Lock()
	p.leased += n
	p.tell()
	p.mu.Unlock()
}

// hold changes the number of held events.
func (p *promises) hold(n int) {
	p.mu.Lock()
	p.held += n
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
	if p.late > p.pushed {
		p.share = max(leastShare, p.share/2)
	} else {
		p.share = min(1, p.share*1.25)
	}
	p.before, p.pushed, p.late = p.pushed, 0, 0
	if age >= 2*time.Second {
		p.before = 0
	}
	p.second = now
}
