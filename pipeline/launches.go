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

	mu     sync.Mutex
	events []*leasedEvent
	slots  []slot
	closed bool

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
	over   bool          // it has no slot and is not to be pushed
	costly bool          // because it costs too much
	ready  chan struct{} // closed when ev or err is set
	ev     *Event
	err    error
}

func newLaunches() *launches {
	return &launches{more: make(chan struct{}, 1), stuck: make(chan struct{}, 1)}
}

func (q *launches) add(e *leasedEvent) {
	q.mu.Lock()
	q.events = append(q.events, e)
	if !e.over {
		q.slots = append(q.slots, e.slot)
	}
	q.mu.Unlock()
	q.wake()
}

// close says that no more events come; all that came have been taken by then.
func (q *launches) close() {
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	q.wake()
}

func (q *launches) wake() {
	select {
	case q.more <- struct{}{}:
	default:
	}
}

// next takes the first event; nil when no more will come.
func (q *launches) next() *leasedEvent {
	for {
		q.mu.Lock()
		if len(q.events) > 0 {
			e := q.events[0]
			q.events = q.events[1:]
			q.mu.Unlock()
			return e
		}
		closed := q.closed
		q.mu.Unlock()
		if closed {
			return nil
		}
		<-q.more
	}
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
