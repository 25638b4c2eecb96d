package pipeline

import (
	"context"
	"errors"
	"sync"
	"time"

	"sluice/limiter"
)

// launches is what a lane has leased and not started, in order: events, and slots. A slot belongs to the lane rather than
// to its event: when one is missed, or its event turns out to be gone, the events behind move up, so that they stay in
// order and no slot is wasted that could be used.
type launches struct {
	more   chan struct{} // events came, or no more will; holds one
	mu     sync.Mutex
	events []*leasedEvent
	slots  []slot
	closed bool
}

// slot is the right to push events that cost so much, from At on, until it is stale.
type slot struct {
	at, stale time.Time
	cost      int64
}

// leasedEvent is an event whose body is being read.
type leasedEvent struct {
	Entry
	slot  slot
	over  bool          // its time is over, and it has no slot
	ready chan struct{} // closed when ev or err is set
	ev    *Event
	err   error
}

func newLaunches() *launches { return &launches{more: make(chan struct{}, 1)} }

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
	if len(q.slots) == 0 || q.slots[0].cost != cost {
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

// readPatience is how long a body is asked for again before its event goes back to the lane: by then its slot is gone.
const readPatience = time.Second

// fetch starts to read the body of a leased event.
func (w *Worker) fetch(ctx context.Context, key string, l Leased) *leasedEvent {
	e := &leasedEvent{Entry: l.Entry, slot: slot{l.At, l.Stale, l.Cost}, over: l.Expired, ready: make(chan struct{})}
	go func() {
		defer close(e.ready)
		patient, cancel := context.WithTimeout(ctx, readPatience)
		defer cancel()
		e.err = w.insist(patient, "read from lane", func(context.Context) (err error) {
			e.ev, err = w.Lanes.Read(ctx, key, l.Seq)
			return err
		})
		if e.err != nil {
			return
		}
		// The index knows better than the stored body, except after it was rebuilt from that.
		e.ev.Attempt, e.ev.Cost = max(e.ev.Attempt, l.Attempt), l.Cost
		if !l.First.IsZero() {
			e.ev.First = l.First
		}
		e.ev.Expires, _ = ExpiresOf(e.ev.Header, e.ev.Time) // readable, or it would not have been parked
	}()
	return e
}

// launch starts the pushes of a lane one after the other, in order, each at a slot of the lane.
func (w *Worker) launch(ctx, hard context.Context, l *lane) {
	for e := l.todo.next(); e != nil; e = l.todo.next() {
		err := w.await(ctx, l, e)
		w.promises.give(-1)
		w.keys.book(l.key, -1)
		if err == nil {
			begun := make(chan struct{})
			go func() { l.results <- w.pushLeased(hard, l.key, e, begun) }()
			<-begun // the scheduler would rather start the last one first
			continue
		}
		if errors.Is(err, errExpired) {
			go func() { l.results <- w.expire(hard, e) }()
			continue
		}
		r := result{Settlement: Settlement{Was: e.Entry, Now: e.Entry, Fate: Back}}
		if errors.Is(err, ErrGone) {
			r.Fate = Done
		}
		l.results <- r
	}
}

var errNoSlot = errors.New("no slot is left")

// await waits for the event's body, its slot and a push slot. It returns with the push slot and a place of the key taken,
// or with an error and nothing.
func (w *Worker) await(ctx context.Context, l *lane, e *leasedEvent) error {
	select {
	case <-e.ready:
	case <-ctx.Done():
		return ctx.Err()
	}
	if e.err != nil {
		return e.err
	}
	for {
		if e.over || e.ev.expired(time.Now()) {
			return errExpired
		}
		s, missed, ok := l.todo.slot(e.Cost, time.Now())
		for range missed {
			w.missed()
		}
		if !ok {
			return errNoSlot
		}
		if err := sleepUntil(ctx, s.at); err != nil {
			return err
		}
		if e.ev.expired(time.Now()) {
			l.todo.giveBack(s)
			return errExpired
		}
		if err := w.slots.acquire(ctx, true); err != nil {
			return err
		}
		switch w.hindrance(l.key, s.stale) {
		case "":
			return nil
		case limiter.Busy: // too late for this slot: try the next one
			w.slots.release()
		default:
			w.slots.release()
			return errNoSlot
		}
	}
}

// pushLeased makes one attempt for an event of a lane and closes begun when that begins. It gives the push slot and the
// key's place back.
func (w *Worker) pushLeased(hard context.Context, key string, e *leasedEvent, begun chan<- struct{}) result {
	if e.ev.Attempt == 0 {
		w.Observer.LaneWait(time.Since(e.ev.Time))
	}
	r := result{Settlement: Settlement{Was: e.Entry, Now: e.Entry, Fate: Back}}
	close(begun)
	f, err := w.attempt(hard, e.ev)
	w.giveUpSlot(key)
	if hard.Err() != nil && err != nil {
		return r // cut off by the stop
	}
	if r.healthy = !f.sleep; f.sleep {
		r.sleep = f.after
	}
	switch {
	case f.outcome == "":
		r.Now.Attempt, r.Now.First = e.ev.Attempt, e.ev.First
		if !f.sleep {
			r.After = f.after
		}
	case w.finish(hard, e.ev, e.Seq, f, err):
		r.Fate = Done
	}
	return r
}

// expire drops an event of a lane whose time is over.
func (w *Worker) expire(hard context.Context, e *leasedEvent) result {
	r := result{Settlement: Settlement{Was: e.Entry, Now: e.Entry, Fate: Back}}
	if w.finish(hard, e.ev, e.Seq, fate{outcome: Expired}, nil) {
		r.Fate = Done
	}
	return r
}

// finish ends a lane's event: the body goes before its place in the index, so that a body without a place always means
// that the index lost it.
func (w *Worker) finish(hard context.Context, ev *Event, seq uint64, f fate, cause error) bool {
	if f.outcome == DeadLettered && w.intern(hard, ev, f.reason, cause) != nil {
		return false
	}
	err := w.insistLast(hard, "delete from lane", func(ctx context.Context) error {
		return w.Lanes.Delete(ctx, ev.Key, seq)
	})
	if err != nil {
		return false
	}
	if f.outcome == Delivered {
		w.Observer.Latency(Lane, time.Since(ev.Time))
	}
	w.Observer.Settled(f.outcome)
	return true
}
