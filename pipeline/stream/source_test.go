package stream

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"sluice/pipeline"
)

// precreate makes the consumer with another ack wait.
func precreate(t *testing.T, js jetstream.JetStream, cfg Config, wait time.Duration) {
	t.Helper()
	c := wantedConsumer(cfg)
	c.AckWait = wait
	if _, err := js.CreateConsumer(t.Context(), cfg.Stream, c); err != nil {
		t.Fatal(err)
	}
}

// setUp is a server with everything but a consumer of the given ack wait; 0: the usual one.
func setUp(t *testing.T, wait time.Duration) (jetstream.JetStream, Config) {
	t.Helper()
	cfg := testConfig(startServer(t, serverOptions(t)))
	js := connect(t, cfg)
	if _, err := ensureSource(t.Context(), js, cfg); err != nil {
		t.Fatal(err)
	}
	if wait > 0 {
		precreate(t, js, cfg, wait)
	}
	if _, err := Setup(t.Context(), js, cfg); err != nil {
		t.Fatal(err)
	}
	return js, cfg
}

// quick looks after the consumer far more often than usual.
var quick = limits{events: mostEvents, bytes: mostBytes, idle: 200 * time.Millisecond, absent: 2 * time.Second, beat: 2 * time.Second}

// drainAll acks until n different events have come, and returns how often each came.
func drainAll(t *testing.T, s *Source, n int) map[uint64]int {
	t.Helper()
	seen := map[uint64]int{}
	for len(seen) < n {
		d := next(t, s)
		seen[d.Event().Source.Seq]++
		d.Ack()
	}
	return seen
}

func TestEventsComeInOrderOnceAndAreAcked(t *testing.T) {
	t.Parallel()
	js, cfg := newServer(t)
	s := open(t, js, cfg, usualLimits)
	const n = 3000
	publish(t, js, n)
	stream, err := js.Stream(t.Context(), "EVENTS")
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		d := next(t, s)
		ev := d.Event()
		want := pipeline.SourceID{Stream: "EVENTS", Created: stream.CachedInfo().Created.UnixNano(), Seq: uint64(i + 1)}
		if ev.Source != want || string(ev.Data) != fmt.Sprint("data ", i+1) || ev.Subject != fmt.Sprint("events.", i+1) || d.Redelivered() ||
			ev.ID != fmt.Sprint("EVENTS:", i+1) || ev.Key != "" {
			t.Fatalf("event %d is %+v, redelivered %v, want source %v", i+1, ev, d.Redelivered(), want)
		}
		d.Ack()
		d.Ack()
		d.HandBack()
	}
	eventually(t, "all acked", func() bool {
		info := consumerInfo(t, js, cfg)
		return info.NumAckPending == 0 && info.AckFloor.Stream == n && info.NumRedelivered == 0
	})
}

func TestHandedBackEventComesAgainAtOnce(t *testing.T) {
	t.Parallel()
	js, cfg := newServer(t)
	s := open(t, js, cfg, usualLimits)
	publish(t, js, 1)
	next(t, s).HandBack()
	begun := time.Now()
	d := next(t, s)
	if !d.Redelivered() || time.Since(begun) > 2*time.Second {
		t.Errorf("redelivered %v after %v", d.Redelivered(), time.Since(begun))
	}
	d.Ack()
}

func TestNextEndsWithItsContext(t *testing.T) {
	t.Parallel()
	js, cfg := newServer(t)
	s := open(t, js, cfg, usualLimits)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := s.Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want the end of the context", err)
	}
}

func TestUnsettledEventsAreBounded(t *testing.T) {
	t.Parallel()
	js, cfg := setUp(t, 2*time.Second)
	publish(t, js, 5000)
	s := open(t, js, cfg, usualLimits)
	var held []pipeline.Delivery
	for range mostEvents {
		held = append(held, next(t, s))
	}
	highest := 0
	for end := time.Now().Add(1500 * time.Millisecond); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		highest = max(highest, consumerInfo(t, js, cfg).NumAckPending)
	}
	if highest != mostEvents {
		t.Errorf("%d events unsettled at a time, want %d: as many as there is room for", highest, mostEvents)
	}
	s.mu.Lock()
	if s.held.count != mostEvents {
		t.Errorf("%d of %d in hand: what waits in the client is not protected", s.held.count, mostEvents)
	}
	s.mu.Unlock()
	for _, d := range held {
		d.Ack()
	}
	begun := time.Now()
	drainAll(t, s, 5000-len(held))
	if took := time.Since(begun); took > 5*time.Second {
		t.Errorf("pulling went on only after %v", took)
	}
	eventually(t, "all acked", func() bool { return consumerInfo(t, js, cfg).AckFloor.Stream == 5000 })
	if info := consumerInfo(t, js, cfg); info.Delivered.Consumer > 5050 {
		t.Errorf("%d deliveries of 5000 events", info.Delivered.Consumer)
	}
}

