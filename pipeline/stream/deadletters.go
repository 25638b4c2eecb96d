package stream

import (
	"context"
	"errors"
	"slices"
	"time"

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
	pipeline.BodyID // in SLUICE_DLQ
	Event           *pipeline.Event
	Reason          pipeline.DeadReason
	Cause           string    // for people; one line
	Buried          time.Time // when it was stored
	InTwo           bool      // its data are in two messages
}

// DeadSelection says which dead letters are meant; the zero value means all.
type DeadSelection struct {
	Reasons []pipeline.DeadReason // any of these; none: all
	Key     string                // of 1 to limiter.MaxKey bytes; "": all, those without a usable key too
}

// filters are the subjects of the selected dead letters, each but once; none stands for all.
func (s DeadSelection) filters(n Names) []string {
	if len(s.Reasons) == 0 && s.Key == "" {
		return nil
	}
	token := "*"
	if s.Key != "" {
		token = keyToken(s.Key)
	}
	reasons := []pipeline.DeadReason{"*"}
	if len(s.Reasons) > 0 {
		reasons = slices.Compact(slices.Sorted(slices.Values(s.Reasons)))
	}
	all := make([]string, len(reasons))
	for i, reason := range reasons {
		all[i] = n.dead(reason, token)
	}
	return all
}

// OpenDeadLetters opens the dead letters, whose stream [Setup] has made.
func OpenDeadLetters(ctx context.Context, js jetstream.JetStream, cfg Config) (*DeadLetters, error) {
	n := cfg.names()
	s, err := openStore(ctx, js, cfg, n.DLQStream(), deadQuota)
	if err != nil {
		return nil, err
	}
	return &DeadLetters{names: n, store: s}, nil
}

// Created is when the stream was created, in Unix nanoseconds.
func (d *DeadLetters) Created() int64 { return d.store.created.Load() }

// Ahead is the clock of NATS, by which dead letters and events are dated, before this machine's.
func (d *DeadLetters) Ahead() time.Duration { return d.store.ahead }

// Bury stores ev with its reason, once within a minute, and returns when that is safe. The errors [pipeline.ErrTooLarge]
// and [pipeline.ErrFull] say that it isn't stored; after any other it may be.
func (d *DeadLetters) Bury(ctx context.Context, ev *pipeline.Event, reason pipeline.DeadReason, cause error) error {
	h := storedHeader(ev)
	h.Set(headerReason, string(reason))
	if cause != nil {
		h.Set(headerError, printable(cause.Error()))
	}
	_, err := d.store.put(ctx, d.names.Dead(reason, ev.Key), ev.Source.String()+":"+string(reason), h, ev.Data)
	return err
}

// Read returns the dead letter of that name, or [pipeline.ErrGone].
func (d *DeadLetters) Read(ctx context.Context, id pipeline.BodyID) (DeadLetter, error) {
	ev, m, err := d.store.read(ctx, "", id)
	if err != nil {
		return DeadLetter{}, err
	}
	return deadLetter(ev, m, id), nil
}

// Delete removes the body of a dead letter that was read. One that is gone is no error.
func (d *DeadLetters) Delete(ctx context.Context, body pipeline.Body) error {
	return d.store.delete(ctx, body)
}

// Discard removes a dead letter that only Each has told of. One that is gone is no error.
func (d *DeadLetters) Discard(ctx context.Context, l DeadLetter) error {
	body := pipeline.Body{BodyID: l.BodyID}
	if l.InTwo { // where its first half is has to be found out
		read, err := d.Read(ctx, l.BodyID)
		if err == nil {
			body = read.Event.Body
		} else if !errors.Is(err, pipeline.ErrGone) {
			return err
		}
	}
	return d.Delete(ctx, body)
}

// Each calls fn with the selected dead letters, in the order they were stored and without their data, up to the last one
// that was there when it began. It ends with the first error of fn. The server selects: it sends no others.
func (d *DeadLetters) Each(ctx context.Context, which DeadSelection, fn func(DeadLetter) error) error {
	return d.store.each(ctx, which.filters(d.names), func(ev *pipeline.Event, m message, seq uint64) error {
		return fn(deadLetter(ev, m, d.store.body(seq)))
	})
}

func deadLetter(ev *pipeline.Event, m message, id pipeline.BodyID) DeadLetter {
	return DeadLetter{
		BodyID: id, Event: ev, Reason: pipeline.DeadReason(m.header.Get(headerReason)), Cause: m.header.Get(headerError),
		Buried: m.time, InTwo: m.header.Get(headerPart) != "",
	}
}
