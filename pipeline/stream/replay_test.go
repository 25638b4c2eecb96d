package stream

import (
	"bytes"
	"errors"
	"reflect"
	"slices"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"sluice/pipeline"
)

// replay puts a dead letter back and deletes it; it says whether the stream had a copy.
func replay(t *testing.T, js jetstream.JetStream, d *DeadLetters, seq uint64) (duplicate bool) {
	t.Helper()
	l, err := readDead(t, d, seq)
	if err != nil {
		t.Fatal(err)
	}
	ack, err := js.PublishMsg(t.Context(), d.Replay(l, "EVENTS"))
	if err != nil {
		t.Fatal(err)
	}
	return ack.Duplicate
}

// Whatever a producer wrote comes back from dead letter to source to dead letter, as often as one likes.
func TestReplayedEventIsWhatTheProducerPublished(t *testing.T) {
	t.Parallel()
	js, cfg := newServer(t)
	l, dlq := openLanes(t, js, cfg), openDeadLetters(t, js, cfg)
	s := open(t, js, cfg, usualLimits)
	header := nats.Header{
		"Nats-Msg-Id": {"order 17"}, "Nats-Expected-Stream": {"EVENTS"}, "Multi": {"1", "2"}, "mULTI": {"3"}, "Nats-Trace-Hop": {"x"},
		"Sluice-Id": {"theirs"}, "Sluice-Cost": {"2"}, "Sluice-Was-Nats-TTL": {"1s"}, "Sluice-Part": {"body"}, "Content-Type": {"text/plain"},
	}
	msg := &nats.Msg{Subject: "events.alice.new", Header: header, Data: []byte("data")}
	if _, err := js.PublishMsg(t.Context(), msg); err != nil {
		t.Fatal(err)
	}
	for round := range uint64(3) {
		d := next(t, s)
		ev := d.Event()
		if !reflect.DeepEqual(nats.Header(ev.Header), header) || ev.ID != "order%2017" || ev.Subject != "events.alice.new" || string(ev.Data) != "data" {
			t.Fatalf("round %d: the source gives %+v", round, ev)
		}
		if ev.Attempt != 0 || !ev.First.IsZero() || ev.Source.Seq != round+1 {
			t.Errorf("round %d: attempt %d, first %v, source %s: not a fresh event", round, ev.Attempt, ev.First, ev.Source)
		}
		ev.Key = "alice"
		parked, err := readLane(t, l, "alice", appendEvent(t, l, ev))
		if err != nil || !reflect.DeepEqual(parked.Header, ev.Header) || parked.ID != ev.ID {
			t.Errorf("round %d: parked as %+v, %v", round, parked, err)
		}
		ev.Attempt, ev.First = 3, ev.Time
		if err := dlq.Bury(t.Context(), ev, pipeline.Rejected, errors.New("no")); err != nil {
			t.Fatal(err)
		}
		d.Ack()
		if dead, err := readDead(t, dlq, round+1); err != nil || !reflect.DeepEqual(dead.Event.Header, ev.Header) ||
			dead.Event.ID != ev.ID || dead.Event.Subject != ev.Subject || dead.Event.Attempt != 3 || dead.Buried.IsZero() {
			t.Errorf("round %d: dead letter %+v, %v", round, dead, err)
		}
		if replay(t, js, dlq, round+1) || !replay(t, js, dlq, round+1) {
			t.Errorf("round %d: the first replay is a duplicate, or the second isn't", round)
		}
	}
}

func TestSelectionOfDeadLettersByTheServer(t *testing.T) {
	t.Parallel()
	js, cfg := newServer(t)
	dlq := openDeadLetters(t, js, cfg)
	for i, letter := range []struct {
		reason pipeline.DeadReason
		key    string
	}{
		{pipeline.Rejected, "alice"}, {pipeline.MaxWait, "alice"}, {pipeline.Rejected, "a.*"}, {pipeline.NoKey, ""}, {pipeline.Rejected, "alice"},
	} {
		if err := dlq.Bury(t.Context(), event(letter.key, uint64(i+1), "x"), letter.reason, nil); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		which DeadSelection
		want  []uint64
	}{
		{DeadSelection{}, []uint64{1, 2, 3, 4, 5}},
		{DeadSelection{Key: "alice"}, []uint64{1, 2, 5}},
		{DeadSelection{Key: "a.*"}, []uint64{3}},
		{DeadSelection{Key: "nobody"}, nil},
		{DeadSelection{Reasons: []pipeline.DeadReason{pipeline.Rejected}}, []uint64{1, 3, 5}},
		{DeadSelection{Reasons: []pipeline.DeadReason{pipeline.MaxWait, pipeline.NoKey, pipeline.MaxWait}}, []uint64{2, 4}},
		{DeadSelection{Reasons: []pipeline.DeadReason{pipeline.MaxWait, pipeline.Cost}, Key: "alice"}, []uint64{2}},
	} {
		var got []uint64
		err := dlq.Each(t.Context(), c.which, func(l DeadLetter) error {
			got = append(got, l.Seq)
			return nil
		})
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%+v: %v, %v, want %v", c.which, got, err, c.want)
		}
	}
}

func TestDiscardedDeadLetterLeavesNothing(t *testing.T) {
	t.Parallel()
	js, cfg := smallServer(t)
	dlq := openDeadLetters(t, js, cfg)
	for seq := range uint64(2) {
		if err := dlq.Bury(t.Context(), event("k", seq+1, string(bytes.Repeat([]byte("x"), int(8<<10*seq)))), pipeline.Rejected, nil); err != nil {
			t.Fatal(err)
		}
	}
	if n := messages(t, js, "SLUICE_DLQ"); n != 3 {
		t.Fatalf("%d messages, want 3", n)
	}
	other := openDeadLetters(t, js, cfg) // has read none of them
	err := other.Each(t.Context(), DeadSelection{Key: "k"}, func(l DeadLetter) error { return other.Discard(t.Context(), l) })
	if n := messages(t, js, "SLUICE_DLQ"); err != nil || n != 0 {
		t.Errorf("%d messages are left, %v", n, err)
	}
}

func TestReplayInLaneIsAnotherEventOfTheSameID(t *testing.T) {
	t.Parallel()
	js, cfg := smallServer(t)
	l, dlq := openLanes(t, js, cfg), openDeadLetters(t, js, cfg)
	ev := event("k", 1, string(bytes.Repeat([]byte("x"), 8<<10)))
	ev.Attempt, ev.First = 2, ev.Time
	parked := appendEvent(t, l, ev)
	if err := dlq.Bury(t.Context(), ev, pipeline.Rejected, nil); err != nil {
		t.Fatal(err)
	}
	dead, err := readDead(t, dlq, 2)
	if err != nil {
		t.Fatal(err)
	}
	again := dlq.ReplayInLane(dead, 41)
	seq := appendEvent(t, l, again)
	got, err := readLane(t, l, "k", seq)
	if err != nil || seq == parked || got.ID != ev.ID || got.Attempt != 0 || !got.First.IsZero() || !bytes.Equal(got.Data, ev.Data) {
		t.Errorf("stored as %d, %v: %+v", seq, err, got)
	}
	if got.Order() != 42 {
		t.Errorf("its place among others is %d, want that behind the source's last", got.Order())
	}
	if appendEvent(t, l, dlq.ReplayInLane(dead, 43)) != seq {
		t.Error("it is stored twice")
	}
	if err := dlq.Bury(t.Context(), got, pipeline.Rejected, nil); err != nil || messages(t, js, "SLUICE_DLQ") != 4 {
		t.Errorf("refused again it isn't a dead letter of its own: %v", err)
	}
}
