package stream

import (
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// What a producer may put into an event isn't read as a word of the server.
func TestEventsThatLookLikeWordsOfTheServerAreEvents(t *testing.T) {
	t.Parallel()
	js, cfg := newServer(t)
	s := open(t, js, cfg, usualLimits)
	words := []nats.Header{
		{"Status": {"100"}}, {"Status": {"100"}, "Description": {"Idle Heartbeat"}}, {"Status": {"100"}, "Description": {"FlowControl Request"}},
		{"Status": {"404"}}, {"Status": {"404"}, "Description": {"No Messages"}},
		{"Status": {"408"}, "Nats-Pending-Messages": {"7"}, "Nats-Pending-Bytes": {"9"}},
		{"Status": {"409"}, "Description": {"Consumer Deleted"}}, {"Status": {"409"}, "Description": {"Server Shutdown"}},
		{"Status": {"409"}, "Description": {"Message Size Exceeds MaxBytes"}}, {"Status": {"503"}},
		{"Status": {"anything"}, "Description": {"at all"}}, {"Status": {""}}, {"Description": {"Consumer Deleted"}},
	}
	for i, h := range words {
		if _, err := js.PublishMsg(t.Context(), &nats.Msg{Subject: fmt.Sprintf("events.%d", i), Header: h}); err != nil {
			t.Fatal(err)
		}
	}
	publish(t, js, 3)
	for i, h := range words {
		d := next(t, s)
		ev := d.Event()
		if ev.Source.Seq != uint64(i+1) || ev.Header.Get("Status") != h.Get("Status") || ev.Header.Get("Description") != h.Get("Description") {
			t.Errorf("event %d came as %d with %v, want %v", i+1, ev.Source.Seq, ev.Header, h)
		}
		d.Ack()
	}
	drainAll(t, s, 3)
	eventually(t, "all acked", func() bool { return consumerInfo(t, js, cfg).AckFloor.Stream == uint64(len(words)+3) })
	if info := consumerInfo(t, js, cfg); info.NumRedelivered != 0 || info.Delivered.Consumer != uint64(len(words)+3) {
		t.Errorf("%d deliveries, %d redelivered", info.Delivered.Consumer, info.NumRedelivered)
	}
}

// A direct get answers with the message itself.
func TestEventThatLooksLikeARefusalIsReadFromTheSource(t *testing.T) {
	t.Parallel()
	for _, direct := range []bool{true, false} {
		cfg := testConfig(startServer(t, serverOptions(t)))
		js := connect(t, cfg)
		if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "EVENTS", Subjects: []string{"events.>"}, AllowDirect: direct}); err != nil {
			t.Fatal(err)
		}
		if _, err := Setup(t.Context(), js, cfg); err != nil {
			t.Fatal(err)
		}
		for i, status := range []string{"404", "408", "503", "what"} {
			h := nats.Header{"Status": {status}, "Description": {"Message Not Found"}}
			if _, err := js.PublishMsg(t.Context(), &nats.Msg{Subject: fmt.Sprint("events.", i), Header: h}); err != nil {
				t.Fatal(err)
			}
			events, err := Newest(t.Context(), js, cfg, 9)
			if err != nil || len(events) != i+1 || events[0].Header.Get("Status") != status {
				t.Errorf("direct %t, %s: %d events, %v, want %d", direct, status, len(events), err, i+1)
			}
			oldest, err := (&Source{js: js, cfg: cfg}).oldest(t.Context(), uint64(i))
			if err != nil || oldest.IsZero() {
				t.Errorf("direct %t, %s: the oldest that waits is of %v, %v", direct, status, oldest, err)
			}
		}
	}
}

