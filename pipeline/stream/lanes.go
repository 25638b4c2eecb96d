package stream

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"

	"sluice/pipeline"
)

// Lanes keeps the bodies of waiting events in the stream SLUICE_LANES. It is safe for concurrent use; many calls at a time
// share the connection without waiting for each other.
type Lanes struct {
	names Names
	store *store
}

var _ pipeline.Lanes = (*Lanes)(nil)

// OpenLanes opens the lanes, which [Setup] has made.
func OpenLanes(ctx context.Context, js jetstream.JetStream, cfg Config) (*Lanes, error) {
	n := cfg.names()
	s, err := openStore(ctx, js, cfg, n.LanesStream(), lanesQuota)
	if err != nil {
		return nil, err
	}
	return &Lanes{names: n, store: s}, nil
}

// Created is when the stream was created, in Unix nanoseconds, as far as Mark, Last, Each or Stored have seen. Sequences mean
// something only together with it: a stream that is created anew counts from 1 again.
func (l *Lanes) Created() int64 { return l.store.created.Load() }

// Append stores ev in the lane of its key. The errors [pipeline.ErrTooLarge] and [pipeline.ErrFull] say that it isn't stored; after
// any other it may be.
func (l *Lanes) Append(ctx context.Context, ev *pipeline.Event) (pipeline.BodyID, error) {
	if !usableKey(ev.Key) {
		return pipeline.BodyID{}, fmt.Errorf("storing in stream %s: a key of %d bytes has no lane", l.store.name, len(ev.Key))
	}
	return l.store.put(ctx, l.names.Lane(ev.Key), ev.Source.String(), storedHeader(ev), ev.Data)
}

// Read returns the event that Append stored under that name, or [pipeline.ErrGone] when the leader of the stream has no event
// of key there, or the stream is another by now. Its Cost is not stored.
func (l *Lanes) Read(ctx context.Context, key string, id pipeline.BodyID) (*pipeline.Event, error) {
	ev, _, err := l.store.read(ctx, l.names.Lane(key), id)
	return ev, err
}

// Delete removes the body of an event that was read. One that is gone is no error.
func (l *Lanes) Delete(ctx context.Context, body pipeline.Body) error {
	return l.store.delete(ctx, body)
}

// Each calls fn with all stored events, in the order they were stored and without their data, up to the last one that was
// there when it began. It ends with the first error of fn.
func (l *Lanes) Each(ctx context.Context, fn func(ev *pipeline.Event, seq uint64) error) error {
	return l.store.each(ctx, nil, func(ev *pipeline.Event, _ message, seq uint64) error { return fn(ev, seq) })
}

// Between is Each for the events with after < sequence <= last.
func (l *Lanes) Between(ctx context.Context, after, last uint64, fn func(ev *pipeline.Event, seq uint64) error) error {
	return l.store.between(ctx, after, last, nil, func(ev *pipeline.Event, _ message, seq uint64) error { return fn(ev, seq) })
}

// Last is the sequence of the last event that was stored, whether or not it is still there.
func (l *Lanes) Last(ctx context.Context) (uint64, error) {
	info, err := l.store.info(ctx)
	if err != nil {
		return 0, err
	}
	return info.State.LastSeq, nil
}

// Has says whether the event stored with sequence seq is there.
func (l *Lanes) Has(ctx context.Context, key string, seq uint64) (bool, error) {
	_, err := l.Read(ctx, key, l.store.body(seq))
	if errors.Is(err, pipeline.ErrGone) {
		return false, nil
	}
	return err == nil, err
}
