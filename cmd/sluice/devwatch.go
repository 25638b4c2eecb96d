package main

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"sluice/limiter"
	"sluice/pipeline"
)

// watch puts the ledger between a worker and the world. drop says that what would wait too long is dropped.
func (l *ledger) watch(ports *pipeline.Ports, drop bool) {
	ports.Sink = &watchedSink{ports.Sink, l}
	ports.DeadLetters = &watchedDeadLetters{ports.DeadLetters, l}
	ports.Index = &watchedIndex{ports.Index, l}
	ports.Observer = &watchedObserver{ports.Observer, l}
	if drop {
		ports.Limiter = &watchedLimiter{ports.Limiter, l}
	}
}

type watchedSink struct {
	pipeline.Sink
	ledger *ledger
}

func (s *watchedSink) Push(ctx context.Context, ev *pipeline.Event) error {
	s.ledger.began(ev.Key)
	err := s.Sink.Push(ctx, ev)
	s.ledger.ended(ev.Key, err, time.Since(ev.Time))
	return err
}

type watchedDeadLetters struct {
	pipeline.DeadLetters
	ledger *ledger
}

func (d *watchedDeadLetters) Bury(ctx context.Context, ev *pipeline.Event, reason pipeline.DeadReason, cause error) error {
	err := d.DeadLetters.Bury(ctx, ev, reason, cause)
	if err == nil {
		d.ledger.buried(ev.Key)
	}
	return err
}

// watchedIndex counts the events that a newer one took the place of.
type watchedIndex struct {
	pipeline.Index
	ledger *ledger
}

func (i *watchedIndex) Forget(ctx context.Context, key string, e pipeline.Entry) (was bool, err error) {
	was, err = i.Index.Forget(ctx, key, e)
	if err == nil && was {
		i.ledger.collapsed(key)
	}
	return was, err
}

func (i *watchedIndex) Settle(ctx context.Context, r pipeline.SettleRequest) (pipeline.LaneInfo, error) {
	info, err := i.Index.Settle(ctx, r)
	if err == nil {
		for _, e := range r.Events {
			if e.Was.Collapsed && e.Fate == pipeline.Done {
				i.ledger.collapsed(r.Key)
			}
		}
	}
	return info, err
}

// watchedObserver counts the events whose time was over, of whatever key.
type watchedObserver struct {
	pipeline.Observer
	ledger *ledger
}

func (o *watchedObserver) Settled(outcome pipeline.Outcome) {
	o.Observer.Settled(outcome)
	if outcome == pipeline.Expired {
		o.ledger.expired()
	}
}

// watchedLimiter counts the events that are dropped: those to which the limiter says that they would wait too long.
type watchedLimiter struct {
	pipeline.Limiter
	ledger *ledger
}

func (w *watchedLimiter) Reserve(ctx context.Context, key, tier string, cost int64, horizon time.Duration) (limiter.Decision, error) {
	d, err := w.Limiter.Reserve(ctx, key, tier, cost, horizon)
	if err == nil && d.Verdict == limiter.Overflow {
		w.ledger.dropped(key)
	}
	return d, err
}

// follow counts the events that the source stores, from its beginning, until the function returned is called.
func (l *ledger) follow(ctx context.Context, js jetstream.JetStream, cfg Config) (stop func(), err error) {
	consumer, err := js.OrderedConsumer(ctx, cfg.Stream, jetstream.OrderedConsumerConfig{FilterSubjects: cfg.Subjects})
	if err != nil {
		return nil, fmt.Errorf("counting the events of stream %s: %w", cfg.Stream, err)
	}
	consuming, err := consumer.Consume(func(msg jetstream.Msg) {
		ev := &pipeline.Event{Subject: msg.Subject(), Header: pipeline.Header(msg.Headers()), Data: msg.Data()}
		key, _ := cfg.Key.Key(ev) // without a key the event is dead-lettered, and counted as such
		l.published(key)
	})
	if err != nil {
		return nil, fmt.Errorf("counting the events of stream %s: %w", cfg.Stream, err)
	}
	return consuming.Stop, nil
}
