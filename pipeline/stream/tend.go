package stream

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// lookGap lies at least between two questions about the consumer, should each answer lead to the next.
const lookGap = 100 * time.Millisecond

// tender keeps events coming: it makes the requests, replaces those that are lost, and finds or makes the consumer again.
// Its fields belong to one goroutine.
type tender struct {
	s      *Source
	status chan nats.Status

	looked time.Time // when the consumer was last asked about
	begun  time.Time // when begin was last called
	gone   time.Time // since when the stream is missing; zero: it isn't
	said   string    // trouble logged last
	saidAt time.Time
	retry  time.Duration
}

func newTender(s *Source) *tender {
	status := s.nc.StatusChanged(nats.CONNECTED, nats.RECONNECTING, nats.CLOSED)
	return &tender{s: s, status: status, retry: retryFirst}
}

func (t *tender) close() { t.s.nc.RemoveStatusListener(t.status) }

func (t *tender) run(ctx context.Context) {
	defer t.close()
	for {
		wait := t.step(ctx)
		select {
		case <-ctx.Done():
			return
		case <-t.s.failed:
			return
		case <-t.s.kick:
		case <-time.After(wait):
		case status := <-t.status:
			switch status {
			case nats.RECONNECTING:
				// While there is no connection anything may happen to the stream. The client would ask again as soon as it is connected.
				t.s.mu.Lock()
				t.s.doubt()
				t.s.mu.Unlock()
			case nats.CLOSED:
				t.s.fail(errors.New("the connection to NATS was closed"))
			}
		}
	}
}

// step does what is due and says how long there is nothing more to do.
func (t *tender) step(ctx context.Context) time.Duration {
	s := t.s
	if ctx.Err() != nil || !s.nc.IsConnected() {
		return time.Second // its status wakes us
	}
	s.mu.Lock()
	sure, suspect := s.sure, s.suspect
	lost := s.session != nil && s.session.lost(time.Now(), s.limits.beat)
	s.mu.Unlock()
	switch {
	case !sure && time.Since(t.begun) < lookGap:
		return lookGap - time.Since(t.begun)
	case !sure, lost:
		t.begun = time.Now()
		if err := t.begin(ctx); err != nil {
			return t.trouble(ctx, err)
		}
	case suspect && time.Since(t.looked) >= lookGap, time.Since(t.looked) >= s.limits.idle:
		t.look(ctx)
	}
	if err := s.ask(); err != nil {
		return t.trouble(ctx, err)
	}
	return t.rest()
}

// rest is how long there is nothing to do but what somebody asks for.
func (t *tender) rest() time.Duration {
	s := t.s
	s.mu.Lock()
	defer s.mu.Unlock()
	rest := max(s.limits.idle-time.Since(t.looked), 0)
	if s.suspect {
		rest = max(min(rest, lookGap-time.Since(t.looked)), 0)
	}
	if s.session != nil && s.session.expected > 0 {
		rest = min(rest, max(time.Until(s.session.sign.Add(lostBeats*s.limits.beat)), time.Millisecond))
	}
	return rest
}

// begin finds the consumer, or makes it. A session from before is replaced.
func (t *tender) begin(ctx context.Context) error {
	s := t.s
	b, err := t.bind(ctx)
	if err != nil {
		return err
	}
	t.looked, t.gone, t.retry = time.Now(), time.Time{}, retryFirst
	s.floor.saw(b.floor, b.consumer.CachedInfo(), b.stream)
	if t.said != "" {
		s.log.Info("events can be pulled again", "stream", s.cfg.Stream, "consumer", s.cfg.consumer())
		t.said = ""
	}
	defer s.payDebts()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bound.stream != 0 && s.bound.stream != b.stream {
		s.log.Warn("the stream was created anew; its events are new events", "stream", s.cfg.Stream)
	}
	s.sure, s.bound, s.last, s.suspect = true, b, time.Now(), false
	if s.session != nil {
		s.drain(s.session)
	}
	t.judge(b.unfit)
	return nil
}

