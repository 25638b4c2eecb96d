package pipeline

import (
	"context"
	"errors"
	"time"

	"sluice/limiter"
)

// reserve takes the event's tokens. For Go it returns with a push slot and a place of the key taken; else with neither.
// While the limiter can't answer, events stay in the source and take no slots. An error means that the worker stops, or
// that others are to have the event.
func (w *Worker) reserve(soft context.Context, d Delivery, ev *Event) (dec limiter.Decision, err error) {
	ask, queued := w.ask, limiter.LaneAhead
	if d.Redelivered() {
		ask, queued = w.askAgain, limiter.Redeliver
	}
	if w.keys.queued(ev.Key, ev.Cost, w.cfg.MaxWait, w.cfg.KeyMaxWaiting) {
		return limiter.Decision{Verdict: limiter.Park, Reason: queued}, nil
	}
	err = w.insist(soft, "reserve", func(ctx context.Context) (err error) {
		dec, err = ask(ctx, ev)
		return err
	})
	return dec, err
}

// askAgain decides on an event that was delivered before. It goes to its lane, where it may be already: parking it once more changes
// nothing then. If it isn't, the bounds on what waits hold for it as for a new one.
func (w *Worker) askAgain(soft context.Context, ev *Event) (limiter.Decision, error) {
	dec, err := w.askWait(soft, ev)
	if err == nil && dec.Verdict == limiter.Overflow {
		var waits bool
		if waits, err = w.Index.Holds(soft, ev.Key, ev.Order()); !waits {
			return dec, err
		}
	}
	if errors.Is(err, ErrElsewhere) {
		err = nil // as it came to this worker, it tries to park it
	}
	return limiter.Decision{Verdict: limiter.Park, Reason: limiter.Redeliver, Counted: dec.Counted}, err
}

// ask is reserve without patience. The push slot comes before the tokens, so that a token never waits for one.
func (w *Worker) ask(soft context.Context, ev *Event) (limiter.Decision, error) {
	if w.cfg.KeyConcurrency > 0 {
		return w.askWait(soft, ev)
	}
	if err := w.slots.acquire(soft, false); err != nil {
		return limiter.Decision{}, err
	}
	if !w.keys.enter(ev.Key) {
		w.slots.release()
		return w.askWait(soft, ev)
	}
	asked := time.Now()
	dec, err := w.Limiter.Reserve(soft, ev.Key, ev.Tier, ev.Cost, w.horizon(ev.Key))
	w.strain.took(time.Since(asked))
	if err == nil && dec.Verdict == limiter.Go && w.late(dec.Stale) {
		dec, err = w.Limiter.Reserve(soft, ev.Key, ev.Tier, ev.Cost, w.horizon(ev.Key))
	}
	switch {
	case err != nil || dec.Verdict != limiter.Go:
	case soft.Err() != nil:
		err = soft.Err()
	case w.keys.cooling(ev.Key):
		dec = limiter.Decision{Verdict: limiter.Park, Reason: limiter.Cooling} // the limiter doesn't know it yet
	case w.late(dec.Stale):
		dec = limiter.Decision{Verdict: limiter.Park, Reason: limiter.Busy}
	default:
		return dec, nil
	}
	w.giveUpSlot(ev.Key)
	return dec, err
}

// askWait asks for no tokens, only whether the event would wait too long in its lane.
func (w *Worker) askWait(soft context.Context, ev *Event) (limiter.Decision, error) {
	dec, err := w.Limiter.Reserve(soft, ev.Key, ev.Tier, ev.Cost, -1)
	if dec.Reason == limiter.Throttled {
		dec.Reason = limiter.KeyCap
	}
	return dec, err
}

// horizon is how far ahead a new event may be promised a slot. Held events keep their place in what the source hands out;
// the others need room beside them. The less there is left, the nearer a slot has to be: an event that would soon go costs
// many times as much by way of its lane, and comes out of it late. A machine that is at its limits has nothing left to pay that
// with, and all that is due comes late: then a key that holds few may hold one more in any case. The source waits for these, but
// not for the flood of one key.
func (w *Worker) horizon(key string) time.Duration {
	ahead := w.promises.ahead(time.Now())
	if w.strain.high() && w.keys.held(key) < fewHeld {
		return ahead
	}
	room := max(0, maxHeld-w.held.Load())
	return min(ahead, maxHorizon*time.Duration(room)/maxHeld)
}

func (w *Worker) giveUpSlot(key string) {
	w.keys.leave(key)
	w.slots.release()
}

// late says, and counts, that tokens have become too old to be used.
func (w *Worker) late(stale time.Time) bool {
	now := time.Now()
	if !now.After(stale) {
		return false
	}
	w.missed()
	return true
}

// missed counts tokens that had become too old.
func (w *Worker) missed() {
	w.promises.broken(time.Now())
	w.Observer.Late()
}
