package main

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"sluice/pipeline"
	"sluice/pipeline/stream"
)

// From dead letter to source and back, twice: headers and id are the producer's all the way.
func TestReplayCircleKeepsHeadersAndID(t *testing.T) {
	r := newLetterRig(t, server.Options{})
	header := nats.Header{"Nats-Msg-Id": {"order 17"}, "Nats-Expected-Stream": {"EVENTS"}, "X": {"1", "2"}, "Sluice-Id": {"theirs"}}
	if _, err := r.js.PublishMsg(t.Context(), &nats.Msg{Subject: "events.alice", Header: header, Data: []byte("data")}); err != nil {
		t.Fatal(err)
	}
	source := r.source()
	for round := range 3 {
		ev := r.next(source)
		if ev.ID != "order%2017" || ev.Attempt != 0 || !reflect.DeepEqual(nats.Header(ev.Header), header) || string(ev.Data) != "data" {
			t.Fatalf("round %d: the source gives %+v", round, ev)
		}
		ev.Key, ev.Attempt, ev.First = "alice", 9, time.Now()
		r.buryEvent(pipeline.Exhausted, ev)
		stdout, _ := r.dlq(0, "show", fmt.Sprint(round+1), "--json")
		var shown struct {
			ID      string
			Headers nats.Header
		}
		if err := json.Unmarshal([]byte(stdout), &shown); err != nil || shown.ID != "order%2017" || !reflect.DeepEqual(shown.Headers, header) {
			t.Errorf("round %d: show gives %s, %v", round, stdout, err)
		}
		stdout, _ = r.dlq(0, "replay", "--key", "alice", "--json")
		if got := decodeInto[replayCounts](t, stdout); got != (replayCounts{Selected: 1, Replayed: 1}) {
			t.Errorf("round %d: %s", round, stdout)
		}
		if n := r.held("SLUICE_DLQ"); n != 0 {
			t.Errorf("round %d: %d dead letters are left", round, n)
		}
	}
	if stdout, _ := r.dlq(0, "replay", "--key", "alice"); stdout != "no dead letter fits\n" {
		t.Errorf("once more: %q", stdout)
	}
}

// A replay that ended between confirmation and deletion is repeated.
func TestReplayTwicePublishesOnce(t *testing.T) {
	r := newLetterRig(t, server.Options{})
	r.bury(pipeline.Rejected, "alice", 1, "data")
	l, err := r.letters.Read(t.Context(), pipeline.BodyID{Created: r.letters.Created(), Seq: 1})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.js.PublishMsg(t.Context(), r.letters.Replay(l, "EVENTS")); err != nil {
		t.Fatal(err)
	}
	stdout, _ := r.dlq(0, "replay", "--yes", "--json")
	if got := decodeInto[replayCounts](t, stdout); got != (replayCounts{Selected: 1, Duplicates: 1}) {
		t.Errorf("counts %s", stdout)
	}
	if events, letters := r.held("EVENTS"), r.held("SLUICE_DLQ"); events != 1 || letters != 0 {
		t.Errorf("%d events and %d dead letters, want 1 and 0", events, letters)
	}
}

func TestLetterWhoseSubjectIsGoneStays(t *testing.T) {
	r := newLetterRig(t, server.Options{})
	if _, err := r.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "OTHER", Subjects: []string{"other.>"}}); err != nil {
		t.Fatal(err)
	}
	for i, subject := range []string{"gone.a", "events.a", "other.a"} {
		r.buryEvent(pipeline.Rejected, &pipeline.Event{
			ID: fmt.Sprint(i), Key: "a", Subject: subject, Source: pipeline.SourceID{Stream: "EVENTS", Created: 1, Seq: uint64(i + 1)},
		})
	}
	stdout, stderr := r.dlq(1, "replay", "--yes")
	if !strings.HasPrefix(stdout, "replayed 1 dead letter, 0 duplicates, 0 gone, 2 failed in ") {
		t.Errorf("it prints %q", stdout)
	}
	for _, want := range []string{
		`dead letter 1: stream EVENTS doesn't take its subject "gone.a" any more`, `dead letter 3: stream EVENTS doesn't take its subject "other.a" any more`,
		"sluice: 2 dead letters not replayed\n",
	} {
		if !strings.Contains(stderr, want) {
			t.Errorf("%q isn't in\n%s", want, stderr)
		}
	}
	if stdout, _ = r.dlq(0, "ls", "--json"); !reflect.DeepEqual(seqsOf(t, stdout), []uint64{1, 3}) {
		t.Errorf("left are\n%s", stdout)
	}
	if n := r.held("OTHER"); n != 0 {
		t.Errorf("the other stream got %d events", n)
	}
}

