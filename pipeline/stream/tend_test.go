package stream

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"sluice/pipeline"
)

func TestSourceGoesOnAfterAServerRestart(t *testing.T) {
	t.Parallel()
	opts := serverOptions(t)
	ns := startServer(t, opts)
	cfg := testConfig(ns)
	js := connect(t, cfg)
	if _, err := Setup(t.Context(), js, cfg); err != nil {
		t.Fatal(err)
	}
	publish(t, js, 20)
	s := open(t, js, cfg, usualLimits)
	identity := uint64(0)
	var held []pipeline.Delivery
	for range 10 {
		d := next(t, s)
		identity = uint64(d.Event().Source.Created)
		held = append(held, d)
	}
	ns.Shutdown()
	ns.WaitForShutdown()
	eventually(t, "disconnected", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return !s.sure
	})
	for _, d := range held {
		d.Ack() // can't be told now, is told later
	}
	startServer(t, opts)
	eventually(t, "published", func() bool {
		_, err := js.Publish(t.Context(), "events.new", nil)
		return err == nil
	})
	seen := drainAll(t, s, 11)
	for seq, times := range seen {
		if seq <= 10 || times > 1 {
			t.Errorf("event %d came %d times", seq, times)
		}
	}
	s.mu.Lock()
	if uint64(s.bound.stream) != identity {
		t.Error("a restart of the server changed the identity of its stream")
	}
	s.mu.Unlock()
	eventually(t, "all acked", func() bool { return consumerInfo(t, js, cfg).AckFloor.Stream == 21 })
}

func TestDeletedConsumerIsMadeAgain(t *testing.T) {
	t.Parallel()
	js, cfg := newServer(t)
	cfg.Setup = SetupOwn
	publish(t, js, 50)
	s := open(t, js, cfg, quick)
	drainAll(t, s, 50)
	tended := time.Now()
	eventually(t, "a look at the consumer", func() bool { return time.Since(tended) > 2*quick.idle })
	for round := range 2 {
		if err := js.DeleteConsumer(t.Context(), cfg.Stream, cfg.consumer()); err != nil {
			t.Fatal(err)
		}
		publish(t, js, 1)
		d := next(t, s)
		if want := uint64(51 + round); d.Event().Source.Seq != want {
			t.Fatalf("event %d came after the consumer was deleted, want %d: what was acknowledged comes again", d.Event().Source.Seq, want)
		}
		d.Ack()
		eventually(t, "acked", func() bool { return consumerInfo(t, js, cfg).NumAckPending == 0 })
		time.Sleep(2 * quick.idle)
	}
}

func TestDeletedConsumerEndsTheSourceWhenNothingMayBeCreated(t *testing.T) {
	t.Parallel()
	js, cfg := newServer(t)
	cfg.Setup = SetupOff
	s := open(t, js, cfg, quick)
	if err := js.DeleteConsumer(t.Context(), cfg.Stream, cfg.consumer()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	_, err := s.Next(ctx)
	if !isFault(err) {
		t.Errorf("got %v, want a fault", err)
	}
	wantText(t, err, "stream EVENTS has no consumer sluice", "SLUICE_SETUP")
}

func TestStreamThatStaysAwayEndsTheSource(t *testing.T) {
	t.Parallel()
	js, cfg := newServer(t)
	cfg.Setup = SetupOwn
	l := quick
	l.absent = 300 * time.Millisecond
	s := open(t, js, cfg, l)
	if err := js.DeleteStream(t.Context(), cfg.Stream); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	_, err := s.Next(ctx)
	wantText(t, err, "there is no stream EVENTS", "SLUICE_STREAM")
}

func TestRecreatedStreamHasNewIdentityAndOldAcksDontTouchIt(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		busy   bool // no pull waits when the stream is deleted, so that nobody tells
		setup  SetupMode
		remake bool
	}{
		{"told", false, SetupOwn, true}, {"not told", true, SetupOwn, true}, {"made by sluice", false, SetupAll, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			js, cfg := newServer(t)
			cfg.Setup = c.setup
			publish(t, js, 30)
			l := quick
			if c.busy {
				l.events = 10
			}
			s := open(t, js, cfg, l)
			var old []pipeline.Delivery
			for range 10 {
				old = append(old, next(t, s))
			}
			if err := js.DeleteStream(t.Context(), cfg.Stream); err != nil {
				t.Fatal(err)
			}
			if c.remake {
				all := cfg
				all.Setup = SetupAll
				if _, err := Setup(t.Context(), js, all); err != nil {
					t.Fatal(err)
				}
			}
			eventually(t, "the stream", func() bool {
				_, err := js.Publish(t.Context(), "events.1", []byte("new"))
				return err == nil
			})
			publish(t, js, 9)
			was := old[0].Event().Source.Created
			eventually(t, "the new identity", func() bool {
				s.mu.Lock()
				defer s.mu.Unlock()
				return s.sure && s.bound.stream != was
			})
			if !c.busy { // the new events are in hand
				eventually(t, "the new events", func() bool { return consumerInfo(t, js, cfg).NumAckPending == 10 })
			}
			pending := consumerInfo(t, js, cfg).NumAckPending
			for _, d := range old {
				d.Ack() // of the old stream; the same sequences exist in the new one
			}
			if err := js.Conn().Flush(); err != nil {
				t.Fatal(err)
			}
			if got := consumerInfo(t, js, cfg).NumAckPending; got < pending {
				t.Errorf("%d events of the new stream are unsettled, want %d: acks of the old stream settled others", got, pending)
			}
			seen := map[uint64]bool{}
			for len(seen) < 10 {
				d := next(t, s)
				if src := d.Event().Source; src.Created != was {
					seen[src.Seq] = true
				}
				d.Ack()
			}
		})
	}
}

