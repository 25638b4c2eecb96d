package stream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"sluice/pipeline"
)

// How much a worker has of the source unsettled at most: what it has in hand and what it has asked for.
const (
	mostEvents = 1500
	mostBytes  = 48 << 20
)

// keepPause is the longest between two looks at what is in hand: ack_wait may become shorter at any time.
const keepPause = 250 * time.Millisecond

// ErrStopped is what Next returns after Stop.
var ErrStopped = errors.New("the source was stopped")

// limits of a source that tests choose differently.
type limits struct {
	events int
	bytes  int64
	idle   time.Duration // between two looks at the consumer
	absent time.Duration // for how long a stream that is gone may be on its way back
	beat   time.Duration // of the server while it has no events
}

var usualLimits = limits{events: mostEvents, bytes: mostBytes, idle: 10 * time.Second, absent: 30 * time.Second, beat: 2 * time.Second}

// Source hands out the events of the producers' stream. It asks the server for as many as it has room for (pull.go). One goroutine makes the requests and keeps them answered through all that may happen to the consumer
// (tend.go), another tells the server which events are still in hand, so that no other worker gets them (keep).
type Source struct {
	js     jetstream.JetStream
	nc     *nats.Conn
	cfg    Config
	log    *slog.Logger
	limits limits
	floor  *floorKeeper

	arrived chan struct{} // the queue isn't empty; holds one
	kick    chan struct{} // tend has something to do; holds one
	stopped chan struct{} // closed by Stop
	failed  chan struct{} // closed when err is set

	stopTending context.CancelFunc
	goroutines  sync.WaitGroup // tend and keep
	sessions    sync.WaitGroup // until all that was sent to each has been received

	telling sync.Mutex // held while the server is told of settlements

	mu       sync.Mutex
	err      error       // final
	stopping bool        // nothing is asked for any more
	paused   bool        // nothing is asked for for now
	eased    bool        // only what Next waits for is asked for
	wanted   bool        // while eased: Next waits
	queue    []*delivery // not handed out yet, oldest first
	held     *deliveries // all unsettled, those of the queue too
	owed     []debt      // settled, but not told to the server yet
	paying   bool        // payDebts will be called within a moment

	// sure says that the stream and the consumer are known to be those of bound. While they may be others nothing is settled at the
	// server: the same sequences could be other events.
	sure     bool
	bound    binding
	unfit    error     // why the consumer, as it is configured now, must not be asked for events; nil: it may
	session  *session  // nil: nothing is asked for
	suspect  bool      // something about the consumer looks odd: ask about it soon
	last     time.Time // when the last event came
	restarts int       // sessions replaced because nothing came; for tests
	skipped  Skipped
}

// OpenSource begins to pull events from the consumer that [Setup] has made. ctx only bounds the opening.
func OpenSource(ctx context.Context, js jetstream.JetStream, cfg Config, log *slog.Logger) (*Source, error) {
	return openSource(ctx, js, cfg, log, usualLimits)
}

func openSource(ctx context.Context, js jetstream.JetStream, cfg Config, log *slog.Logger, limits limits) (*Source, error) {
	s := &Source{
		js: js, nc: js.Conn(), cfg: cfg, log: log, limits: limits, floor: &floorKeeper{js: js, cfg: cfg},
		arrived: make(chan struct{}, 1), kick: make(chan struct{}, 1),
		stopped: make(chan struct{}), failed: make(chan struct{}),
		held: newDeliveries(), last: time.Now(),
	}
	t := newTender(s)
	err := t.begin(ctx)
	if err == nil {
		err = s.unfit // at the start whoever has configured it is still there
	}
	if err != nil {
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

// Pause ends pulling until Resume, for a worker that can't work while others can: all that has come and wasn't handed out
// goes back to the server at once. What was handed out stays with its holders, and is kept from others until it is settled.
func (s *Source) Pause() {
	s.sendBack(func() bool {
		was := s.closed()
		s.paused = true
		return !was
	})
}

// Resume pulls again.
func (s *Source) Resume() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.paused {
		s.paused = false
		signal(s.kick)
	}
}

// Ease makes Next take one event from the server at a time, and only when it is called, for a worker that can hardly work. All
// that has come and wasn't handed out goes back to the server at once. Ease(false) ends that.
func (s *Source) Ease(on bool) {
	s.sendBack(func() bool {
		was := s.eased
		s.eased, s.wanted = on, false
		return was != on
	})
	signal(s.arrived) // so that a waiting Next is known to want one
}

// Stop ends pulling. All that has come and wasn't handed out goes back to the server at once, for other workers; what was
// handed out stays with its holders, and is kept from others until it is settled or Close is called.
func (s *Source) Stop() {
	s.sendBack(func() bool {
		was := s.stopping
		s.stopping = true
		if !was {
			close(s.stopped)
		}
		return !was
	})
	s.payDebts()
}

// sendBack makes a change to what is asked for: what was asked for under the old rule is asked for no more, and what came and
// wasn't handed out goes back. change says whether there is one, and is called with the mutex held.
func (s *Source) sendBack(change func() bool) {
	s.mu.Lock()
	if !change() {
		s.mu.Unlock()
		return
	}
	back := s.queue
	s.queue = nil
	if s.session != nil {
		s.drain(s.session)
	}
	s.mu.Unlock()
	signal(s.kick)
	for _, d := range back {
		s.settle(d, handedBack)
	}
}

// closed says that nothing is asked for. The mutex is held.
func (s *Source) closed() bool { return s.stopping || s.paused }

// keep tells the server of each event in hand before its AckWait runs out, of settlements that couldn't be told before, and of the
// consumer's floor.
func (s *Source) keep(ctx context.Context) {
	for {
		s.mu.Lock()
		wait := s.bound.ackWait
		s.mu.Unlock()
		select {
		case <-ctx.Done():
			return
		case <-time.After(max(min(wait/12, keepPause), 20*time.Millisecond)):
		}
		s.payDebts()
		now := time.Now()
		s.mu.Lock()
		var old []*delivery
		if s.sure {
			old = s.held.olderThan(now.Add(-s.bound.ackWait/3), now)
		}
		identity := s.bound.stream
		s.mu.Unlock()
		for _, d := range old {
			if d.event.Source.Created == identity {
				_ = d.tell(inProgress) // unsent: it is redelivered, and told apart by its source identity
			}
		}
		storing, cancel := context.WithTimeout(ctx, wait/6)
		s.floor.store(storing)
		cancel()
	}
}

// Close stops the source, waits until all that the server has sent has gone back, and sends what is still to be told, all until
// ctx ends; without a connection it waits for nothing. Events that are handed out and unsettled are no longer kept from other
// workers.
func (s *Source) Close(ctx context.Context) error {
	s.Stop()
	received := make(chan struct{})
	go func() {
		s.sessions.Wait()
		close(received)
	}()
	connected := s.nc.IsConnected()
	if connected {
		select {
		case <-received:
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
	if err := s.nc.FlushWithContext(flush); err != nil {
		return explain(s.nc, "closing the source", err)
	}
	s.storeFloor(flush)
	return nil
}

// storeFloor stores the floor as it is now, so that a consumer that is removed while no worker runs is made again from there.
func (s *Source) storeFloor(ctx context.Context) {
	s.mu.Lock()
	b, sure := s.bound, s.sure
	s.mu.Unlock()
	if !sure {
		return
	}
	if info, err := s.askFloor(ctx, b); err == nil {
		s.floor.saw(floorOf(info), info, b.stream)
		s.floor.store(ctx)
	}
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

var _ pipeline.Source = (*Source)(nil)
