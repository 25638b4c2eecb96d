package stream

import (
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"sluice/pipeline"
)

// delivery is one event with the right to settle it. Its list fields and settled belong to the source's mutex.
type delivery struct {
	source *Source
	msg    jetstream.Msg
	event  pipeline.Event
	again  bool
	size   int64

	settled    bool
	sign       time.Time // when the server last heard that somebody has it
	prev, next *delivery
}

var _ pipeline.Delivery = (*delivery)(nil)

func (d *delivery) Event() *pipeline.Event { return &d.event }
func (d *delivery) Redelivered() bool      { return d.again }
func (d *delivery) Ack()                   { d.source.settle(d, acked) }
func (d *delivery) HandBack()              { d.source.settle(d, handedBack) }

// outcome is how a delivery is settled.
type outcome uint8

const (
	acked outcome = iota
	handedBack
)

// tell sends the outcome to the server, which doesn't answer.
func (d *delivery) tell(o outcome) error {
	if o == handedBack {
		return d.msg.Nak()
	}
	return d.msg.Ack()
}

// deliveries is a list of unsettled deliveries, the one with the oldest sign of life first.
type deliveries struct {
	root  delivery
	count int
	bytes int64
}

func newDeliveries() *deliveries {
	l := &deliveries{}
	l.root.prev, l.root.next = &l.root, &l.root
	return l
}

func (l *deliveries) push(d *delivery) {
	d.prev, d.next = l.root.prev, &l.root
	d.prev.next, l.root.prev = d, d
	l.count++
	l.bytes += d.size
}

func (l *deliveries) remove(d *delivery) {
	d.prev.next, d.next.prev = d.next, d.prev
	d.prev, d.next = nil, nil
	l.count--
	l.bytes -= d.size
}

// olderThan moves all whose sign of life is from before t to the end of the list, signed now, and returns them.
func (l *deliveries) olderThan(t, now time.Time) []*delivery {
	var old []*delivery
	for d := l.root.next; d != &l.root && d.sign.Before(t); d = l.root.next {
		l.remove(d)
		d.sign = now
		l.push(d)
		old = append(old, d)
	}
	return old
}
