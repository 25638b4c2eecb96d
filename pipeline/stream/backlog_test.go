package stream

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"sluice/pipeline"
)

func TestBehindIsWhatNoWorkerHasInHand(t *testing.T) {
	t.Parallel()
	for _, subjects := range [][]string{{"events.>"}, {"other.>", "events.*"}} {
		cfg := testConfig(startServer(t, serverOptions(t)))
		cfg.Subjects = subjects
		js := connect(t, cfg)
		if _, err := Setup(t.Context(), js, cfg); err != nil {
			t.Fatal(err)
		}
		consumer, err := js.Consumer(t.Context(), cfg.Stream, cfg.consumer())
		if err != nil {
			t.Fatal(err)
		}
		pull := func() jetstream.Msg {
			t.Helper()
			msg, err := consumer.Next(jetstream.FetchMaxWait(10 * time.Second))
			if err != nil {
				t.Fatal(err)
			}
			return msg
		}
		s := &Source{js: js, cfg: cfg}
		behind := func(events int, oldest uint64) {
			t.Helper()
			var want time.Time
			if oldest > 0 {
				stream, err := js.Stream(t.Context(), cfg.Stream)
				if err != nil {
					t.Fatal(err)
				}
				msg, err := stream.GetMsg(t.Context(), oldest)
				if err != nil {
					t.Fatal(err)
				}
				want = msg.Time
			}
			n, at, err := s.Behind(t.Context())
			if err != nil || n != events || !at.Equal(want) {
				t.Errorf("%v: %d events since %s, %v, want %d since %s", subjects, n, at, err, events, want)
			}
		}
		behind(0, 0)
		publish(t, js, 3)
		behind(3, 1)
		pull()
		again := pull()
		behind(1, 3)
		pull()
		behind(0, 0) // three are in hand
		publish(t, js, 20)
		behind(20, 4)
		if err := again.Nak(); err != nil {
			t.Fatal(err)
		}
		first := 0 // of those that come before it comes again
		for redelivered := false; !redelivered; {
			again = pull()
			meta, err := again.Metadata()
			if err != nil {
				t.Fatal(err)
			}
			if redelivered = meta.NumDelivered > 1; !redelivered {
				first++
			}
		}
		behind(21-first, uint64(4+first)) // delivered once more
		if err := again.DoubleAck(t.Context()); err != nil {
			t.Fatal(err)
		}
		behind(20-first, uint64(4+first))
	}
}

func TestStoredCountsWhatIsKept(t *testing.T) {
	t.Parallel()
	js, cfg := newServer(t)
	l, dead := openLanes(t, js, cfg), openDeadLetters(t, js, cfg)
	ev := event("k", 1, "data")
	seq := appendEvent(t, l, ev)
	appendEvent(t, l, event("k", 2, "data"))
	if err := deleteLane(t, l, seq); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := dead.Bury(t.Context(), ev, pipeline.Rejected, nil); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := l.Stored(t.Context()); err != nil || n != 1 {
		t.Errorf("lanes: %d, %v, want 1", n, err)
	}
	if n, err := dead.Stored(t.Context()); err != nil || n != 1 {
		t.Errorf("dead letters: %d, %v, want 1", n, err)
	}
}
