package stream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"sluice/pipeline"
)

// How much a worker takes from the source ahead of its work. Beyond mostEvents or mostBytes in hand nothing more is taken
// from the client's buffer, which holds at most pullMessages more: 2,000 events and 64 MiB unsettled in all.
const (
	mostEvents = 1500
	mostBytes  = 48 << 20

	pullMessages  = 500
	pullBytes     = 8 << 20 // of one request; two may be on their way
	pullExpiry    = 10 * time.Second
	pullHeartbeat = 2 * time.Second
)

// ErrStopped is what Next returns after Stop.
var ErrStopped = errors.New("the source was stopped")

// limits of a source that tests choose differently.
type limits struct {
	events int
	bytes  int64
	idle   time.Duration // nothing arrived for so long: ask the server whether it has something
	absent time.Duration // for how long a stream that is gone may be on its way back
}

var usualLimits = limits{events: mostEvents, bytes: mostBytes, idle: 10 * time.Second, absent: 30 * time.Second}

// Source hands out the events of the producers' stream. Three goroutines serve it: the client's, which only takes events
// into the queue (receive); one that keeps them coming through all that may happen to the consumer (tend); and one that
// tells the server which events are still in hand, so that no other worker gets them (keep).
type Source struct {
	js     jetstream.JetStream
	cfg    Config
	log    *slog.Logger
	limits limits

	arrived chan struct{} // the queue isn't empty; holds one
	room    chan struct{} // there is room for one more; holds one
	kick    chan struct{} // tend has something to do; holds one
	stopped chan struct{} // closed by Stop
	failed  chan struct{} // closed when err is set

	stopTending context.CancelFunc
	goroutines  sync.WaitGroup // tend and keep
	sessions    sync.WaitGroup // until the client's buffer of each is empty

	telling sync.Mutex // held while the server is told of settlements

	mu       sync.Mutex
	err      error       // final
	stopping bool        // nothing is taken in any more
	paused   bool        // nothing is taken in for now
	eased    bool        // only what Next waits for is taken in
	wanted   bool        // while eased: Next waits
	queue    []*delivery // not handed out yet, oldest first
	held     *deliveries // all unsettled, those of the queue too
	owed     []debt      // settled, but not told to the server yet
	paying   bool        // payDebts will be called within a moment

	// sure says that the stream and the consumer are known to be those with the identity below. While they may be others
	// nothing is settled at the server: the same sequences could be other events.
	sure     bool
	identity int64 // creation time of the stream
	bound    binding
	ackWait  time.Duration
	session  *session // nil: not pulling
	full     bool     // pulling ended because there was no room
	last     time.Time
	restarts int // sessions replaced because nothing came; for tests
}

// OpenSource begins to pull events from the consumer that [Setup] has made. ctx only bounds the opening.
func OpenSource(ctx context.Context, js jetstream.JetStream, cfg Config, log *slog.Logger) (*Source, error) {
	return openSource(ctx, js, cfg, log, usualLimits)
}

func openSource(ctx context.Context, js jetstream.JetStream, cfg Config, log *slog.Logger, limits limits) (*Source, error) {
	s := &Source{
		js: js, cfg: cfg, log: log, limits: limits,
		arrived: make(chan struct{}, 1), room: make(chan struct{}, 1), kick: make(chan struct{}, 1),
		stopped: make(chan struct{}), failed: make(chan struct{}),
		held: newDeliveries(), ackWait: ackWait, last: time.Now(),
	}
	t := newTender(s)
	if err := t.begin(ctx); err != nil {
		t.close()
		return nil, err
	}
	ctx, s.stopTending = context.WithCancel(context.Background())
	s.goroutines.Go(func() { t.run(ctx) })
	s.goroutines.Go(func() { s.keep(ctx) })
	return s, nil
}

// Next hands out the oldest event that has come. It blocks until there is one or ctx ends. Any other error is final. It may
// be called by several goroutines.
func (s *Source) Next(ctx context.Context) (pipeline.Delivery, error) {
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if d := s.take(); d != nil {
			return d, nil
		}
		select {
		case <-s.arrived:
		case <-ctx.Done():
		case <-s.stopped:
			return nil, ErrStopped
		case <-s.failed:
			if d := s.take(); d != nil {
				return d, nil
			}
			return nil, s.err
		}
	}
}

func (s *Source) take() *delivery {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.queue) == 0 {
		if s.eased && !s.wanted {
			s.wanted = true
			signal(s.kick)
		}
		return nil
	}
	d := s.queue[0]
	s.queue[0] = nil
	s.queue = s.queue[1:]
	if len(s.queue) > 0 {
		signal(s.arrived) // for another caller of Next
	}
	return d
}

// crowded says that no more is to be taken in.
func (s *Source) crowded() bool {
	return s.held.count >= s.limits.events || s.held.bytes >= s.limits.bytes
}

// roomy says that enough has been settled to pull again.
func (s *Source) roomy() bool {
	return s.held.count <= s.limits.events*2/3 && s.held.bytes <= s.limits.bytes*2/3
}

