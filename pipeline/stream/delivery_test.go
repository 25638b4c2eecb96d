package stream

import (
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"sluice/pipeline"
)

// writes dials for nats.go and counts what is written to its connections.
type writes struct{ n atomic.Int64 }

func (w *writes) Dial(network, address string) (net.Conn, error) {
	c, err := net.Dial(network, address)
	return countedConn{c, w}, err
}

type countedConn struct {
	net.Conn
	w *writes
}

func (c countedConn) Write(p []byte) (int, error) {
	c.w.n.Add(1)
	return c.Conn.Write(p)
}

// connectCounted is connect with a count of the writes.
func connectCounted(t *testing.T, cfg Config) (jetstream.JetStream, *writes) {
	t.Helper()
	w := &writes{}
	nc, err := nats.Connect(cfg.URLs, nats.SetCustomDialer(w))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return js, w
}

func TestSettlementsOfAMomentAreWrittenTogether(t *testing.T) {
	t.Parallel()
	setup, cfg := newServer(t)
	const n = 400
	publish(t, setup, n)
	js, w := connectCounted(t, cfg)
	s := open(t, js, cfg, usualLimits)
	events := take(t, s, n)
	before, begun := w.n.Load(), time.Now()
	for _, d := range events {
		d.Ack()
		for acked := time.Now(); time.Since(acked) < 50*time.Microsecond; { // time enough for a write of its own
		}
	}
	eventually(t, "all acked", func() bool { return consumerInfo(t, setup, cfg).AckFloor.Stream == n })
	moments := int64(time.Since(begun) / tellTogether)
	if got := w.n.Load() - before; got > min(n/2, 4*(moments+2)) {
		t.Errorf("%d writes for %d acks in %d ms", got, n, moments)
	}
}

// A worker closes its connection when the source is closed.
func TestWhatWasSettledIsToldWhenCloseReturns(t *testing.T) {
	t.Parallel()
	setup, cfg := newServer(t)
	const n = 300
	publish(t, setup, n)
	js := connect(t, cfg)
	s := open(t, js, cfg, usualLimits)
	for i, d := range take(t, s, n) {
		if i%2 == 0 {
			d.Ack()
		} else {
			d.HandBack()
		}
	}
	closeSource(t, s)
	js.Conn().Close()
	other := open(t, setup, cfg, usualLimits)
	begun := time.Now()
	for _, d := range take(t, other, n/2) {
		if seq := d.Event().Source.Seq; seq%2 == 1 {
			t.Errorf("event %d came again after it was acked", seq)
		}
		d.Ack()
	}
	if took := time.Since(begun); took > 5*time.Second {
		t.Errorf("what was handed back came after %v: only when its ack wait was over", took)
	}
	eventually(t, "all acked", func() bool { return consumerInfo(t, setup, cfg).AckFloor.Stream == n })
}

// Between a settlement and its telling the stream may turn out to be another, whose events have the same sequences.
func TestSettlementIsCheckedWhenItIsTold(t *testing.T) {
	t.Parallel()
	js, cfg := newServer(t)
	publish(t, js, 2)
	s := open(t, js, cfg, usualLimits)
	events := take(t, s, 2)
	settle := func(d pipeline.Delivery, meanwhile func()) {
		s.telling.Lock()
		d.Ack()
		s.mu.Lock()
		meanwhile()
		s.mu.Unlock()
		s.telling.Unlock()
		s.payDebts()
	}
	pending := func() int { return consumerInfo(t, js, cfg).NumAckPending }

	settle(events[0], func() { s.sure = false })
	if n := pending(); n != 2 {
		t.Errorf("%d unacked in doubt, want both", n)
	}
	s.mu.Lock()
	s.sure = true
	s.mu.Unlock()
	s.payDebts()
	eventually(t, "the first is acked when all is sure again", func() bool { return pending() == 1 })

	settle(events[1], func() { s.bound.stream++ })
	s.mu.Lock()
	s.bound.stream--
	owed := len(s.owed)
	s.mu.Unlock()
	s.payDebts()
	time.Sleep(10 * time.Millisecond)
	if n := pending(); n != 1 || owed != 0 {
		t.Errorf("%d unacked and %d owed, want the ack of another stream's event forgotten", n, owed)
	}
}