func TestSilentSessionIsReplaced(t *testing.T) {
	t.Parallel()
	js, cfg := newServer(t)
	l := quick
	l.beat = 300 * time.Millisecond
	s := open(t, js, cfg, l)
	asked := func() *session {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.session != nil && s.session.expected > 0 {
			return s.session
		}
		return nil
	}
	eventually(t, "asked", func() bool { return asked() != nil })
	// A session that looks alive and whose request the server doesn't have.
	before := asked()
	if err := before.sub.Unsubscribe(); err != nil {
		t.Fatal(err)
	}
	publish(t, js, 5)
	drainAll(t, s, 5)
	if asked() == before {
		t.Error("the session wasn't replaced")
	}
}

func TestEventsThatWaitThoughTheServerGivesSignsOfLifeArePulledAnew(t *testing.T) {
	t.Parallel()
	js, cfg := newServer(t)
	l := quick
	l.idle = time.Second // no new session is as silent, however busy the machine is
	s := open(t, js, cfg, l)
	s.mu.Lock()
	if s.session != nil {
		s.drain(s.session)
	}
	inbox := js.Conn().NewInbox()
	sub, err := js.Conn().Subscribe(inbox, func(*nats.Msg) {})
	if err != nil {
		t.Fatal(err)
	}
	s.sessions.Add(1)
	sub.SetClosedHandler(func(string) { s.sessions.Done() })
	s.session = &session{ // it has asked for all there is room for, as it thinks
		sub: sub, identity: s.bound.stream, expected: l.events, asked: time.Now(), sign: time.Now().Add(time.Hour),
	}
	s.mu.Unlock()
	publish(t, js, 5)
	drainAll(t, s, 5)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.restarts != 1 {
		t.Errorf("%d restarts, want 1", s.restarts)
	}
}

func TestIdleSourceIsLeftAlone(t *testing.T) {
	t.Parallel()
	js, cfg := newServer(t)
	l := quick
	l.beat = 100 * time.Millisecond
	s := open(t, js, cfg, l)
	var first *session
	eventually(t, "asked", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		first = s.session
		return first != nil
	})
	time.Sleep(5 * quick.idle)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.session != first || s.restarts != 0 {
		t.Errorf("an idle session was replaced; %d restarts", s.restarts)
	}
}

func TestConsumerThatCountsAnewIsDoubted(t *testing.T) {
	t.Parallel()
	js, cfg := newServer(t)
	s := open(t, js, cfg, usualLimits)
	eventually(t, "asked", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.session != nil && s.session.expected > 0
	})
	s.mu.Lock()
	s.session.last = 1 << 40 // as if it had delivered so many before it was replaced unnoticed
	publish(t, js, 3)
	// All have been sent to this session before it can look at any.
	eventually(t, "delivered", func() bool { return consumerInfo(t, js, cfg).NumAckPending == 3 })
	s.mu.Unlock()
	for range 3 {
		d := next(t, s)
		if !d.Redelivered() {
			t.Errorf("event %d was handed out before the consumer was looked at", d.Event().Source.Seq)
		}
		d.Ack()
	}
}

func TestClosedConnectionEndsTheSource(t *testing.T) {
	t.Parallel()
	js, cfg := newServer(t)
	s := open(t, js, cfg, usualLimits)
	js.Conn().Close()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	_, err := s.Next(ctx)
	wantText(t, err, "connection to NATS was closed")
}