// The stream takes it, and it would be gone from the dead letters and come to nobody.
func TestLetterThatNoWorkerWouldTakeStays(t *testing.T) {
	r := newLetterRig(t, server.Options{})
	t.Setenv("SLUICE_SUBJECTS", "events.*.new,events.b")
	for i, subject := range []string{"events.a", "events.a.new", "events.b"} {
		r.buryEvent(pipeline.Rejected, &pipeline.Event{
			ID: fmt.Sprint(i), Key: "a", Subject: subject, Source: pipeline.SourceID{Stream: "EVENTS", Created: 1, Seq: uint64(i + 1)},
		})
	}
	_, stderr := r.dlq(1, "replay", "--yes")
	if !strings.Contains(stderr, `dead letter 1: no worker would take its subject "events.a"`) {
		t.Errorf("it says %s", stderr)
	}
	if events, letters := r.held("EVENTS"), r.held("SLUICE_DLQ"); events != 2 || letters != 1 {
		t.Errorf("%d events and %d dead letters, want 2 and 1", events, letters)
	}
}

func TestReplayOfEventsAtMaxPayload(t *testing.T) {
	const room = 8 << 10
	r := newLetterRig(t, server.Options{MaxPayload: room})
	lanes, err := stream.OpenLanes(t.Context(), r.js, r.cfg)
	if err != nil {
		t.Fatal(err)
	}
	fits, exact := strings.Repeat("f", room-200), strings.Repeat("x", room)
	r.bury(pipeline.Rejected, "alice", 1, fits) // too large with sluice's headers, not with those of a replay
	r.buryEvent(pipeline.Rejected, &pipeline.Event{
		ID: "EVENTS:2", Key: "alice", Subject: "events.alice", Data: []byte(exact), Source: pipeline.SourceID{Stream: "EVENTS", Created: 1, Seq: 2}, Attempt: 3,
	})
	r.buryEvent(pipeline.NoKey, &pipeline.Event{
		ID: "EVENTS:3", Subject: "events.alice", Data: []byte(exact), Source: pipeline.SourceID{Stream: "EVENTS", Created: 1, Seq: 3},
	})
	if n := r.held("SLUICE_DLQ"); n != 6 {
		t.Fatalf("%d messages, want two for each", n)
	}
	if stdout, _ := r.dlq(0, "show", "4", "--body"); stdout != exact {
		t.Errorf("show gives %d bytes", len(stdout))
	}
	const before = 20 // events that alice has in the source, some of them perhaps in her lane by now
	source := r.source()
	for range before {
		if _, err := r.js.Publish(t.Context(), "events.alice", []byte("x")); err != nil {
			t.Fatal(err)
		}
		r.next(source)
	}
	stdout, _ := r.dlq(0, "replay", "--key", "alice", "--json")
	if got := decodeInto[replayCounts](t, stdout); got != (replayCounts{Selected: 2, Replayed: 2}) {
		t.Errorf("counts %s", stdout)
	}
	if ev := r.next(source); string(ev.Data) != fits || ev.ID != "id-1" {
		t.Errorf("the source gives %s with %d bytes", ev.ID, len(ev.Data))
	}
	found := 0
	err = lanes.Each(t.Context(), func(_ *pipeline.Event, seq uint64) error {
		ev, err := lanes.Read(t.Context(), "alice", pipeline.BodyID{Created: lanes.Created(), Seq: seq})
		if err != nil || string(ev.Data) != exact || ev.ID != "EVENTS:2" || ev.Attempt != 0 {
			t.Errorf("in the lane is %+v, %v", ev, err)
		}
		if ev.Order() <= before {
			t.Errorf("its place is %d, before some of %d events that are older", ev.Order(), before)
		}
		found++
		return nil
	})
	if err != nil || found != 1 {
		t.Errorf("%d events in lanes, %v", found, err)
	}
	t.Setenv("SLUICE_KEY", "json:user")
	_, stderr := r.dlq(1, "replay", "--reason", "no_key")
	if !strings.Contains(stderr, "dead letter 6 is too large for stream EVENTS with its id, and no worker would take it from a lane: no key") || r.held("SLUICE_DLQ") != 2 {
		t.Errorf("one without a lane: %s", stderr)
	}
}

