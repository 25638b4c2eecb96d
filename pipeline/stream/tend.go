package stream

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// lostBeats is after how many missing heartbeats in a row the consumer is looked at.
const lostBeats = 3

// sessionGap lies at least between two sessions, should each end as soon as it begins.
const sessionGap = 100 * time.Millisecond

// session is one run of the client's Consume. A source has at most one that pulls; others may still be emptying their
// buffers. All but drained belongs to the source's mutex.
type session struct {
	identity int64 // creation time of the stream that its events are of
	consume  jetstream.ConsumeContext
	drained  chan struct{} // closed with draining
	draining bool          // pulls no more
	most     int           // events of one request
	doubtful bool          // the consumer changed under it; its events go back
	last     uint64        // consumer sequence of the last event
	missed   int           // heartbeats in a row
}

// drain ends the pulling of a session; what its buffer holds is still received. The mutex is held.
func (s *Source) drain(ses *session) {
	if ses.draining {
		return
	}
	ses.draining = true
	close(ses.drained)
	if s.session == ses {
		s.session = nil
	}
	if ses.consume != nil {
		ses.consume.Drain()
	}
	signal(s.kick)
}

// doubt is called when the consumer may be another one than before. The mutex is held.
func (s *Source) doubt(ses *session) {
	s.sure = false
	if ses != nil {
		s.drain(ses)
	}
}

// tender keeps events coming: it begins sessions, ends those that have gone silent, and finds or makes the consumer again.
// Its fields belong to one goroutine.
type tender struct {
	s      *Source
	status chan nats.Status

	consumer jetstream.Consumer
	made     time.Time // creation time of the consumer
	floor    uint64    // stream sequence below which all was acknowledged when last asked
	looked   time.Time // when last asked
	begun    time.Time // when begin was last called
	gone     time.Time // since when the stream is missing; zero: it isn't
	said     string    // trouble logged last
	saidAt   time.Time
	retry    time.Duration
}

func newTender(s *Source) *tender {
	status := s.js.Conn().StatusChanged(nats.CONNECTED, nats.RECONNECTING, nats.CLOSED)
	return &tender{s: s, status: status, retry: retryFirst}
}

func (t *tender) close() { t.s.js.Conn().RemoveStatusListener(t.status) }

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
				// While there is no connection anything may happen to the stream.
				t.s.mu.Lock()
				t.s.doubt(nil)
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
	s.mu.Lock()
	if s.full && s.roomy() {
		s.full = false
	}
	begin := !s.sure || s.session == nil && !s.full && !s.closed() && (!s.eased || s.wanted)
	silent := s.session != nil && s.session.missed >= lostBeats
	s.mu.Unlock()
	switch {
	case ctx.Err() != nil, !s.js.Conn().IsConnected():
		return time.Second // its status wakes us
	case begin && time.Since(t.begun) < sessionGap:
		return sessionGap - time.Since(t.begun)
	case begin:
		t.begun = time.Now()
		if err := t.begin(ctx); err != nil {
			return t.trouble(ctx, err)
		}
	case silent, time.Since(t.looked) >= s.limits.idle:
		t.look(ctx)
	}
	return max(s.limits.idle-time.Since(t.looked), 0)
}

