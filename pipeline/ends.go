package pipeline

import (
	"context"
	"errors"
	"fmt"
	"time"

	"sluice/limiter"
)

// drop ends an event of the source that nothing is kept of.
func (w *Worker) drop(d Delivery, outcome Outcome) {
	d.Ack()
	w.Observer.Settled(outcome)
}

// spill ends an event that has to wait while the lanes are full, by the overflow policy, whether or not it was pushed before:
// there is nowhere to keep it for another attempt. When there is no room for dead letters either, it fails with [ErrFull].
func (w *Worker) spill(ctx context.Context, ev *Event, full error) (Outcome, error) {
	w.troubles.see(w.Log, lanesFull, full)
	if w.cfg.Drop {
		return Dropped, nil
	}
	err := w.DeadLetters.Bury(ctx, ev, LanesFull, full)
	if errors.Is(err, ErrFull) {
		return "", fmt.Errorf("%w; %w", full, err)
	}
	if err != nil {
		return "", err
	}
	w.Observer.Buried(LanesFull)
	w.buried.see(ev.Key, full, "reason", LanesFull, "id", ev.ID, "attempts", ev.Attempt)
	return DeadLettered, nil
}

func (w *Worker) keyFull(dec limiter.Decision) bool {
	return w.cfg.KeyMaxWaiting > 0 && dec.Ahead >= w.cfg.KeyMaxWaiting
}

// overflow ends an event that would wait too long.
func (w *Worker) overflow(hard context.Context, d Delivery, dec limiter.Decision) {
	if w.cfg.Drop {
		w.drop(d, Dropped)
		return
	}
	reason := MaxWait
	if w.keyFull(dec) {
		reason = KeyFull
	}
	w.bury(hard, d, reason, fmt.Errorf("would have waited %s behind %d events", dec.Wait.Round(time.Millisecond), dec.Ahead))
}

// tooCostly is why an event is dead-lettered whose tokens would never be there.
func tooCostly(cost int64) error {
	return fmt.Errorf("costs %d tokens, more than the limit's burst", cost)
}

// bury stores a dead letter, and only then lets the source forget the event.
func (w *Worker) bury(hard context.Context, d Delivery, reason DeadReason, cause error) {
	if err := w.intern(hard, d.Event(), reason, cause); err != nil {
		d.HandBack()
		return
	}
	d.Ack()
	w.Observer.Settled(DeadLettered)
}

func (w *Worker) intern(hard context.Context, ev *Event, reason DeadReason, cause error) error {
	w.buried.see(ev.Key, cause, "reason", reason, "id", ev.ID, "attempts", ev.Attempt)
	err := w.insist(hard, burying, func(ctx context.Context) error {
		err := w.DeadLetters.Bury(ctx, ev, reason, cause)
		if errors.Is(err, ErrTooLarge) && !w.isStopping() {
			err = errors.New(err.Error()) // it waits until messages may be larger: the source would hand it out again at once
		}
		return err
	})
	if err == nil {
		w.Observer.Buried(reason)
	}
	return err
}

func (w *Worker) isStopping() bool {
	select {
	case <-w.stopping:
		return true
	default:
		return false
	}
}
