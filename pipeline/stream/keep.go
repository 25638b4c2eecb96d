package stream

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Keeper makes the streams of lanes and dead letters again when they were deleted under a worker. What they held is lost with
// them; without this all that is to be parked would wait for somebody to run `sluice setup`. With SLUICE_SETUP=off it only says what is missing,
// and events stay in the source.
//
// The bucket of limits isn't made again: an empty one would end all limits that rule on while it is missing.
type Keeper struct {
	js     jetstream.JetStream
	cfg    Config
	log    *slog.Logger
	told   func()
	pace   keeperPace
	stores []*kept
}

// kept is one stream that is looked after.
type kept struct {
	*store
	want   jetstream.StreamConfig
	lost   string // what is lost with it
	known  int64  // its creation time
	said   string // logged last
	saidAt time.Time
}

// keeperPace says how often the streams are looked at.
type keeperPace struct {
	idle time.Duration // when nothing seems to be wrong
	gap  time.Duration // at least between two looks
}

var usualKeeperPace = keeperPace{idle: 5 * time.Second, gap: 500 * time.Millisecond}

// NewKeeper returns a keeper, which works in Run. told is called when there is another lane stream than before.
func NewKeeper(js jetstream.JetStream, cfg Config, lanes *Lanes, dead *DeadLetters, log *slog.Logger, told func()) *Keeper {
	return &Keeper{js: js, cfg: cfg, log: log, told: told, pace: usualKeeperPace, stores: []*kept{
		{store: lanes.store, want: lanesStream(cfg), lost: "the events that waited", known: lanes.Created()},
		{store: dead.store, want: dlqStream(cfg), lost: "the dead letters", known: dead.Created()},
	}}
}

// again makes a stream for one that there was before, unless another worker was faster. Its sequences go on far behind those of the
// old one.
func (k *Keeper) again(ctx context.Context, s *kept) (Action, error) {
	want := s.want
	want.FirstSeq = timeSequence(ctx, k.js, k.cfg)
	want.Metadata = map[string]string{madeAgain: "true"}
	return ensureOwn(ctx, k.js, k.cfg, s.quota, want)
}

// Run looks after the streams until ctx ends: at once when a call has missed one, and now and then.
func (k *Keeper) Run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-k.stores[0].missed:
		case <-k.stores[1].missed:
		case <-time.After(k.pace.idle):
		}
		for _, s := range k.stores {
			k.look(ctx, s)
		}
		sleep(ctx, k.pace.gap)
	}
}

// look makes a stream again if it is missing.
func (k *Keeper) look(ctx context.Context, s *kept) {
	_, err := s.info(ctx)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		var action Action
		if action, err = k.again(ctx, s); err == nil {
			if action.Did == "created" {
				k.log.Error("a stream was deleted while it was in use; it is made again", "stream", s.name, "lost", s.lost)
			}
			_, err = s.info(ctx)
		}
	}
	switch {
	case ctx.Err() != nil:
	case err == nil:
		if s.said != "" {
			k.log.Info("the stream is there again", "stream", s.name)
			s.said = ""
		}
		if now := s.created.Load(); now != s.known {
			s.known = now
			if s == k.stores[0] {
				k.told()
			}
		}
	case isFault(err) && !noJetStream(err):
		if text := err.Error(); text != s.said || time.Since(s.saidAt) > repeatLog {
			s.said, s.saidAt = text, time.Now()
			k.log.Error("a stream was deleted while it is in use and can't be made again; events wait in the source", "stream", s.name, "err", err)
		}
	}
}
