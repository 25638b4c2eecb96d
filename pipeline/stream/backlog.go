package stream

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Behind says how far the workers together are behind the source: how many events no worker is at work on, and when the
// oldest that wasn't delivered yet was stored (zero: all were). Events that a worker has in hand don't count, however many
// they are and however long it takes; what was delivered once more does until it is settled.
func (s *Source) Behind(ctx context.Context) (events int, oldest time.Time, err error) {
	b, err := LookAtBacklog(ctx, s.js, s.cfg)
	if err == nil && b.Waiting > 0 {
		oldest, err = s.oldest(ctx, b.reached)
	}
	return b.Waiting + b.Again, oldest, err
}

// oldest says when the first event after a sequence was stored.
func (s *Source) oldest(ctx context.Context, after uint64) (oldest time.Time, err error) {
	doing := "reading from stream " + s.cfg.Stream
	stream, err := s.js.Stream(ctx, s.cfg.Stream)
	if err != nil {
		return oldest, explain(s.js.Conn(), doing, err)
	}
	for _, subject := range s.cfg.Subjects {
		msg, err := stream.GetMsg(ctx, after+1, jetstream.WithGetMsgSubject(subject))
		switch {
		case errors.Is(err, jetstream.ErrMsgNotFound): // delivered meanwhile
		case err != nil:
			return oldest, explain(s.js.Conn(), doing, err)
		case oldest.IsZero() || msg.Time.Before(oldest):
			oldest = msg.Time
		}
	}
	return oldest, nil
}

// Stored is how many messages the lanes have; an event too large for one has two.
func (l *Lanes) Stored(ctx context.Context) (uint64, error) { return l.store.messages(ctx) }

// Stored is how many messages the dead letters have; one too large for one has two.
func (d *DeadLetters) Stored(ctx context.Context) (uint64, error) { return d.store.messages(ctx) }

func (s *store) messages(ctx context.Context) (uint64, error) {
	info, err := s.info(ctx)
	if err != nil {
		return 0, err
	}
	return info.State.Msgs, nil
}
