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
		got, err := readLane(t, other, "k", seq)
		if err != nil || !reflect.DeepEqual(got, ev) {
			t.Errorf("%s: read with error %v, the same: %v", c.name, err, reflect.DeepEqual(got, ev))
		}
		if err := deleteLane(t, other, seq); err != nil {
			t.Error(err)
		}
		if got := messages(t, js, "SLUICE_LANES"); got != before {
			t.Errorf("%s: %d messages are left", c.name, got-before)
		}
		if _, err := readLane(t, l, "k", seq); !errors.Is(err, pipeline.ErrGone) {
			t.Errorf("%s: deleted: %v, want ErrGone", c.name, err)
		}
		if err := dlq.Bury(t.Context(), ev, pipeline.TooLarge, nil); err != nil {
			t.Errorf("%s: Bury: %v", c.name, err)
		}
	}
	buried := 0
	err := dlq.Each(t.Context(), DeadSelection{}, func(d DeadLetter) error {
		buried++
		full, err := readDead(t, dlq, d.Seq)
		if err != nil || full.Reason != pipeline.TooLarge || len(full.Event.Data) < 4<<10 {
			t.Errorf("dead letter %d: %v, reason %q", d.Seq, err, full.Reason)
		}
		return err
	})
	if err != nil || buried != 4 {
		t.Errorf("%d dead letters, error %v, want 4", buried, err)
	}
}

// Where the parts of events lie is in what was read: nobody has to remember it of events that another worker drains.
func TestBodyThatWasReadIsDeletedWholeByAnybody(t *testing.T) {
	t.Parallel()
	js, cfg := smallServer(t)
	l := openLanes(t, js, cfg)
	id, err := l.Append(t.Context(), event("k", 1, strings.Repeat("x", 8<<10)))
	if err != nil {
		t.Fatal(err)
	}
	ev, err := openLanes(t, js, cfg).Read(t.Context(), "k", id)
	if err != nil || ev.Body.BodyID != id || ev.Body.Part == 0 {
		t.Fatalf("read as %+v, %v, want %+v and a part", ev.Body, err, id)
	}
	if err := openLanes(t, js, cfg).Delete(t.Context(), ev.Body); err != nil {
		t.Fatal(err)
	}
	if n := messages(t, js, "SLUICE_LANES"); n != 0 {
		t.Errorf("%d messages are left", n)
	}
}

func TestEventThatTwoMessagesDontHoldIsTooLarge(t *testing.T) {
	t.Parallel()
	js, cfg := smallServer(t)
	l := openLanes(t, js, cfg)
	ev := event("k", 1, strings.Repeat("x", 16<<10)) // from when max_payload was more
	if _, err := l.Append(t.Context(), ev); !errors.Is(err, pipeline.ErrTooLarge) {
		t.Errorf("got %v, want ErrTooLarge", err)
	}
	ev.Subject = strings.Repeat("x", 8<<10) // which is a header of ours
	if _, err := l.Append(t.Context(), ev); !errors.Is(err, pipeline.ErrTooLarge) {
		t.Errorf("got %v, want ErrTooLarge", err)
	}
}

// The source takes 64 KiB of headers, and so does each stream: with those of sluice they are more.
func TestEventWithAsManyHeadersAsTheSourceTakesIsStoredWhole(t *testing.T) {
	t.Parallel()
	js, cfg := newServer(t)
	small, smallCfg := smallServer(t)
	many := pipeline.Header{"Sluice-Collapse": {"position"}, "Nats-Msg-Id": {"order 17"}}
	for i := range 2500 {
		many[fmt.Sprint("H", i)] = []string{"a value", "and more"}[:1+i%2]
	}
	for name, c := range map[string]struct {
		js     jetstream.JetStream
		cfg    Config
		most   int
		header pipeline.Header
		data   int
	}{
		"one large header":       {js, cfg, maxHeader, pipeline.Header{"Foo": {"bar"}}, 1},
		"with all data":          {js, cfg, maxHeader, pipeline.Header{"Foo": {"bar"}}, 1<<20 - maxHeader},
		"of one that is renamed": {js, cfg, maxHeader, pipeline.Header{"Nats-Trace-(x)": {strings.Repeat("y", 20<<10)}}, 9},
		"many small ones":        {js, cfg, maxHeader, many, 0},
		"a cost that is none":    {js, cfg, maxHeader, pipeline.Header{"Sluice-Cost": {strings.Repeat("9", 50<<10)}}, 7},
		"all of max_payload":     {small, smallCfg, 8 << 10, pipeline.Header{"Foo": {"bar"}}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			ev := event("k", 1, strings.Repeat("x", c.data))
			ev.Header = c.header
			ev.Header["Big"] = []string{strings.Repeat("b", c.most-headerSize(nats.Header(ev.Header))-headerSize(nats.Header{"Big": {""}})+headerSize(nil))}
			if n := headerSize(nats.Header(ev.Header)); n != c.most {
				t.Fatalf("the headers have %d bytes, want %d", n, c.most)
			}
			l, dlq := openLanes(t, c.js, c.cfg), openDeadLetters(t, c.js, c.cfg)
			ev.Source.Created = int64(len(name)) // another event than the other cases'
			seq := appendEvent(t, l, ev)
			if again := appendEvent(t, l, ev); again != seq {
				t.Errorf("stored again as %d, want %d", again, seq)
			}
			other := openLanes(t, c.js, c.cfg) // another process
			got, err := readLane(t, other, "k", seq)
			if err != nil || !reflect.DeepEqual(got, ev) {
				t.Errorf("read with error %v, the same: %v", err, reflect.DeepEqual(got, ev))
			}
			err = other.Between(t.Context(), seq-1, seq, func(head *pipeline.Event, _ uint64) error {
				if name == "many small ones" && (head.Header.Get("Sluice-Collapse") != "position" || head.Header.Get("Nats-Msg-Id") != "order 17") {
					t.Error("what the index is rebuilt from isn't in the head")
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
			before := messages(t, c.js, "SLUICE_DLQ")
			if err := dlq.Bury(t.Context(), ev, pipeline.TooLarge, errors.New(strings.Repeat("e", 300))); err != nil {
				t.Fatal(err)
			}
			if dead, err := readDead(t, dlq, before+2); err != nil || !reflect.DeepEqual(dead.Event, ev) {
				t.Errorf("dead letter read with error %v", err)
			}
			if err := deleteLane(t, other, seq); err != nil || messages(t, c.js, "SLUICE_LANES") != 0 {
				t.Errorf("deleted: %v, %d messages are left", err, messages(t, c.js, "SLUICE_LANES"))
			}
		})
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
	if _, err := readLane(t, l, "k", before(l)+1); !errors.Is(err, pipeline.ErrGone) {
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
	if got, err := readLane(t, l, "k", seq); err != nil || !bytes.Equal(got.Data, ev.Data) {
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
	if _, err := readLane(t, l, "k", ack.Sequence); !errors.Is(err, pipeline.ErrGone) {
		t.Errorf("a head without its part: %v, want ErrGone", err)
	}
}
