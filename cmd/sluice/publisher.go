package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/time/rate"

	"sluice/limiter"
)

const (
	// publishWindow is how many events may wait for their confirmation. It is kept below the window of nats.go, which
	// doesn't wake all who wait for room in it.
	publishWindow = 512
	// publishTimeout is how long one confirmation may take.
	publishTimeout = 10 * time.Second
	// publishTries is how often an event with an id is sent while its confirmations are lost.
	publishTries = 5
	// publishGrace is how long confirmations are waited for after the command was told to end.
	publishGrace = 5 * time.Second
)

// publisher publishes events to JetStream, many at a time, and counts how that went. publish is called from one
// goroutine, report from any.
type publisher struct {
	js     jetstream.JetStream
	pace   *rate.Limiter   // nil: none
	report func(err error) // of an event that isn't stored

	slots   chan struct{}
	waiting sync.WaitGroup
	abandon context.Context // ends when confirmations are no longer waited for
	stop    func()          // releases abandon

	published, duplicates, failed atomic.Int64
}

// newPublisher returns a publisher for a run that ends with ctx. finish is to be called at the end, whatever comes.
func newPublisher(ctx context.Context, nc *nats.Conn, domain string, pace *rate.Limiter, report func(error)) (*publisher, error) {
	opts := []jetstream.JetStreamOpt{
		jetstream.WithPublishAsyncMaxPending(2 * publishWindow),
		jetstream.WithPublishAsyncTimeout(publishTimeout),
	}
	js, err := jetstream.New(nc, opts...)
	if domain != "" {
		js, err = jetstream.NewWithDomain(nc, domain, opts...)
	}
	if err != nil {
		return nil, fmt.Errorf("opening JetStream: %w", err)
	}
	abandon, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(publishGrace, cancel) })
	return &publisher{
		js: js, pace: pace, report: report,
		slots: make(chan struct{}, publishWindow), abandon: abandon,
		stop: func() { stop(); cancel() },
	}, nil
}

// publish sends one event and returns without waiting for its confirmation; name says in errors which event it was. An
// error means that nothing further can be published.
func (p *publisher) publish(ctx context.Context, name string, msg *nats.Msg) error {
	return p.publishThen(ctx, name, msg, func() {})
}

// publishThen is publish that calls then, from another goroutine, once the stream has confirmed that it holds the event.
func (p *publisher) publishThen(ctx context.Context, name string, msg *nats.Msg, then func()) error {
	if p.pace != nil {
		if err := p.pace.Wait(ctx); err != nil {
			return context.Cause(ctx)
		}
	}
	if err := p.connected(ctx); err != nil {
		return err
	}
	select {
	case p.slots <- struct{}{}:
	case <-p.abandon.Done():
		return context.Cause(ctx)
	}
	future, err := p.js.PublishMsgAsync(msg, jetstream.WithStallWait(publishTimeout))
	if err != nil {
		<-p.slots
		p.fail(name, msg, err)
		return nil
	}
	p.waiting.Go(func() {
		defer func() { <-p.slots }()
		if p.settle(name, msg, future) {
			then()
		}
	})
	return nil
}

// connected waits while the connection is being restored.
func (p *publisher) connected(ctx context.Context) error {
	nc := p.js.Conn()
	for !nc.IsConnected() {
		if nc.IsClosed() {
			return errors.New("the connection to NATS is lost")
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(50 * time.Millisecond):
		}
	}
	return nil
}

// settle waits for the stream's answer, counts it, and says whether the stream holds the event. An event whose answer was
// lost with the connection is published again if it has an id, by which the stream drops the copy.
func (p *publisher) settle(name string, msg *nats.Msg, future jetstream.PubAckFuture) bool {
	for try := 1; ; try++ {
		duplicate, err := p.confirm(future)
		switch {
		case err == nil && duplicate && try == 1:
			p.duplicates.Add(1)
			return true
		case err == nil: // a duplicate of a later try is most likely its first one
			p.published.Add(1)
			return true
		}
		if try < publishTries && lost(err) && hasHeader(msg.Header, jetstream.MsgIDHeader) && p.connected(p.abandon) == nil {
			if future, err = p.js.PublishMsgAsync(msg, jetstream.WithStallWait(publishTimeout)); err == nil {
				continue
			}
		}
		p.fail(name, msg, err)
		return false
	}
}

func (p *publisher) confirm(future jetstream.PubAckFuture) (duplicate bool, err error) {
	select {
	case ack := <-future.Ok():
		return ack.Duplicate, nil
	case err := <-future.Err():
		return false, err
	case <-p.abandon.Done():
		return false, errUnconfirmed
	}
}

// lost says whether the answer is missing, so that nobody knows whether the event is stored.
func lost(err error) bool {
	return errors.Is(err, nats.ErrDisconnected) || errors.Is(err, jetstream.ErrAsyncPublishTimeout)
}

// finish waits for all confirmations that are outstanding.
func (p *publisher) finish() {
	p.waiting.Wait()
	p.stop()
}

var errUnconfirmed = errors.New("the command ended before the stream's confirmation")

func (p *publisher) fail(name string, msg *nats.Msg, err error) {
	p.failed.Add(1)
	err = explain(err, msg, p.js.Conn().MaxPayload())
	if name != "" {
		err = fmt.Errorf("%s: %w", name, err)
	}
	p.report(err)
}

// explain says why an event isn't stored, and what to do.
func explain(err error, msg *nats.Msg, maxPayload int64) error {
	switch {
	case errors.Is(err, jetstream.ErrNoStreamResponse), errors.Is(err, nats.ErrNoResponders):
		return fmt.Errorf("no stream takes the subject %q: check SLUICE_STREAM and SLUICE_SUBJECTS, or create the stream with "+
			"'sluice setup' and SLUICE_SETUP=all", msg.Subject)
	case errors.Is(err, nats.ErrMaxPayload):
		return fmt.Errorf("the event has %d bytes, more than the server takes (max_payload %d)", len(msg.Data), maxPayload)
	case lost(err), errors.Is(err, errUnconfirmed):
		return fmt.Errorf("%w: it may be stored or not; one with an id can safely be published again", err)
	}
	return fmt.Errorf("publishing to %q: %w", msg.Subject, err)
}

// parsePace reads a rate in the grammar of limits. The flow is even: its bursts are of 10 ms, or of the burst stated if
// that is less.
func parsePace(text string) (*rate.Limiter, error) {
	limit, err := limiter.ParseLimit(text)
	switch {
	case err != nil:
		return nil, err
	case limit.Unlimited:
		return nil, nil
	case limit.Paused():
		return nil, errors.New("a rate of 0 publishes nothing; use one such as 500/s")
	}
	perSecond := float64(limit.Events) / limit.Period.Seconds()
	burst := min(limit.Burst, int64(perSecond/100))
	return rate.NewLimiter(rate.Limit(perSecond), int(max(1, burst))), nil
}