// begin finds the consumer, or makes it, and pulls from it unless there is no room. A session from before a lost connection
// is replaced: the client asks again as soon as it is connected, and then waits for seconds if JetStream wasn't ready yet.
func (t *tender) begin(ctx context.Context) error {
	s := t.s
	b, err := t.bind(ctx)
	if err != nil {
		return err
	}
	t.consumer, t.made, t.floor, t.looked = b.consumer, b.made, b.floor, time.Now()
	t.gone, t.retry = time.Time{}, retryFirst
	if t.said != "" {
		s.log.Info("events can be pulled again", "stream", s.cfg.Stream, "consumer", s.cfg.consumer())
		t.said = ""
	}
	defer s.payDebts()
	s.mu.Lock()
	if s.identity != 0 && s.identity != b.stream {
		s.log.Warn("the stream was created anew; its events are new events", "stream", s.cfg.Stream)
	}
	s.sure, s.identity, s.bound, s.ackWait, s.last = true, b.stream, b, b.ackWait, time.Now()
	if s.session != nil {
		s.drain(s.session)
	}
	if s.full || s.closed() || s.eased && !s.wanted {
		s.mu.Unlock()
		return nil
	}
	ses := &session{identity: b.stream, drained: make(chan struct{}), last: b.last, most: pullMessages}
	if s.eased {
		ses.most = 1
	}
	s.session = ses
	s.sessions.Add(1)
	s.mu.Unlock()
	return t.consume(ses)
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
	floor := uint64(0)
	s.mu.Lock()
	known := s.identity
	s.mu.Unlock()
	if stream, err := s.js.Stream(ctx, s.cfg.Stream); err == nil && created(stream.CachedInfo()) == known {
		floor = t.floor
	}
	if known != 0 {
		s.log.Warn("the consumer is gone; creating it again", "stream", s.cfg.Stream, "consumer", s.cfg.consumer(), "after", floor)
	}
	if err := createConsumer(ctx, s.js, s.cfg, floor); err != nil {
		return b, err
	}
	return bind(ctx, s.js, s.cfg)
}

// consume starts a session.
func (t *tender) consume(ses *session) error {
	s := t.s
	bytes := max(pullBytes, 2*int(s.js.Conn().MaxPayload())) // a message larger than a request would never come
	consume, err := t.consumer.Consume(func(msg jetstream.Msg) { s.receive(ses, msg) },
		jetstream.PullMaxMessagesWithBytesLimit(ses.most, bytes),
		jetstream.PullExpiry(pullExpiry), jetstream.PullHeartbeat(pullHeartbeat),
		jetstream.ConsumeErrHandler(func(_ jetstream.ConsumeContext, err error) { s.consumeError(ses, err) }))
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		if s.session == ses {
			s.session = nil
		}
		s.sessions.Done()
		return fmt.Errorf("pulling from consumer %s: %w", s.cfg.consumer(), err)
	}
	ses.consume = consume
	if ses.draining {
		consume.Drain()
	}
	go func() {
		defer s.sessions.Done()
		<-consume.Closed()
		s.mu.Lock()
		s.drain(ses) // in case the client ended it
		s.mu.Unlock()
	}()
	return nil
}

// consumeError is told by the client what is wrong with a session that goes on, or why it ends.
func (s *Source) consumeError(ses *session, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ses.draining {
		return
	}
	switch {
	case errors.Is(err, jetstream.ErrConsumerDeleted):
		s.doubt(ses)
	case errors.Is(err, jetstream.ErrNoHeartbeat):
		if ses.missed++; ses.missed >= lostBeats {
			signal(s.kick)
		}
	default:
		s.log.Debug("pulling events", "err", err)
	}
}

// look asks the server about the consumer: whether it is still the same, up to where all is acknowledged, and, when nothing
// came for a while, whether something should have come.
func (t *tender) look(ctx context.Context) {
	s := t.s
	t.looked = time.Now()
	info, err := t.consumer.Info(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	ses := s.session
	switch {
	case errors.Is(err, jetstream.ErrConsumerNotFound), errors.Is(err, jetstream.ErrStreamNotFound),
		err == nil && !info.Created.Equal(t.made):
		s.doubt(ses)
	case err != nil:
		s.log.Debug("asking about the consumer", "err", err)
	default:
		t.floor = info.AckFloor.Stream
		silent := ses != nil && (ses.missed >= lostBeats || time.Since(s.last) >= s.limits.idle && !s.crowded())
		if silent && info.NumPending > 0 && !info.Paused {
			s.log.Warn("events wait in the stream and don't come; pulling anew", "stream", s.cfg.Stream, "waiting", info.NumPending)
			s.restarts++
			s.drain(ses)
		}
		if ses != nil {
			ses.missed = 0
		}
	}
}

// trouble decides on an error of begin: it is final, or how long to wait before the next try.
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
	if text := err.Error(); text != t.said || time.Since(t.saidAt) > repeatLog {
		t.said, t.saidAt = text, time.Now()
		s.log.Warn("no events can be pulled; trying again", "err", err)
	}
	t.retry = min(2*t.retry, retryMost)
	return t.retry/2 + rand.N(t.retry/2)
}
