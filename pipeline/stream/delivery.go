package stream

import (
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"sluice/pipeline"
)

// delivery is one event with the right to settle it. Its list fields and settled belong to the source's mutex.
type delivery struct {
	source *Source
	reply  string // where it is acknowledged
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
	putOff     // handed back, but not to be delivered for scheduleAgain
	inProgress // not settled yet
)

// words are what JetStream calls the outcomes.
var words = [...][]byte{
	acked: []byte("+ACK"), handedBack: []byte("-NAK"), inProgress: []byte("+WPI"),
	putOff: fmt.Appendf(nil, `-NAK {"delay": %d}`, scheduleAgain.Nanoseconds()),
}

// tell sends the outcome to the server, which doesn't answer.
func (d *delivery) tell(o outcome) error { return d.source.nc.Publish(d.reply, words[o]) }

// newDelivery reads a message of the source.
func (s *Source) newDelivery(ses *session, msg *nats.Msg, meta *nats.MsgMetadata) *delivery {
	source := pipeline.SourceID{Stream: meta.Stream, Created: ses.identity, Seq: meta.Sequence.Stream}
	return &delivery{
		source: s,
		reply:  msg.Reply,
		event: pipeline.Event{
			ID:      pipeline.EventID(pipeline.Header(msg.Header), source),
			Subject: msg.Subject,
			Header:  sourceHeader(msg.Header),
			Data:    msg.Data,
			Time:    meta.Timestamp,
			Source:  source,
		},
		again: meta.NumDelivered > 1,
		size:  int64(len(msg.Data) + headerSize(msg.Header) + len(msg.Subject)),
		sign:  time.Now(),
	}
}

// debt is a settlement that the server has to be told of.
type debt struct {
	d *delivery
	o outcome
}

// tellTogether is for how long settlements are collected before the server is told of them. Told one by one each of them
// cost a write here and a read there; nobody waits for one.
const tellTogether = time.Millisecond

// sourceHeader holds a message of the source's headers as its producer gave them, also if they were put back from a dead letter.
func sourceHeader(h nats.Header) pipeline.Header {
	if _, replayed := pipeline.Replayed(pipeline.Header(h)); replayed {
		return producerHeader(h)
	}
	return pipeline.Header(h)
}

// settle ends a delivery; the second time nothing happens. The server is told within a moment, or by Stop or Close if these
// come first.
func (s *Source) settle(d *delivery, o outcome) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if d.settled {
		return
	}
	if o == handedBack && s.unfit != nil && !s.closed() {
		// A consumer that is configured otherwise than sluice needs it may never deliver the event again, so it stays here.
		d.again = true
		s.queue = append(s.queue, d)
		signal(s.arrived)
		return
	}
	d.settled = true
	s.held.remove(d)
	if events, _ := s.room(); events > 0 {
		signal(s.kick)
	}
	s.owe(d, o)
}

// owe has the server told of a settlement within a moment. The mutex is held.
func (s *Source) owe(d *delivery, o outcome) {
	s.owed = append(s.owed, debt{d, o})
	if !s.paying {
		s.paying = true
		time.AfterFunc(tellTogether, s.payDebts)
	}
}

// payDebts tells the server of all settlements that it wasn't told of. Those of a stream that is gone are forgotten: in the
// stream that took its name the same sequences are other events. What can't be told now is told later: by the next call, at
// the latest by keep or when the consumer is found again.
func (s *Source) payDebts() {
	s.telling.Lock() // who returns from here knows that all is told that was owed before
	defer s.telling.Unlock()
	connected := s.nc.IsConnected()
	s.mu.Lock()
	s.paying = false
	if !connected || !s.sure {
		s.mu.Unlock()
		return
	}
	owed, identity := s.owed, s.bound.stream
	s.owed = nil
	s.mu.Unlock()
	for i, debt := range owed {
		if debt.d.event.Source.Created != identity {
			continue
		}
		if err := debt.d.tell(debt.o); err != nil {
			s.mu.Lock()
			s.owed = append(s.owed, owed[i:]...)
			s.mu.Unlock()
			return
		}
	}
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
