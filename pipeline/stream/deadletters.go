package stream

import (
	"context"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"sluice/pipeline"
)

// DeadLetters keeps the events that can't be delivered in the stream SLUICE_DLQ.
type DeadLetters struct {
	names Names
	store *store
}

var _ pipeline.DeadLetters = (*DeadLetters)(nil)

// DeadLetter is an event with what kept it from being delivered.
type DeadLetter struct {
	Event  *pipeline.Event
	Seq    uint64 // in SLUICE_DLQ
	Reason pipeline.DeadReason
	Cause  string // for people; one line
}

// OpenDeadLetters opens the dead letters, whose stream [Setup] has made.
func OpenDeadLetters(ctx context.Context, js jetstream.JetStream, cfg Config) (*DeadLetters, error) {
	n := cfg.names()
	s, err := openStore(ctx, js, cfg, n.DLQStream())
	if err != nil {
		return nil, err
	}
	return &DeadLetters{names: n, store: s}, nil
}

// Created is when the stream was created, in Unix nanoseconds.
func (d *DeadLetters) Created() int64 { return d.store.created }

// Bury stores ev with its reason, once within a minute, and returns when that is safe. The errors [pipeline.ErrTooLarge]
// and [ErrFull] say that it isn't stored; after any other it may be.
func (d *DeadLetters) Bury(ctx context.Context, ev *pipeline.Event, reason pipeline.DeadReason, cause error) error {
	h := storedHeader(ev)
	h.Set(headerReason, string(reason))
	if cause != nil {
		h.Set(headerError, printable(cause.Error()))
	}
	_, err := d.store.put(ctx, d.names.Dead(reason, ev.Key), ev.Source.String()+":"+string(reason), h, ev.Data)
	return err
}

// Read returns the dead letter with sequence seq, or [pipeline.ErrGone].
func (d *DeadLetters) Read(ctx context.Context, seq uint64) (DeadLetter, error) {
	ev, h, err := d.store.read(ctx, "", seq)
	if err != nil {
		return DeadLetter{}, err
	}
	return deadLetter(ev, h, seq), nil
}

// Delete removes a dead letter that was read. One that is gone is no error.
func (d *DeadLetters) Delete(ctx context.Context, seq uint64) error {
	return d.store.delete(ctx, seq)
}

// Each calls fn with all dead letters, in the order they were stored and without their data, up to the last one that was
// there when it began. It ends with the first error of fn.
func (d *DeadLetters) Each(ctx context.Context, fn func(DeadLetter) error) error {
	return d.store.each(ctx, func(ev *pipeline.Event, h nats.Header, seq uint64) error {
		return fn(deadLetter(ev, h, seq))
	})
}

func deadLetter(ev *pipeline.Event, h nats.Header, seq uint64) DeadLetter {
	return DeadLetter{Event: ev, Seq: seq, Reason: pipeline.DeadReason(h.Get(headerReason)), Cause: h.Get(headerError)}
}
