package stream

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"sluice/pipeline"
)

// smallServer has a max_payload of 8 KiB.
func smallServer(t *testing.T) (jetstream.JetStream, Config) {
	t.Helper()
	opts := serverOptions(t)
	opts.MaxPayload = 8 << 10
	cfg := testConfig(startServer(t, opts))
	js := connect(t, cfg)
	if _, err := Setup(t.Context(), js, cfg); err != nil {
		t.Fatal(err)
	}
	return js, cfg
}

func TestEventAtMaxPayloadIsStoredInTwoMessages(t *testing.T) {
	t.Parallel()
	js, cfg := smallServer(t)
	l, dlq := openLanes(t, js, cfg), openDeadLetters(t, js, cfg)
	room := 8 << 10
	own := headerSize(storedHeader(event("k", 1, ""))) + headerSize(nats.Header{jetstream.MsgIDHeader: {"EVENTS:7:1"}, jetstream.ExpectedStreamHeader: {"SLUICE_LANES"}}) -
		headerSize(nil)
	for i, c := range []struct {
		name     string
		data     int
		messages uint64
	}{
		{"just fits in one", room - own, 1},
		{"one byte more", room - own + 1, 2},
		{"a source message at max_payload", room - headerSize(nats.Header{"Foo": {"bar"}}), 2},
		{"all data", room, 2},
	} {
		ev := event("k", uint64(i+1), "")
		ev.Data = bytes.Repeat([]byte("0123456789"), c.data/10+1)[:c.data]
		before := messages(t, js, "SLUICE_LANES")
		seq := appendEvent(t, l, ev)
		if got := messages(t, js, "SLUICE_LANES") - before; got != c.messages {
			t.Errorf("%s: stored in %d messages, want %d", c.name, got, c.messages)
		}
		if again := appendEvent(t, l, ev); again != seq {
			t.Errorf("%s: stored again as %d, want %d", c.name, again, seq)
		}
		// Another process reads and deletes.
		other := openLanes(t, js, cfg)
		got, err := other.Read(t.Context(), "k", seq)
		if err != nil || !reflect.DeepEqual(got, ev) {
			t.Errorf("%s: read with error %v, the same: %v", c.name, err, reflect.DeepEqual(got, ev))
		}
		if err := other.Delete(t.Context(), "k", seq); err != nil {
			t.Error(err)
		}
		if got := messages(t, js, "SLUICE_LANES"); got != before {
			t.Errorf("%s: %d messages are left", c.name, got-before)
		}
		if _, err := l.Read(t.Context(), "k", seq); !errors.Is(err, pipeline.ErrGone) {
			t.Errorf("%s: deleted: %v, want ErrGone", c.name, err)
		}
		if err := dlq.Bury(t.Context(), ev, pipeline.TooLarge, nil); err != nil {
			t.Errorf("%s: Bury: %v", c.name, err)
		}
	}
	buried := 0
	err := dlq.Each(t.Context(), DeadSelection{}, func(d DeadLetter) error {
		buried++
		full, err := dlq.Read(t.Context(), d.Seq)
		if err != nil || full.Reason != pipeline.TooLarge || len(full.Event.Data) < 4<<10 {
			t.Errorf("dead letter %d: %v, reason %q", d.Seq, err, full.Reason)
		}
		return err
	})
	if err != nil || buried != 4 {
		t.Errorf("%d dead letters, error %v, want 4", buried, err)
	}
}

func TestHeadersThatDontFitAreTooLarge(t *testing.T) {
	t.Parallel()
	js, cfg := smallServer(t)
	l := openLanes(t, js, cfg)
	ev := event("k", 1, "x")
	ev.Header["Big"] = []string{strings.Repeat("x", 8000)}
	if _, err := l.Append(t.Context(), ev); !errors.Is(err, pipeline.ErrTooLarge) {
		t.Errorf("got %v, want ErrTooLarge", err)
	}
	// As long as the headers fit with ours, any data do.
	ev.Header["Big"] = []string{strings.Repeat("x", 7000)}
	ev.Data = bytes.Repeat([]byte("y"), 8<<10-headerSize(nats.Header(ev.Header)))
	seq := appendEvent(t, l, ev)
	if got, err := l.Read(t.Context(), "k", seq); err != nil || !reflect.DeepEqual(got, ev) {
		t.Errorf("read with error %v", err)
	}
	if n := messages(t, js, "SLUICE_LANES"); n != 2 {
		t.Errorf("%d messages, want 2", n)
	}
}

func TestOrphanedPartIsHarmless(t *testing.T) {
	t.Parallel()
	js, cfg := smallServer(t)
	l := openLanes(t, js, cfg)
	ev := event("k", 1, strings.Repeat("x", 8<<10))
	part := nats.NewMsg(l.names.Lane("k")) // what a crash leaves after the first message
	part.Header.Set(headerPart, partBody)
	part.Data = ev.Data[:4<<10]
	if _, err := js.PublishMsg(t.Context(), part); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Read(t.Context(), "k", 1); !errors.Is(err, pipeline.ErrGone) {
		t.Errorf("reading a part: %v, want ErrGone", err)
	}
	seq := appendEvent(t, l, ev)
	var seqs []uint64
	if err := l.Each(t.Context(), func(_ *pipeline.Event, seq uint64) error {
		seqs = append(seqs, seq)
		return nil
	}); err != nil || !reflect.DeepEqual(seqs, []uint64{seq}) {
		t.Errorf("Each gives %v, error %v, want only %d", seqs, err, seq)
	}
	if got, err := l.Read(t.Context(), "k", seq); err != nil || !bytes.Equal(got.Data, ev.Data) {
		t.Errorf("Read: %v", err)
	}
	// A head whose part's sequence belongs to something else by now is gone.
	head := nats.NewMsg(l.names.Lane("k"))
	head.Header = storedHeader(event("k", 2, ""))
	head.Header.Set(headerPart, fmt.Sprint(seq))
	ack, err := js.PublishMsg(t.Context(), head)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Read(t.Context(), "k", ack.Sequence); !errors.Is(err, pipeline.ErrGone) {
		t.Errorf("a head without its part: %v, want ErrGone", err)
	}
}