// receive takes an event in; it is called by the client, one event at a time for each session.
func (s *Source) receive(ses *session, msg jetstream.Msg) {
	meta, err := msg.Metadata()
	if err != nil {
		s.log.Error("a message came that JetStream didn't send", "subject", msg.Subject())
		return
	}
	d := s.newDelivery(ses, msg, meta)
	s.mu.Lock()
	if meta.Sequence.Consumer <= ses.last {
		// The consumer counts anew: it, and perhaps its stream, is another one. Whose event this is has to be found out.
		ses.doubtful = true
		s.doubt(ses)
	}
	ses.last, ses.missed = meta.Sequence.Consumer, 0
	s.last = d.sign
	s.waitForRoom(ses)
	if s.closed() || ses.doubtful || s.eased && !s.wanted {
		s.mu.Unlock()
		_ = msg.Nak()
		return
	}
	s.held.push(d)
	s.queue = append(s.queue, d)
	if s.eased {
		s.wanted = false
		s.drain(ses)
	}
	s.mu.Unlock()
	signal(s.arrived)
}

// waitForRoom holds the client up while too much is in hand. What waits in its buffer behind this event is not protected
// by keep, so that it doesn't wait for long: then pulling ends, and the rest of the buffer is taken in all the same. The
// mutex is held, but not while waiting.
func (s *Source) waitForRoom(ses *session) {
	if !s.crowded() || s.closed() || ses.draining {
		return
	}
	timer := time.NewTimer(s.ackWait / 6)
	defer timer.Stop()
	for s.crowded() && !s.closed() && !ses.draining {
		s.mu.Unlock()
		patient := true
		select {
		case <-s.room:
		case <-ses.drained:
		case <-timer.C:
			patient = false
		}
		s.mu.Lock()
		if !patient && !ses.draining {
			s.full = true
			s.drain(ses)
		}
	}
}

func (s *Source) newDelivery(ses *session, msg jetstream.Msg, meta *jetstream.MsgMetadata) *delivery {
	source := pipeline.SourceID{Stream: meta.Stream, Created: ses.identity, Seq: meta.Sequence.Stream}
	header := pipeline.Header(msg.Headers())
	id := pipeline.EventID(header, source)
	if _, replayed := pipeline.Replayed(header); replayed {
		header = producerHeader(msg.Headers())
	}
	return &delivery{
		source: s,
		msg:    msg,
		event: pipeline.Event{
			ID:      id,
			Subject: msg.Subject(),
			Header:  header,
			Data:    msg.Data(),
			Time:    meta.Timestamp,
			Source:  source,
		},
		again: meta.NumDelivered > 1,
		size:  int64(len(msg.Data()) + headerSize(msg.Headers()) + len(msg.Subject())),
		sign:  time.Now(),
	}
}

// keep tells the server of each event in hand before its AckWait runs out, and of settlements that couldn't be told before.
func (s *Source) keep(ctx context.Context) {
	for {
		s.mu.Lock()
		wait := s.ackWait
		s.mu.Unlock()
		select {
		case <-ctx.Done():
			return
		case <-time.After(max(wait/12, 20*time.Millisecond)):
		}
		s.payDebts()
		now := time.Now()
		s.mu.Lock()
		var old []*delivery
		if s.sure {
			old = s.held.olderThan(now.Add(-wait/3), now)
		}
		identity := s.identity
		s.mu.Unlock()
		for _, d := range old {
			if d.event.Source.Created == identity {
				_ = d.msg.InProgress() // unsent: it is redelivered, and told apart by its source identity
			}
		}
	}
}

// Stop ends pulling. All that has come and wasn't handed out goes back to the server at once, for other workers; what was
// handed out stays with its holders, and is kept from others until it is settled or Close is called.
func (s *Source) Stop() {
	s.mu.Lock()
	if s.stopping {
		s.mu.Unlock()
		return
	}
	s.stopping = true
	close(s.stopped)
	back := s.queue
	s.queue = nil
	if s.session != nil {
		s.drain(s.session)
	}
	s.mu.Unlock()
	for _, d := range back {
		s.settle(d, handedBack)
	}
	s.payDebts()
}

// Close stops the source, waits until the client's buffer has gone back, and sends what is still to be told, all until ctx
// ends; without a connection it waits for nothing. Events that are handed out and unsettled are no longer kept from other
// workers.
func (s *Source) Close(ctx context.Context) error {
	s.Stop()
	emptied := make(chan struct{})
	go func() {
		s.sessions.Wait()
		close(emptied)
	}()
	connected := s.js.Conn().IsConnected()
	if connected {
		select {
		case <-emptied:
		case <-ctx.Done():
		}
	}
	s.stopTending()
	s.goroutines.Wait()
	if !connected {
		return fmt.Errorf("closing the source: %w", errNotConnected)
	}
	s.payDebts()
	flush, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	if err := s.js.Conn().FlushWithContext(flush); err != nil {
		return explain(s.js.Conn(), "closing the source", err)
	}
	return nil
}

// fail ends the source for good.
func (s *Source) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.err = err
		close(s.failed)
	}
}

// signal sets a flag that is a channel for one element.
func signal(flag chan struct{}) {
	select {
	case flag <- struct{}{}:
	default:
	}
}