func TestMessagesOfTheServerAndItsClientsAreNoEvents(t *testing.T) {
	t.Parallel()
	js, cfg := newServer(t)
	s := open(t, js, cfg, usualLimits)
	for _, m := range []*nats.Msg{
		{Subject: "events.1", Header: nats.Header{"KV-Operation": {"DEL"}}},
		{Subject: "events.2", Header: nats.Header{"KV-Operation": {"PURGE"}}},
		{Subject: "events.3", Header: nats.Header{"KV-Operation": {"PUT"}}},
		{Subject: "events.4", Header: nats.Header{"KV-Operation": {"DEL"}}, Data: []byte("a body")},
		{Subject: "events.5", Header: nats.Header{"Nats-Marker-Reason": {"Purge"}}},
		{Subject: "events.6", Header: nats.Header{"Sluice-Cost": {"1"}}},
	} {
		if _, err := js.PublishMsg(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []uint64{3, 4, 6} {
		d := next(t, s)
		if seq := d.Event().Source.Seq; seq != want {
			t.Errorf("event %d came, want %d", seq, want)
		}
		d.Ack()
	}
	eventually(t, "the markers are acked", func() bool { return consumerInfo(t, js, cfg).AckFloor.Stream == 6 })
	if got := s.Skipped(); got != (Skipped{Markers: 3}) {
		t.Errorf("skipped %+v, want 3 markers", got)
	}
}

// A delete marker of the server's own, which it leaves where the last message of a subject grew too old.
func TestDeleteMarkersOfTheServerAreNoEvents(t *testing.T) {
	t.Parallel()
	cfg := testConfig(startServer(t, serverOptions(t)))
	js := connect(t, cfg)
	_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{
		Name: "EVENTS", Subjects: []string{"events.>"}, AllowMsgTTL: true, SubjectDeleteMarkerTTL: time.Minute, MaxAge: time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Setup(t.Context(), js, cfg); err != nil {
		t.Fatal(err)
	}
	s := open(t, js, cfg, usualLimits)
	if _, err := js.Publish(t.Context(), "events.short", []byte("x")); err != nil {
		t.Fatal(err)
	}
	drainAll(t, s, 1)
	eventually(t, "the marker is seen and acked", func() bool {
		i := consumerInfo(t, js, cfg)
		return s.Skipped().Markers == 1 && i.NumAckPending == 0 && i.AckFloor.Stream == 2
	})
	publish(t, js, 1)
	if d := next(t, s); string(d.Event().Data) != "data 1" {
		t.Errorf("%+v came", d.Event())
	} else {
		d.Ack()
	}
}

func TestSchedulesArePushedOnlyAsWhatNATSPublishesAtTheirTime(t *testing.T) {
	t.Parallel()
	for _, retention := range []jetstream.RetentionPolicy{jetstream.LimitsPolicy, jetstream.WorkQueuePolicy, jetstream.InterestPolicy} {
		t.Run(retention.String(), func(t *testing.T) {
			t.Parallel()
			cfg := testConfig(startServer(t, serverOptions(t)))
			js := connect(t, cfg)
			_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{
				Name: "EVENTS", Subjects: []string{"events.>"}, AllowMsgSchedules: true, Retention: retention,
			})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := Setup(t.Context(), js, cfg); err != nil {
				t.Fatal(err)
			}
			s := open(t, js, cfg, usualLimits)
			h := nats.Header{"Nats-Schedule": {"@at " + time.Now().Add(1200*time.Millisecond).Format(time.RFC3339Nano)},
				"Nats-Schedule-Target": {"events.target"}}
			if _, err := js.PublishMsg(t.Context(), &nats.Msg{Subject: "events.schedule", Header: h, Data: []byte("later")}); err != nil {
				t.Fatal(err)
			}
			d := next(t, s)
			if ev := d.Event(); ev.Subject != "events.target" || string(ev.Data) != "later" {
				t.Fatalf("%s came with %q", ev.Subject, ev.Data)
			}
			d.Ack()
			eventually(t, "all settled", func() bool { i := consumerInfo(t, js, cfg); return i.NumAckPending == 0 && i.NumPending == 0 })
			if got := s.Skipped(); got != (Skipped{Schedules: 1}) {
				t.Errorf("skipped %+v, want a schedule", got)
			}
		})
	}
}

// Where schedules mean nothing to the server the header is a producer's.
func TestScheduleHeaderIsAnEventsWhereTheStreamTakesNone(t *testing.T) {
	t.Parallel()
	if got := foreignOf(map[string][]string{"Nats-Schedule": {"@at x"}}, []byte("x"), false); got != noneForeign {
		t.Errorf("it is foreign: %d", got)
	}
}
