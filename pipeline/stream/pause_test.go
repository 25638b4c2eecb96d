package stream

import (
	"context"
	"errors"
	"testing"
	"time"
)

func TestPausedSourceLeavesItsEventsToOthersAndResumes(t *testing.T) {
	t.Parallel()
	js, cfg := setUp(t, 2*time.Second)
	const n = 900 // more than are pulled at once
	publish(t, js, n)
	a := open(t, js, cfg, usualLimits)
	held := next(t, a)
	eventually(t, "events come", func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		return len(a.queue) > 100
	})
	a.Pause()
	a.Pause()

	b := open(t, js, cfg, usualLimits)
	start := time.Now()
	seen := drainAll(t, b, n-1)
	if took := time.Since(start); took > time.Second {
		t.Errorf("the events came to the other after %s, want them handed back at once", took)
	}
	if seen[held.Event().Source.Seq] != 0 {
		t.Error("the event in hand came to another")
	}
	time.Sleep(2500 * time.Millisecond) // past the ack wait: what is in hand is kept
	publish(t, js, 1)
	if d := next(t, b); d.Event().Source.Seq != n+1 || d.Redelivered() {
		t.Errorf("event %d came, redelivered %t", d.Event().Source.Seq, d.Redelivered())
	} else {
		d.Ack()
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if d, err := a.Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a paused source gave %v, %v", d, err)
	}
	held.Ack()

	b.Pause()
	a.Resume()
	a.Resume()
	publish(t, js, 10)
	drainAll(t, a, 10)
	eventually(t, "all acked", func() bool { i := consumerInfo(t, js, cfg); return i.NumAckPending == 0 && i.NumPending == 0 })
}

func TestPausedSourceOutlivesALostConnectionAndStops(t *testing.T) {
	t.Parallel()
	opts := serverOptions(t)
	ns := startServer(t, opts)
	cfg := testConfig(ns)
	js := connect(t, cfg)
	if _, err := Setup(t.Context(), js, cfg); err != nil {
		t.Fatal(err)
	}
	s := open(t, js, cfg, quick)
	s.Pause()
	ns.Shutdown()
	ns.WaitForShutdown()
	startServer(t, opts)
	eventually(t, "published", func() bool {
		_, err := js.Publish(t.Context(), "events.1", nil)
		return err == nil
	})
	time.Sleep(500 * time.Millisecond) // time enough to pull, were it not paused
	if i := consumerInfo(t, js, cfg); i.NumPending != 1 {
		t.Errorf("%d events wait, want the one", i.NumPending)
	}
	s.Resume()
	drainAll(t, s, 1)
	s.Pause()
	s.Stop()
	s.Resume()
	if _, err := s.Next(t.Context()); !errors.Is(err, ErrStopped) {
		t.Errorf("after Stop: %v", err)
	}
}

func TestEasedSourceTakesOneEventAtATimeAndLeavesTheOthersToOthers(t *testing.T) {
	t.Parallel()
	js, cfg := setUp(t, 2*time.Second)
	const n = 900
	publish(t, js, n)
	a := open(t, js, cfg, usualLimits)
	held := next(t, a)
	eventually(t, "events come", func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		return len(a.queue) > 100
	})
	a.Ease(true)
	a.Ease(true)
	next(t, a).Ack() // though nothing was asked for before

	b := open(t, js, cfg, usualLimits)
	start := time.Now()
	drainAll(t, b, n-2)
	if took := time.Since(start); took > time.Second {
		t.Errorf("the events came to the other after %s, want them handed back at once", took)
	}
	b.Pause()
	held.Ack()
	publish(t, js, 3)
	next(t, a).Ack()
	eventually(t, "the others are left alone", func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		return a.held.count == 0
	})
	b.Resume()
	start = time.Now()
	drainAll(t, b, 2)
	if took := time.Since(start); took > time.Second {
		t.Errorf("the others came to the other source after %s", took)
	}
	b.Pause()
	waits := make(chan error, 1)
	go func() {
		d, err := a.Next(t.Context())
		if err == nil {
			d.Ack()
		}
		waits <- err
	}()
	publish(t, js, n)
	if err := <-waits; err != nil {
		t.Errorf("Next that waited: %v", err)
	}
	a.Ease(false)
	drainAll(t, a, n-1)
	eventually(t, "all acked", func() bool { i := consumerInfo(t, js, cfg); return i.NumAckPending == 0 && i.NumPending == 0 })
}