// The way by the lane is no way around what a worker looks at: the same letters, small and as large as there can be.
func TestReplayOfWhatWasUnreadableGoesByItsNewKeyOrStays(t *testing.T) {
	const room = 8 << 10
	r := newLetterRig(t, server.Options{MaxPayload: room})
	lanes, err := stream.OpenLanes(t.Context(), r.js, r.cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("SLUICE_KEY", "json:user")
	var lanesHold, sourceHolds int
	for i, tt := range []struct {
		reason pipeline.DeadReason
		key    string
		header pipeline.Header
		data   string
		stays  bool // at full size; a small one goes to the source, from where it is dead-lettered again
	}{
		{pipeline.BadHeader, "alice", pipeline.Header{"Sluice-Cost": {"nonsense"}}, `{"user":"alice"}`, true},
		{pipeline.BadHeader, "alice", pipeline.Header{"Sluice-Expires": {"2026-12-24T5:00:00Z"}}, `{"user":"alice"}`, true},
		{pipeline.BadKey, "", nil, `{"user":"bob","user":"alice"}`, true},
		{pipeline.BadKey, "", nil, `{"user":"alice"}`, false}, // SLUICE_KEY was another one then
		{pipeline.NoKey, "", pipeline.Header{"Sluice-Cost": {"3"}}, `{"user":"alice"}`, false},
	} {
		for j, size := range []int{1000, room - 100} {
			seq := uint64(2*i + j + 1)
			r.buryEvent(tt.reason, &pipeline.Event{
				ID: fmt.Sprint("EVENTS:", seq), Key: tt.key, Subject: "events.a", Header: tt.header, Data: []byte(tt.data + strings.Repeat(" ", size-len(tt.data))),
				Source: pipeline.SourceID{Stream: "EVENTS", Created: 1, Seq: seq},
			})
		}
		if sourceHolds++; !tt.stays {
			lanesHold++
		}
	}
	_, stderr := r.dlq(1, "replay", "--yes")
	for want, times := range map[string]int{`Sluice-Cost is "nonsense"`: 1, "Sluice-Expires is": 1, "unusable key": 1, "no worker would take it from a lane": 3} {
		if strings.Count(stderr, want) != times {
			t.Errorf("%q isn't there %d times in\n%s", want, times, stderr)
		}
	}
	found := 0
	err = lanes.Each(t.Context(), func(ev *pipeline.Event, seq uint64) error {
		if found++; ev.Key != "alice" {
			t.Errorf("in a lane is %+v", ev)
		}
		return nil
	})
	if err != nil || found != lanesHold || r.held("EVENTS") != uint64(sourceHolds) {
		t.Errorf("%d events in lanes, want %d, and %d in the source, want %d: %v", found, lanesHold, r.held("EVENTS"), sourceHolds, err)
	}
}

// With the id they would be more than JetStream takes.
func TestReplayOfAnEventWithAsManyHeadersAsThereCanBe(t *testing.T) {
	r := newLetterRig(t, server.Options{})
	lanes, err := stream.OpenLanes(t.Context(), r.js, r.cfg)
	if err != nil {
		t.Fatal(err)
	}
	header := nats.Header{"Big": {strings.Repeat("b", 65_500)}}
	if _, err := r.js.PublishMsg(t.Context(), &nats.Msg{Subject: "events.alice", Header: header}); err != nil {
		t.Fatal(err)
	}
	ev := r.next(r.source())
	ev.Key = "alice"
	r.buryEvent(pipeline.Rejected, ev)
	if stdout, _ := r.dlq(0, "show", "2"); !strings.Contains(stdout, header.Get("Big")) {
		t.Error("show doesn't give the header")
	}
	stdout, _ := r.dlq(0, "replay", "--yes", "--json")
	if got := decodeInto[replayCounts](t, stdout); got != (replayCounts{Selected: 1, Replayed: 1}) || r.held("SLUICE_DLQ") != 0 {
		t.Errorf("counts %s", stdout)
	}
	if got, err := lanes.Read(t.Context(), "alice", lastBody(t, lanes)); err != nil || got.ID != ev.ID || !reflect.DeepEqual(nats.Header(got.Header), header) {
		t.Errorf("in the lane: %v", err)
	}
}

func TestReplayOfTwoThousandIsQuickAndInOrder(t *testing.T) {
	r := newLetterRig(t, server.Options{})
	const n = 2000
	for i := range n {
		r.bury(pipeline.Rejected, "alice", i+1, "data")
	}
	start := time.Now()
	stdout, _ := r.dlq(0, "replay", "--yes", "--json")
	if took := time.Since(start); took > 3*time.Second {
		t.Errorf("it took %s", took)
	}
	if got := decodeInto[replayCounts](t, stdout); got != (replayCounts{Selected: n, Replayed: n}) || r.held("SLUICE_DLQ") != 0 {
		t.Errorf("counts %s", stdout)
	}
	source := r.source()
	for i := range n {
		if ev := r.next(source); ev.ID != fmt.Sprintf("id-%d", i+1) {
			t.Fatalf("event %d is %s", i, ev.ID)
		}
	}
}

func TestDryRunChangesNothing(t *testing.T) {
	r := newLetterRig(t, server.Options{})
	r.bury(pipeline.Rejected, "alice", 1, "")
	r.bury(pipeline.MaxWait, "bob", 2, "")
	for _, verb := range []string{"replay", "purge"} {
		if stdout, _ := r.dlq(0, verb, "--dry-run"); stdout != "would "+verb+" 2 dead letters (1 max_wait, 1 rejected); ls with the same flags lists them\n" {
			t.Errorf("%s prints %q", verb, stdout)
		}
		if stdout, _ := r.dlq(0, verb, "--dry-run", "--key", "bob", "--json"); stdout != `{"selected":1,"reasons":{"max_wait":1}}`+"\n" {
			t.Errorf("%s prints %q", verb, stdout)
		}
	}
	if events, letters := r.held("EVENTS"), r.held("SLUICE_DLQ"); events != 0 || letters != 2 {
		t.Errorf("%d events and %d dead letters, want 0 and 2", events, letters)
	}
}

func TestInterruptedReplayCountsAndKeepsTheRest(t *testing.T) {
	r := newLetterRig(t, server.Options{})
	const n = 50
	for i := range n {
		r.bury(pipeline.Rejected, "alice", i+1, "")
	}
	events, err := r.js.Stream(t.Context(), "EVENTS")
	if err != nil {
		t.Fatal(err)
	}
	ctx, interrupt := context.WithCancel(t.Context())
	go func() {
		defer interrupt()
		for range 500 {
			if info, err := events.Info(ctx); err == nil && info.State.Msgs >= 3 {
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
	}()
	code, stdout, stderr := execute(t, ctx, "", "dlq", "replay", "--key", "alice", "--rate", "20/s", "--json")
	got := decodeInto[replayCounts](t, stdout)
	if code != 1 || got.Replayed < 3 || got.Replayed == n || got.Failed != 0 || !strings.Contains(stderr, "stopped") {
		t.Errorf("exit %d, %s%s", code, stdout, stderr)
	}
	if left, published := r.held("SLUICE_DLQ"), r.held("EVENTS"); left+published != n || published != uint64(got.Replayed) {
		t.Errorf("%d dead letters and %d events, counted as replayed %d", left, published, got.Replayed)
	}
}

// Two people at work: what one replays slowly, the other has replayed or purged meanwhile. Beyond the stream's duplicate window
// nothing else would notice.
func TestSlowReplayLeavesWhatSomebodyElseHasTaken(t *testing.T) {
	r := newLetterRig(t, server.Options{})
	for i := range 3 {
		r.bury(pipeline.Rejected, "alice", i+1, "")
	}
	events, err := r.js.Stream(t.Context(), "EVENTS")
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for info, err := events.Info(t.Context()); err == nil && info.State.Msgs == 0; info, err = events.Info(t.Context()) {
			time.Sleep(10 * time.Millisecond)
		}
		if err := r.letters.Delete(t.Context(), pipeline.Body{BodyID: pipeline.BodyID{Created: r.letters.Created(), Seq: 3}}); err != nil {
			t.Error(err)
		}
	}()
	stdout, _ := r.dlq(0, "replay", "--yes", "--json", "--rate", "1/s")
	if got := decodeInto[replayCounts](t, stdout); got != (replayCounts{Selected: 3, Replayed: 2, Gone: 1}) || r.held("EVENTS") != 2 {
		t.Errorf("counts %s, %d events", stdout, r.held("EVENTS"))
	}
}
