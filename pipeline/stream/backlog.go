package stream

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"sluice/pipeline"
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
		msg, err := getEvent(ctx, s.js.Conn(), s.cfg, stream, after+1, subject)
		switch {
		case errors.Is(err, pipeline.ErrGone): // delivered meanwhile
		case err != nil:
			return oldest, explain(s.js.Conn(), doing, err)
		case oldest.IsZero() || msg.time.Before(oldest):
			oldest = msg.time
		}
	}
	return oldest, nil
}

// getEvent reads the message with a sequence, or the first one from there that a subject covers if that isn't empty.
// [pipeline.ErrGone]: there is none.
func getEvent(ctx context.Context, nc *nats.Conn, cfg Config, stream jetstream.Stream, seq uint64, subject string) (message, error) {
	request := map[string]any{"seq": seq}
	var opts []jetstream.GetMsgOpt
	if subject != "" {
		request["next_by_subj"] = subject
		opts = append(opts, jetstream.WithGetMsgSubject(subject))
	}
	m, err := stream.GetMsg(ctx, seq, opts...)
	switch {
	case err == nil:
		return message{m.Subject, m.Header, m.Data, m.Time}, nil
	case ctx.Err() != nil, errors.Is(err, context.DeadlineExceeded), errors.Is(err, nats.ErrTimeout), notConnected(err):
		return message{}, err
	case !stream.CachedInfo().Config.AllowDirect && errors.Is(err, jetstream.ErrMsgNotFound):
		return message{}, pipeline.ErrGone
	}
	return messageFromLeader(ctx, nc, cfg.api(), cfg.Stream, request)
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