// judge takes in whether the consumer is as sluice needs it. The mutex is held.
func (t *tender) judge(unfit error) {
	s := t.s
	switch {
	case unfit == nil && s.unfit != nil:
		s.log.Info("the consumer can be used again", "stream", s.cfg.Stream, "consumer", s.cfg.consumer())
	case unfit != nil && s.bound.stream != 0:
		t.say("the consumer was changed; no events are pulled until it is changed back", unfit)
	}
	s.unfit = unfit
	if unfit != nil && s.session != nil {
		s.drain(s.session)
	}
}

// bind finds the consumer. One that is gone is made again if that is permitted; it goes on after the last event up to which
// all was known to be acknowledged, if the stream is still the same.
func (t *tender) bind(ctx context.Context) (binding, error) {
	s := t.s
	b, err := bind(ctx, s.js, s.cfg)
	if errors.Is(err, jetstream.ErrStreamNotFound) && s.cfg.Setup == SetupAll {
		if _, err := ensureSource(ctx, s.js, s.cfg); err != nil {
			return b, err
		}
		b, err = bind(ctx, s.js, s.cfg)
	}
	if !errors.Is(err, jetstream.ErrConsumerNotFound) || s.cfg.Setup == SetupOff {
		return b, err
	}
	begins, err := makeConsumer(ctx, s.js, s.cfg, s.floor.last())
	if err != nil {
		return b, err
	}
	s.log.Warn("the consumer was gone; it is made again", "stream", s.cfg.Stream, "consumer", s.cfg.consumer(), "begins", begins)
	return bind(ctx, s.js, s.cfg)
}

// look asks the server about the consumer: whether it is still the same, configured as before, up to where all is acknowledged,
// and, when nothing came for a while, whether something should have come.
func (t *tender) look(ctx context.Context) {
	s := t.s
	t.looked = time.Now()
	s.mu.Lock()
	was := s.bound
	s.suspect = false
	s.mu.Unlock()
	info, err := was.consumer.Info(ctx)
	if err == nil && info.Created.Equal(was.made) {
		s.floor.saw(info.AckFloor.Stream, info, was.stream)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case errors.Is(err, jetstream.ErrConsumerNotFound), errors.Is(err, jetstream.ErrStreamNotFound),
		err == nil && !info.Created.Equal(was.made):
		s.doubt()
	case err != nil:
		s.log.Debug("asking about the consumer", "err", err)
	case !s.sure:
	default:
		s.bound.configured(info.Config)
		t.judge(compareConsumer(s.cfg, info.Config, was.taken))
		if s.session == nil || s.session.expected == 0 || time.Since(s.last) < s.limits.idle || info.NumPending == 0 || info.Paused {
			return
		}
		s.log.Warn("events wait in the stream and don't come; pulling anew", "stream", s.cfg.Stream, "waiting", info.NumPending)
		s.restarts++
		s.drain(s.session)
	}
}

// trouble decides on an error: it is final, or how long to wait before the next try.
func (t *tender) trouble(ctx context.Context, err error) time.Duration {
	s := t.s
	if ctx.Err() != nil {
		return time.Second
	}
	absent := errors.Is(err, jetstream.ErrStreamNotFound)
	if absent && t.gone.IsZero() {
		t.gone = time.Now()
	}
	mayPass := !isFault(err) || noJetStream(err) || absent && time.Since(t.gone) < s.limits.absent
	if !mayPass {
		s.fail(err)
		return time.Second
	}
	t.say("no events can be pulled; trying again", err)
	t.retry = min(2*t.retry, retryMost)
	return t.retry/2 + rand.N(t.retry/2)
}

// say logs a trouble when it begins or changes, and now and then.
func (t *tender) say(what string, err error) {
	if text := err.Error(); text != t.said || time.Since(t.saidAt) > repeatLog {
		t.said, t.saidAt = text, time.Now()
		t.s.log.Warn(what, "err", err)
	}
}
