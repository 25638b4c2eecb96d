package stream

import (
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"sluice/pipeline"
)

// Replay is the message that puts the event of a dead letter, as it was read, back into the source stream. It begins anew:
// with no attempts, but with the id that it had (see [pipeline.Replayed]); the producer's headers that would mean something
// to JetStream are stored under other names, and are back under their own when a [Source] hands the event out. Copies of one
// dead letter have the same Nats-Msg-Id: within its window the stream keeps one of them.
func (d *DeadLetters) Replay(l DeadLetter, source string) *nats.Msg {
	h := renamed(l.Event.Header)
	h.Set(headerID, l.Event.ID)
	h.Set(jetstream.MsgIDHeader, replayID(l.BodyID))
	h.Set(jetstream.ExpectedStreamHeader, source)
	return &nats.Msg{Subject: l.Event.Subject, Header: h, Data: l.Event.Data}
}

// Takes says whether the source stream takes what is published to subject, as far as its configuration tells.
func Takes(source jetstream.StreamConfig, subject string) bool {
	return validSubject(subject) && len(notTaken([]string{subject}, source)) == 0
}

// Matches says whether an event with that subject is for a consumer with these filters.
func Matches(filters []string, subject string) bool {
	return slices.ContainsFunc(filters, func(filter string) bool { return covers(filter, subject) })
}

func replayID(id pipeline.BodyID) string {
	return pipeline.ReplayPrefix + strconv.FormatInt(id.Created, 10) + ":" + strconv.FormatUint(id.Seq, 10)
}

// ReplayInLane is the event of a dead letter as it goes straight into its lane, because the message of Replay is too large
// for the source. There a worker finds it. Its identity is that of the dead letter: under its old one it would be taken for
// a copy of itself. last is the sequence of the source's last event: it goes behind all that wait. Its Time is for the caller to set.
func (d *DeadLetters) ReplayInLane(l DeadLetter, last uint64) *pipeline.Event {
	ev := *l.Event
	ev.Place = last + 1
	ev.Source = pipeline.SourceID{Stream: d.store.name, Created: l.Created, Seq: l.Seq}
	ev.Attempt, ev.First, ev.Body = 0, time.Time{}, pipeline.Body{}
	return &ev
}