func TestUnsettledBytesAreBounded(t *testing.T) {
	t.Parallel()
	opts := serverOptions(t)
	opts.MaxPayload = 64 << 10
	cfg := testConfig(startServer(t, opts))
	js := connect(t, cfg)
	if _, err := Setup(t.Context(), js, cfg); err != nil {
		t.Fatal(err)
	}
	const events, size = 40, 32 << 10
	for range events {
		if _, err := js.Publish(t.Context(), "events.big", make([]byte, size)); err != nil {
			t.Fatal(err)
		}
	}
	l := usualLimits
	l.bytes = 4 * size
	s := open(t, js, cfg, l)
	held := func() int64 {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.held.bytes
	}
	most := l.bytes + 2*int64(opts.MaxPayload)
	eventually(t, "as much is in hand as may be", func() bool { return held() >= l.bytes-size })
	for range events { // whenever one is settled another may come
		if n := held(); n > most {
			t.Fatalf("%d bytes in hand, want at most %d", n, most)
		}
		next(t, s).Ack()
	}
	if n := held(); n != 0 {
		t.Errorf("%d bytes in hand when all is settled", n)
	}
}

func TestHeldEventIsKeptFromRedelivery(t *testing.T) {
	t.Parallel()
	js, cfg := setUp(t, time.Second)
	publish(t, js, 10)
	s := open(t, js, cfg, usualLimits)
	held := next(t, s) // nine others stay in the queue
	time.Sleep(2500 * time.Millisecond)
	if info := consumerInfo(t, js, cfg); info.NumRedelivered != 0 || info.Delivered.Consumer != 10 {
		t.Errorf("%d redelivered, %d deliveries, want 0 and 10", info.NumRedelivered, info.Delivered.Consumer)
	}
	held.Ack()
	drainAll(t, s, 9)
	eventually(t, "all acked", func() bool { return consumerInfo(t, js, cfg).AckFloor.Stream == 10 })
}

func TestStopHandsBackAllThatWasntHandedOut(t *testing.T) {
	t.Parallel()
	js, cfg := newServer(t)
	const n = 1200
	publish(t, js, n)
	l := usualLimits
	l.events = 700
	s := open(t, js, cfg, l)
	var held []pipeline.Delivery
	for range 100 {
		held = append(held, next(t, s))
	}
	eventually(t, "a full queue", func() bool { return consumerInfo(t, js, cfg).NumAckPending == 700 })
	other := open(t, connect(t, cfg), cfg, usualLimits)
	s.Stop()
	stopped := time.Now()
	if _, err := s.Next(t.Context()); !errors.Is(err, ErrStopped) {
		t.Errorf("Next after Stop: %v, want ErrStopped", err)
	}
	seen := drainAll(t, other, n-len(held))
	if took := time.Since(stopped); took > time.Second {
		t.Errorf("the other worker had all after %v, want 1s", took)
	}
	for _, d := range held {
		if seq := d.Event().Source.Seq; seen[seq] > 0 {
			t.Errorf("event %d, still held, was delivered to the other", seq)
		}
		d.Ack()
	}
	closeSource(t, s)
	eventually(t, "all acked", func() bool { return consumerInfo(t, js, cfg).AckFloor.Stream == n })
	for seq, times := range seen {
		if times > 1 {
			t.Errorf("event %d came %d times", seq, times)
		}
	}
}

func TestManyWorkersShareTheConsumer(t *testing.T) {
	t.Parallel()
	js, cfg := newServer(t)
	const n, workers = 3000, 3
	var mu sync.Mutex
	seen := map[uint64]int{}
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
	defer cancel()
	var all sync.WaitGroup
	for range workers {
		s := open(t, connect(t, cfg), cfg, usualLimits)
		for range 2 {
			all.Go(func() {
				for {
					d, err := s.Next(ctx)
					if err != nil {
						return
					}
					mu.Lock()
					seen[d.Event().Source.Seq]++
					done := len(seen) == n
					mu.Unlock()
					d.Ack()
					if done {
						cancel()
					}
				}
			})
		}
	}
	publish(t, js, n)
	all.Wait()
	if len(seen) != n {
		t.Errorf("%d events came, want %d", len(seen), n)
	}
	for seq, times := range seen {
		if times != 1 {
			t.Errorf("event %d came %d times", seq, times)
		}
	}
}
