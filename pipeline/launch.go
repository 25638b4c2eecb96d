package pipeline

import (
	"context"
	"errors"
	"time"

	"sluice/limiter"
)

// readPatience is how long a body is asked for again before its event goes back to the lane: by then its slot is gone.
const readPatience = time.Second

// start sends leased events on their way. Their bodies are read at the same time, but for that of a lone one, which is read by
// who launches it.
func (w *Worker) start(ctx, hard context.Context, l *lane, events []Leased) {
	lone := l.out == 0 && len(events) == 1
	l.out += len(events)
	w.keys.book(l.key, len(events))
	for _, leased := range events {
		e := newLeasedEvent(leased, l.asked, l.fails)
		if !lone {
			e.ready = make(chan struct{})
			w.crew.give(func() {
				defer close(e.ready)
				w.read(ctx, l.key, e)
			})
		}
		if l.todo.add(e) {
			w.crew.give(func() { w.launch(ctx, hard, l) })
		}
	}
}

// read reads the body of a leased event.
func (w *Worker) read(ctx context.Context, key string, e *leasedEvent) {
	patient, cancel := context.WithTimeout(ctx, readPatience)
	defer cancel()
	e.err = w.insist(patient, "read from lane", func(context.Context) (err error) {
		e.ev, err = w.Lanes.Read(ctx, key, e.BodyID)
		return err
	})
	if e.err != nil {
		return
	}
	w.bodies.came(time.Now(), time.Since(e.asked))
	// The index knows better than the stored body, except after it was rebuilt from that.
	e.ev.Attempt, e.ev.Cost = max(e.ev.Attempt, e.Attempt), e.Cost
	if !e.First.IsZero() {
		e.ev.First = e.First
	}
	e.ev.Expires, _ = ExpiresOf(e.ev.Header, e.ev.Time) // readable, or it would not have been parked
}

// launch starts the pushes of a lane one after the other, in order, each at a slot of the lane. The first one that can be pushed
// it pushes itself, while another goroutine launches those behind.
func (w *Worker) launch(ctx, hard context.Context, l *lane) {
	for e := l.todo.next(); e != nil; e = l.todo.next() {
		err := w.await(ctx, l, e)
		if errors.Is(err, errTaken) {
			continue // by whoever drains the lane
		}
		w.promises.give(-1)
		if errors.Is(err, errExpired) {
			w.crew.give(func() { l.results.put(w.expire(hard, l, e)) })
			continue
		}
		w.keys.book(l.key, -1)
		if err == nil {
			l.results.put(w.pushLeased(hard, l, e, func() {
				if l.todo.passOn() {
					w.crew.give(func() { w.launch(ctx, hard, l) })
				}
			}))
			return
		}
		r := result{Settlement: Settlement{Was: e.Entry, Now: e.Entry, Fate: Back}}
		if errors.Is(err, ErrGone) {
			r.Fate = Done
			if e.Collapsed { // by the worker that parked the newer one, which leaves the rest to the lease
				w.Observer.Settled(Collapsed)
			}
		}
		l.results.put(r)
	}
}

var errTaken = errors.New("taken back")

// await waits for the event's body, its slot and a push slot. It returns with the push slot and a place of the key taken,
// or with an error and nothing. An event that can't start holds up those behind it, until they all go back into the lane.
func (w *Worker) await(ctx context.Context, l *lane, e *leasedEvent) error {
	if e.ready == nil {
		w.read(ctx, l.key, e)
	} else {
		select {
		case <-e.ready:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	switch {
	case errors.Is(e.err, ErrGone):
		return e.err
	case e.err != nil:
		return l.todo.stick(ctx, e, false)
	}
	for {
		if e.over || e.ev.expired(w.Index.Now()) {
			return errExpired
		}
		s, missed, ok := l.todo.slot(e.Cost, time.Now())
		for range missed {
			w.missed()
		}
		if !ok {
			if err := l.todo.stick(ctx, e, true); err != nil {
				return err
			}
			continue
		}
		if err := sleepUntil(ctx, s.at); err != nil {
			return err
		}
		if e.ev.expired(w.Index.Now()) {
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
			return l.todo.stick(ctx, e, false)
		}
	}
}

// pushLeased makes one attempt for an event of a lane and calls begun when that begins. It gives the push slot and the
// key's place back.
func (w *Worker) pushLeased(hard context.Context, l *lane, e *leasedEvent, begun func()) result {
	if e.ev.Attempt == 0 {
		w.Observer.LaneWait(w.Index.Now().Sub(e.ev.Time))
	}
	r := result{Settlement: Settlement{Was: e.Entry, Now: e.Entry, Fate: Back}}
	begun()
	f, err := w.attempt(l.held, e.ev, e.fails)
	w.slots.release()
	if f.outcome == DeadLettered {
		defer w.keys.leave(l.key) // a key whose dead letters find no room gets no further
	} else {
		w.keys.leave(l.key)
	}
	if l.held.Err() != nil && err != nil {
		return r // cut off by the stop, or another worker may have it
	}
	r.healthy, r.sleep = f.rest == 0 && !markOf(err).away, f.rest
	switch {
	case f.outcome == "":
		r.Now.Attempt, r.Now.First, r.failure, r.After = e.ev.Attempt, e.ev.First, brief(err), f.after
	case w.finish(hard, e.ev, f, err):
		r.Fate = Done
	}
	return r
}

// expire ends an event of a lane that is not to be pushed: its time is over, a newer one has taken its place, or it costs too
// much. Until then it counts as booked: a key whose dead letters find no room gets no further.
func (w *Worker) expire(hard context.Context, l *lane, e *leasedEvent) result {
	defer w.keys.book(l.key, -1)
	r := result{Settlement: Settlement{Was: e.Entry, Now: e.Entry, Fate: Back}}
	f := fate{outcome: Expired}
	var cause error
	switch {
	case e.Collapsed:
		f.outcome = Collapsed
	case e.costly && !e.ev.expired(w.Index.Now()):
		f.outcome, f.reason, cause = DeadLettered, Cost, tooCostly(e.Cost)
	}
	if w.finish(hard, e.ev, f, cause) {
		r.Fate = Done
	}
	return r
}

// finish ends a lane's event: the body goes before its place in the index, so that a body without a place always means
// that the index lost it.
func (w *Worker) finish(hard context.Context, ev *Event, f fate, cause error) bool {
	if f.outcome == DeadLettered && w.intern(hard, ev, f.reason, cause) != nil {
		return false
	}
	err := w.insistLast(hard, "delete from lane", func(ctx context.Context) error {
		return w.Lanes.Delete(ctx, ev.Body)
	})
	if err != nil {
		return false
	}
	if f.outcome == Delivered {
		w.Observer.Latency(Lane, w.Index.Now().Sub(ev.Time))
	}
	w.Observer.Settled(f.outcome)
	return true
}
