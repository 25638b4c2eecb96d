package stream

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"

	"sluice/pipeline"
)

func openLanes(t *testing.T, js jetstream.JetStream, cfg Config) *Lanes {
	t.Helper()
	l, err := OpenLanes(t.Context(), js, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func openDeadLetters(t *testing.T, js jetstream.JetStream, cfg Config) *DeadLetters {
	t.Helper()
	d, err := OpenDeadLetters(t.Context(), js, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func event(key string, seq uint64, data string) *pipeline.Event {
	return &pipeline.Event{
		ID: fmt.Sprint("EVENTS:", seq), Key: key, Subject: "events.1", Header: pipeline.Header{"Foo": {"bar"}}, Data: []byte(data),
		Time: time.Unix(1700000000, 123456789).UTC(), Source: pipeline.SourceID{Stream: "EVENTS", Created: 7, Seq: seq},
	}
}

func appendEvent(t *testing.T, l *Lanes, ev *pipeline.Event) uint64 {
	t.Helper()
	seq, err := l.Append(t.Context(), ev)
	if err != nil {
		t.Fatalf("Append: %v", err)
	}
	return seq.Seq
}

// before is the sequence before the first of the lanes.
func before(l *Lanes) uint64 { return l.store.stream.CachedInfo().Config.FirstSeq - 1 }

// readLane reads by a sequence of the stream as it is known to l. What it returns compares with what was appended.
func readLane(t *testing.T, l *Lanes, key string, seq uint64) (*pipeline.Event, error) {
	t.Helper()
	ev, err := l.Read(t.Context(), key, l.store.body(seq))
	if err == nil {
		if ev.Body.BodyID != l.store.body(seq) {
			t.Errorf("read as %+v, want %+v", ev.Body.BodyID, l.store.body(seq))
		}
		ev.Body = pipeline.Body{}
	}
	return ev, err
}

// readDead is readLane for dead letters.
func readDead(t *testing.T, d *DeadLetters, seq uint64) (DeadLetter, error) {
	t.Helper()
	l, err := d.Read(t.Context(), d.store.body(seq))
	if err == nil {
		l.Event.Body = pipeline.Body{}
	}
	return l, err
}

// deleteLane deletes the body of whatever event lies there.
func deleteLane(t *testing.T, l *Lanes, seq uint64) error {
	t.Helper()
	body := pipeline.Body{BodyID: l.store.body(seq)}
	if ev, _, err := l.store.read(t.Context(), "", l.store.body(seq)); err == nil {
		body = ev.Body
	}
	return l.Delete(t.Context(), body)
}

// messages counts what a stream holds.
func messages(t *testing.T, js jetstream.JetStream, stream string) uint64 {
	t.Helper()
	s, err := js.Stream(t.Context(), stream)
	if err != nil {
		t.Fatal(err)
	}
	return s.CachedInfo().State.Msgs
}

func TestAppendedEventIsReadOnceStoredAndDeleted(t *testing.T) {
	t.Parallel()
	js, cfg := newServer(t)
	l := openLanes(t, js, cfg)
	ev := event("a.b *", 1, "hello")
	ev.Attempt, ev.First = 2, time.Unix(1700000001, 5).UTC()
	seq := appendEvent(t, l, ev)
	if again := appendEvent(t, l, ev); again != seq {
		t.Errorf("stored again as %d, want the first sequence %d", again, seq)
	}
	got, err := readLane(t, l, ev.Key, seq)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, ev) {
		t.Errorf("read\n%+v, want\n%+v", got, ev)
	}
	if _, err := readLane(t, l, "another key", seq); !errors.Is(err, pipeline.ErrGone) {
		t.Errorf("a ghost: %v, want ErrGone", err)
	}
	if n := messages(t, js, "SLUICE_LANES"); n != 1 {
		t.Errorf("%d messages after reading a ghost, want 1", n)
	}
	for range 2 {
		if err := deleteLane(t, l, seq); err != nil {
			t.Errorf("Delete: %v", err)
		}
	}
	if err := deleteLane(t, l, seq+100); err != nil {
		t.Errorf("Delete beyond the end: %v", err)
	}
	if _, err := readLane(t, l, ev.Key, seq); !errors.Is(err, pipeline.ErrGone) {
		t.Errorf("deleted: %v, want ErrGone", err)
	}
	if _, err := l.Append(t.Context(), event("", 2, "")); err == nil {
		t.Error("an event without a key has a lane")
	}
	if s, _ := js.Stream(t.Context(), "SLUICE_LANES"); l.Created() != s.CachedInfo().Created.UnixNano() {
		t.Error("Created isn't the stream's")
	}
}

// A server that answers direct gets from a replica that lags says 404 for what the leader has.
func TestOnlyTheLeaderSaysThatABodyIsGone(t *testing.T) {
	t.Parallel()
	js, cfg := newServer(t)
	l := openLanes(t, js, cfg)
	seq := appendEvent(t, l, event("k", 1, "hello"))
	ev, err := l.store.getFromLeader(t.Context(), seq)
	if err != nil || string(ev.data) != "hello" || ev.header.Get("Foo") != "bar" || ev.subject != l.names.Lane("k") {
		t.Errorf("from the leader: %+v, %v", ev, err)
	}
	if _, err := l.store.getFromLeader(t.Context(), seq+1); !errors.Is(err, pipeline.ErrGone) {
		t.Errorf("not there: %v, want ErrGone", err)
	}
	// Without direct gets nobody answers the first question at all.
	s, err := js.Stream(t.Context(), "SLUICE_LANES")
	if err != nil {
		t.Fatal(err)
	}
	c := s.CachedInfo().Config
	c.AllowDirect = false
	if _, err := js.UpdateStream(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	if got, err := readLane(t, l, "k", seq); err != nil || string(got.Data) != "hello" {
		t.Errorf("Read: %v", err)
	}
}

func TestManyCallersAppendAtOnce(t *testing.T) {
	t.Parallel()
	js, cfg := newServer(t)
	l := openLanes(t, js, cfg)
	const n = 2000
	bodies := make([]pipeline.BodyID, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			var err error
			if bodies[i], err = l.Append(t.Context(), event("k", uint64(i+1), "x")); err != nil {
				t.Errorf("Append: %v", err)
			}
		})
	}
	all.Wait()
	seen := map[pipeline.BodyID]bool{}
	for _, s := range bodies {
		seen[s] = true
	}
	if len(seen) != n {
		t.Errorf("%d sequences for %d events", len(seen), n)
	}
}

func TestEachGivesAllEventsInOrderWithoutData(t *testing.T) {
	t.Parallel()
	js, cfg := newServer(t)
	l := openLanes(t, js, cfg)
	none := func(*pipeline.Event, uint64) error { return errors.New("there is nothing") }
	if err := l.Each(t.Context(), none); err != nil {
		t.Errorf("an empty stream: %v", err)
	}
	const n = 50
	for i := range n {
		appendEvent(t, l, event(fmt.Sprint("k", i%3), uint64(i+1), "data"))
	}
	if err := deleteLane(t, l, before(l)+1); err != nil {
		t.Fatal(err)
	}
	if _, err := js.Publish(t.Context(), "sluice.lane.s00.stranger", []byte("not ours")); err != nil {
		t.Fatal(err)
	}
	var got []uint64
	err := l.Each(t.Context(), func(ev *pipeline.Event, seq uint64) error {
		seq -= before(l)
		if ev.Source.Seq != seq || len(ev.Data) != 0 || ev.Header.Get("Foo") != "bar" || len(ev.Header) != 1 || ev.Key != fmt.Sprint("k", (seq-1)%3) {
			t.Errorf("event %d: %+v", seq, ev)
		}
		got = append(got, seq)
		return nil
	})
	if err != nil || len(got) != n-1 || got[0] != 2 || got[len(got)-1] != n {
		t.Errorf("%d events, error %v, want %d", len(got), err, n-1)
	}
	stop := errors.New("stop")
	if err := l.Each(t.Context(), func(*pipeline.Event, uint64) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("got %v, want fn's error", err)
	}
}

func TestFullStreamIsErrFull(t *testing.T) {
	t.Parallel()
	cfg := testConfig(startServer(t, serverOptions(t)))
	cfg.LanesMaxBytes, cfg.DLQMaxBytes = 4<<10, 4<<10
	js := connect(t, cfg)
	if _, err := Setup(t.Context(), js, cfg); err != nil {
		t.Fatal(err)
	}
	l, dlq := openLanes(t, js, cfg), openDeadLetters(t, js, cfg)
	ev := event("k", 1, strings.Repeat("x", 3<<10))
	seq := appendEvent(t, l, ev)
	ev.Source.Seq = 2
	if _, err := l.Append(t.Context(), ev); !errors.Is(err, pipeline.ErrFull) || !strings.Contains(err.Error(), "SLUICE_LANES_MAX_BYTES") {
		t.Errorf("got %v, want ErrFull and the variable to raise", err)
	}
	if _, err := readLane(t, l, "k", seq); err != nil {
		t.Errorf("a full stream dropped an old event: %v", err)
	}
	if err := deleteLane(t, l, seq); err != nil {
		t.Fatal(err)
	}
	appendEvent(t, l, ev)
	if err := dlq.Bury(t.Context(), ev, pipeline.Rejected, nil); err != nil {
		t.Fatal(err)
	}
	if err := dlq.Bury(t.Context(), ev, pipeline.Exhausted, nil); !errors.Is(err, pipeline.ErrFull) || !strings.Contains(err.Error(), "SLUICE_DLQ_MAX_BYTES") {
		t.Errorf("got %v, want ErrFull and the variable to raise", err)
	}
}

// Room for the first half of an event only: it doesn't stay, and the event is whole when there is room.
func TestFullStreamKeepsNoHalfOfAnEvent(t *testing.T) {
	t.Parallel()
	opts := serverOptions(t)
	opts.MaxPayload = 4 << 10
	cfg := testConfig(startServer(t, opts))
	cfg.LanesMaxBytes = 8 << 10
	js := connect(t, cfg)
	if _, err := Setup(t.Context(), js, cfg); err != nil {
		t.Fatal(err)
	}
	l := openLanes(t, js, cfg)
	other := appendEvent(t, l, event("k", 1, strings.Repeat("y", 3<<10)))
	data := strings.Repeat("x", 3<<10) + strings.Repeat("z", 3<<10)
	for range 2 {
		if _, err := l.Append(t.Context(), event("k", 2, data)); !errors.Is(err, pipeline.ErrFull) {
			t.Fatalf("got %v, want ErrFull", err)
		}
		if n := messages(t, js, "SLUICE_LANES"); n != 1 {
			t.Errorf("%d messages are stored, want the one of the other event", n)
		}
	}
	if err := deleteLane(t, l, other); err != nil {
		t.Fatal(err)
	}
	seq := appendEvent(t, l, event("k", 2, data))
	if ev, err := readLane(t, l, "k", seq); err != nil || string(ev.Data) != data {
		t.Errorf("read %v, %v, want the event", ev, err)
	}
}

func TestEventInTwoThatTwoWorkersStoreIsStoredOnce(t *testing.T) {
	t.Parallel()
	opts := serverOptions(t)
	opts.MaxPayload = 4 << 10
	cfg := testConfig(startServer(t, opts))
	js := connect(t, cfg)
	if _, err := Setup(t.Context(), js, cfg); err != nil {
		t.Fatal(err)
	}
	ev := event("k", 2, strings.Repeat("x", 3<<10)+strings.Repeat("z", 3<<10))
	first, second := openLanes(t, js, cfg), openLanes(t, js, cfg)
	seq := appendEvent(t, first, ev)
	for _, l := range []*Lanes{first, second} {
		if again := appendEvent(t, l, ev); again != seq {
			t.Errorf("stored again as %d, want %d", again, seq)
		}
	}
	if n := messages(t, js, "SLUICE_LANES"); n != 2 {
		t.Errorf("%d messages are stored, want two halves", n)
	}
	if got, err := readLane(t, second, "k", seq); err != nil || string(got.Data) != string(ev.Data) {
		t.Errorf("read %v, %v, want the event", got, err)
	}
	if err := deleteLane(t, second, seq); err != nil {
		t.Fatal(err)
	}
	if n := messages(t, js, "SLUICE_LANES"); n != 0 {
		t.Errorf("%d messages are left", n)
	}
}

func TestDeadLetterKeepsReasonAndCauseOncePerReason(t *testing.T) {
	t.Parallel()
	js, cfg := newServer(t)
	dlq := openDeadLetters(t, js, cfg)
	ev := event("k", 1, "data")
	for range 2 {
		for _, reason := range []pipeline.DeadReason{pipeline.Rejected, pipeline.MaxWait} {
			if err := dlq.Bury(t.Context(), ev, reason, errors.New("status 410\r\nGone")); err != nil {
				t.Fatal(err)
			}
		}
	}
	keyless := event("", 2, "data")
	if err := dlq.Bury(t.Context(), keyless, pipeline.NoKey, nil); err != nil {
		t.Fatal(err)
	}
	if n := messages(t, js, "SLUICE_DLQ"); n != 3 {
		t.Errorf("%d dead letters, want 3", n)
	}
	got, err := readDead(t, dlq, 1)
	if err != nil || got.Reason != pipeline.Rejected || got.Cause != "status 410  Gone" || !reflect.DeepEqual(got.Event, ev) {
		t.Errorf("read %+v, %v", got, err)
	}
	if got, err = readDead(t, dlq, 3); err != nil || !reflect.DeepEqual(got.Event, keyless) {
		t.Errorf("read %+v, %v", got.Event, err)
	}
	if err := dlq.Delete(t.Context(), pipeline.Body{BodyID: dlq.store.body(3)}); err != nil {
		t.Error(err)
	}
	if _, err := readDead(t, dlq, 3); !errors.Is(err, pipeline.ErrGone) {
		t.Errorf("deleted: %v, want ErrGone", err)
	}
}

func TestAppendWithoutConnectionFailsAtOnce(t *testing.T) {
	t.Parallel()
	opts := serverOptions(t)
	ns := startServer(t, opts)
	cfg := testConfig(ns)
	js := connect(t, cfg)
	if _, err := Setup(t.Context(), js, cfg); err != nil {
		t.Fatal(err)
	}
	l := openLanes(t, js, cfg)
	ns.Shutdown()
	ns.WaitForShutdown()
	eventually(t, "disconnected", func() bool { return !js.Conn().IsConnected() })
	begun := time.Now()
	if _, err := l.Append(t.Context(), event("k", 1, "x")); !errors.Is(err, errNotConnected) {
		t.Errorf("got %v, want errNotConnected", err)
	}
	if took := time.Since(begun); took > time.Second {
		t.Errorf("it took %v", took)
	}
	startServer(t, opts)
	eventually(t, "stored", func() bool {
		_, err := l.Append(t.Context(), event("k", 1, "x"))
		return err == nil
	})
}

func TestAppendWithoutPermissionSaysSo(t *testing.T) {
	t.Parallel()
	opts := serverOptions(t)
	opts.Users = []*server.User{{Username: "worker", Password: "x", Permissions: &server.Permissions{
		Publish: &server.SubjectPermission{Deny: []string{"sluice.lane.>"}},
	}}}
	cfg := testConfig(startServer(t, opts))
	cfg.User, cfg.Password = "worker", "x"
	js := connect(t, cfg)
	if _, err := Setup(t.Context(), js, cfg); err != nil {
		t.Fatal(err)
	}
	_, err := openLanes(t, js, cfg).Append(t.Context(), event("k", 1, "x"))
	wantText(t, err, "no permission: storing in stream SLUICE_LANES")
}

func TestRecreatedLanesAreNoticed(t *testing.T) {
	t.Parallel()
	js, cfg := newServer(t)
	l := openLanes(t, js, cfg)
	if first, err := l.Mark(t.Context()); !first || err != nil {
		t.Fatal(first, err)
	}
	large := event("k", 1, strings.Repeat("x", int(js.Conn().MaxPayload())-100))
	id, err := l.Append(t.Context(), large) // two messages
	if err != nil {
		t.Fatal(err)
	}
	old, err := l.Read(t.Context(), "k", id)
	if err != nil || old.Body.Part == 0 {
		t.Fatalf("read with part %d, error %v", old.Body.Part, err)
	}
	was := l.Created()
	if err := js.DeleteStream(t.Context(), "SLUICE_LANES"); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Mark(t.Context()); err == nil || l.Created() != was {
		t.Errorf("without a stream: %v, created %d, want an error and %d", err, l.Created(), was)
	}
	if _, err := Setup(t.Context(), js, cfg); err != nil {
		t.Fatal(err)
	}
	if first, err := l.Mark(t.Context()); !first || err != nil || l.Created() == was {
		t.Errorf("in the new stream: %t, %v, created %d", first, err, l.Created())
	}
	for i := range 4 {
		appendEvent(t, l, event("k", uint64(i+2), "data"))
	}
	if _, err := l.Read(t.Context(), "k", id); !errors.Is(err, pipeline.ErrGone) {
		t.Errorf("an event of the old stream: %v, want ErrGone", err)
	}
	if err := l.Delete(t.Context(), old.Body); err != nil {
		t.Fatal(err)
	}
	if n, err := l.Stored(t.Context()); err != nil || n != 4 {
		t.Errorf("%d messages are left, %v, want all", n, err)
	}
}

// Whoever makes the lanes anew, a worker that hasn't heard of it deletes what it has read in the old ones.
func TestLateDeletionRemovesNothingOfLanesThatWereMadeAnew(t *testing.T) {
	t.Parallel()
	js, cfg := newServer(t)
	l, dead := openLanes(t, js, cfg), openDeadLetters(t, js, cfg)
	keeper := NewKeeper(js, cfg, openLanes(t, js, cfg), dead, quiet, func() {})
	for who, make := range map[string]func() error{
		"sluice setup, or a worker that starts": func() error { _, err := Setup(t.Context(), js, cfg); return err },
		"a running worker":                      func() error { _, err := keeper.again(t.Context(), keeper.stores[0]); return err },
	} {
		id, err := l.Append(t.Context(), event("k", 1, "old"))
		if err != nil {
			t.Fatal(err)
		}
		old, err := l.Read(t.Context(), "k", id)
		if err != nil {
			t.Fatal(err)
		}
		if err := js.DeleteStream(t.Context(), "SLUICE_LANES"); err != nil {
			t.Fatal(err)
		}
		if err := make(); err != nil {
			t.Fatal(err)
		}
		other := openLanes(t, js, cfg)
		for i := range 4 {
			appendEvent(t, other, event("another", uint64(i+2), "new"))
		}
		if err := l.Delete(t.Context(), old.Body); err != nil {
			t.Error(err)
		}
		if n := messages(t, js, "SLUICE_LANES"); n != 4 {
			t.Errorf("made anew by %s: %d of 4 events are left", who, n)
		}
		if _, err := l.Last(t.Context()); err != nil || l.Created() == old.Body.Created {
			t.Fatalf("the new stream isn't noticed: %v", err)
		}
	}
}
