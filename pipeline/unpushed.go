package pipeline

import (
	"context"
	"fmt"
	"time"

	"sluice/limiter"
)

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
	w.buried.see(ev.Key, cause, "id", ev.ID, "reason", reason, "attempts", ev.Attempt)
	return w.insist(hard, "dead-letter", func(ctx context.Context) error {
		return w.DeadLetters.Bury(ctx, ev, reason, cause)
	})
}

// drop ends an event of the source that is wanted no more.
func (w *Worker) drop(d Delivery, outcome Outcome) {
	d.Ack()
	w.Observer.Settled(outcome)
}
