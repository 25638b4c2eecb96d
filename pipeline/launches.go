package pipeline

import (
	"context"
	"sync"
	"time"
)

// launches is what a lane has leased and not started, in order: events, and slots. A slot belongs to the lane rather than
// to its event: when one is missed, or its event turns out to be gone, the events behind move up, so that they stay in
// order and no slot is wasted that could be used.
type launches struct {
	more  chan struct{} // something changed; holds one
	stuck chan struct{} // head is stuck; holds one

	mu        sync.Mutex
	events    []*leasedEvent
	slots     []slot
	launching bool // somebody takes the events

	head  *leasedEvent // taken, but can't start, and none may start before it
	lacks bool         // a slot is what it lacks
}

// slot is the right to push events that cost so much, from At on, until it is stale.
type slot struct {
	at, stale time.Time
	cost      int64
}

// leasedEvent is an event whose body is being read.
type leasedEvent struct {
	Entry
	slot   slot
	asked  time.Time     // when its lease was
	fails  int           // pushes in a row before it that found the receiver away
	over   bool          // it has no slot and is not to be pushed
	costly bool          // because it costs too much
	ready  chan struct{} // closed when ev or err is set; nil: who launches it reads it
	ev     *Event
	err    error
}

func newLeasedEvent(l Leased, asked time.Time, fails int) *leasedEvent {
	return &leasedEvent{
		Entry: l.Entry, slot: slot{l.At, l.Stale, l.Cost}, asked: asked, fails: fails, over: l.Useless || l.Costly, costly: l.Costly,
	}
}

func newLaunches() *launches {
	return &launches{more: make(chan struct{}, 1), stuck: make(chan struct{}, 1)}
}

// add puts an event behind the others, and says whether somebody has to launch it.
func (q *launches) add(e *leasedEvent) (idle bool) {
	q.mu.Lock()
	q.events = append(q.events, e)
	if !e.over {
		q.slots = append(q.slots, e.slot)
	}
	idle, q.launching = !q.launching, true
	q.mu.Unlock()
	q.wake()
	return idle
}

func (q *launches) wake() {
	select {
	case q.more <- struct{}{}:
	default:
	}
}

// next takes the first event. When there is none, who launches has to end.
func (q *launches) next() *leasedEvent {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.launching = len(q.events) > 0; !q.launching {
		return nil
	}
	e := q.events[0]
	q.events = q.events[1:]
	return e
}

// passOn is called by who launches and has something else to do now. It says whether somebody has to go on.
func (q *launches) passOn() (more bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.launching = len(q.events) > 0
	return q.launching
}

// slot takes the first slot that is not stale, if it pays for an event of that cost; missed counts the stale ones.
func (q *launches) slot(cost int64, now time.Time) (s slot, missed int, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.slots) > 0 && now.After(q.slots[0].stale) {
		q.slots = q.slots[1:]
		missed++
	}
	if !q.pays(cost) {
		return slot{}, missed, false
	}
	s = q.slots[0]
	q.slots = q.slots[1:]
	return s, missed, true
}

// giveBack puts a slot that wasn't used back in front of the others.
func (q *launches) giveBack(s slot) {
	q.mu.Lock()
	q.slots = append([]slot{s}, q.slots...)
	q.mu.Unlock()
}

func (q *launches) pays(cost int64) bool { return len(q.slots) > 0 && q.slots[0].cost == cost }

// stick says that e can't start. It returns nil once there is a slot, if that is what e lacks, and errTaken once takeBack
// has taken it.
func (q *launches) stick(ctx context.Context, e *leasedEvent, lacksSlot bool) error {
	q.mu.Lock()
	q.head, q.lacks = e, lacksSlot
	q.mu.Unlock()
	select {
	case q.stuck <- struct{}{}:
	default:
	}
	for {
		q.mu.Lock()
		taken := q.head != e
		free := !taken && (ctx.Err() != nil || q.lacks && q.pays(e.Cost))
		if free {
			q.head = nil
		}
		q.mu.Unlock()
		switch {
		case taken:
			return errTaken
		case free:
			return ctx.Err()
		}
		select {
		case <-q.more:
		case <-ctx.Done():
		}
	}
}

// takeBack takes a stuck event and all behind it, and their slots: if only that one went back into the lane, those behind
// would overtake it. It answers none when nothing is stuck any more.
func (q *launches) takeBack() []*leasedEvent {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.head == nil || q.lacks && q.pays(q.head.Cost) {
		return nil
	}
	events := append([]*leasedEvent{q.head}, q.events...)
	q.head, q.events, q.slots = nil, nil, nil
	q.wake()
	return events
}
