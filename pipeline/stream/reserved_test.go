package stream

import (
	"errors"
	"fmt"
	"reflect"
	"testing"

	"github.com/nats-io/nats.go"

	"sluice/pipeline"
)

// An event with every header that means something to the server goes through lanes and dead letters unchanged, isn't
// rejected and takes nothing else with it.
func TestReservedHeadersSurviveLanesAndDeadLetters(t *testing.T) {
	t.Parallel()
	js, cfg := newServer(t)
	l, dlq := openLanes(t, js, cfg), openDeadLetters(t, js, cfg)
	first := appendEvent(t, l, event("k", 1, "first"))
	if err := dlq.Bury(t.Context(), event("k", 1, "first"), pipeline.Rejected, nil); err != nil {
		t.Fatal(err)
	}
	header := func() nats.Header {
		h := nats.Header{"Multi": {"1", "2"}, "multi": {"3"}}
		for i, name := range append(reserved, ownHeaders...) {
			h[name] = []string{fmt.Sprint("value ", i)}
		}
		h["Nats-Rollup"] = []string{"sub"}
		h["Nats-TTL"] = []string{"1s"}
		h["Nats-Expected-Last-Subject-Sequence"] = []string{"999"}
		h["Nats-Schedule"] = []string{"@at 2030-01-01T00:00:00Z"}
		h["Nats-Incr"] = []string{"+1"}
		return h
	}
	for seq := uint64(2); seq <= 3; seq++ { // the second stays within the dedupe window of the first's Nats-Msg-Id
		ev := event("k", seq, "second")
		ev.Header = pipeline.Header(header())
		lane := appendEvent(t, l, ev)
		got, err := readLane(t, l, "k", lane)
		if err != nil || !reflect.DeepEqual(got, ev) {
			t.Fatalf("from the lane: %v\n%+v, want\n%+v", err, got, ev)
		}
		leader, err := l.store.getFromLeader(t.Context(), lane)
		if err != nil {
			t.Fatal(err)
		}
		if got, err = parseEvent(leader.subject, leader.header); err != nil || !reflect.DeepEqual(got.Header, ev.Header) {
			t.Errorf("from the leader: %v\n%+v", err, got)
		}
		if err := dlq.Bury(t.Context(), ev, pipeline.Rejected, errors.New("no")); err != nil {
			t.Fatal(err)
		}
		dead, err := readDead(t, dlq, seq)
		if err != nil || !reflect.DeepEqual(dead.Event, ev) {
			t.Errorf("from the dead letters: %v\n%+v", err, dead.Event)
		}
	}
	if _, err := readLane(t, l, "k", first); err != nil {
		t.Errorf("the first event of the lane: %v", err)
	}
	if a, b := messages(t, js, "SLUICE_LANES"), messages(t, js, "SLUICE_DLQ"); a != 3 || b != 3 {
		t.Errorf("%d events in lanes, %d dead letters, want 3 and 3", a, b)
	}
}

func TestHeadersOfASourceMessageArriveAsTheyAre(t *testing.T) {
	t.Parallel()
	js, cfg := newServer(t)
	l := openLanes(t, js, cfg)
	msg := nats.NewMsg("events.1")
	msg.Header = nats.Header{
		"Nats-Msg-Id": {"m 1"}, "Nats-Expected-Stream": {"EVENTS"}, "Nats-Expected-Last-Sequence": {"0"}, "Multi": {"1", "2"}, "mULTI": {"3"},
		"Nats-Trace-Hop": {"x"}, "Sluice-Id": {"theirs"}, "Sluice-Cost": {"2"},
	}
	msg.Data = []byte("data")
	if _, err := js.PublishMsg(t.Context(), msg); err != nil {
		t.Fatal(err)
	}
	s := open(t, js, cfg, usualLimits)
	ev := next(t, s).Event()
	if !reflect.DeepEqual(nats.Header(ev.Header), msg.Header) || ev.ID != "m%201" || string(ev.Data) != "data" || ev.Subject != "events.1" || ev.Time.IsZero() {
		t.Errorf("got %+v, want header %v", ev, msg.Header)
	}
	ev.Key = "k"
	seq := appendEvent(t, l, ev)
	if got, err := readLane(t, l, "k", seq); err != nil || !reflect.DeepEqual(got.Header, ev.Header) || got.ID != ev.ID || !got.Time.Equal(ev.Time) || got.Source != ev.Source {
		t.Errorf("read %v\n%+v, want\n%+v", err, got, ev)
	}
}
