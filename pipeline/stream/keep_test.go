package stream

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

func (l *logged) count(what string) int { return strings.Count(l.String(), what) }

// keep runs a keeper until the test ends. By itself it looks once in so long.
func keep(t *testing.T, js jetstream.JetStream, cfg Config, log *logged, idle time.Duration, told func()) (*Lanes, *DeadLetters) {
	t.Helper()
	lanes := openLanes(t, js, cfg)
	dead, err := OpenDeadLetters(t.Context(), js, cfg)
	if err != nil {
		t.Fatal(err)
	}
	k := NewKeeper(js, cfg, lanes, dead, log.log(), told)
	k.pace = keeperPace{idle: idle, gap: 10 * time.Millisecond}
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { k.Run(ctx) })
	t.Cleanup(func() {
		stop()
		running.Wait()
	})
	return lanes, dead
}

func deleteOwn(t *testing.T, js jetstream.JetStream) {
	t.Helper()
	for _, name := range []string{"SLUICE_LANES", "SLUICE_DLQ"} {
		if err := js.DeleteStream(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
}

func TestDeletedStreamsAreMadeAgainOnceByWhoeverMissesThem(t *testing.T) {
	t.Parallel()
	js, cfg := newServer(t)
	var log logged
	var told atomic.Int32
	const workers = 4
	lanes, dead := make([]*Lanes, workers), make([]*DeadLetters, workers)
	for i := range workers {
		lanes[i], dead[i] = keep(t, connect(t, cfg), cfg, &log, time.Second, func() { told.Add(1) }) // one may have missed nothing
	}
	old := appendEvent(t, lanes[0], event("k", 1, "data"))
	deleteOwn(t, js)

	var trying sync.WaitGroup
	for i := range workers {
		trying.Go(func() {
			eventually(t, "an event is stored again", func() bool {
				seq, err := lanes[i].Append(t.Context(), event("k", uint64(i+2), "data"))
				return err == nil && seq.Seq > old
			})
			eventually(t, "a dead letter is stored again", func() bool {
				return dead[i].Bury(t.Context(), event("k", uint64(i+2), "data"), "rejected", nil) == nil
			})
		})
	}
	trying.Wait()
	eventually(t, "everybody is told of the new stream", func() bool { return told.Load() == workers })
	if n := log.count("made again"); n != 2 {
		t.Errorf("said %d times that a stream is made again, want once for each:\n%s", n, log.String())
	}
	// What an old body's sequence means is nothing any more.
	if err := deleteLane(t, lanes[0], old); err != nil {
		t.Fatal(err)
	}
	if a, b := messages(t, js, "SLUICE_LANES"), messages(t, js, "SLUICE_DLQ"); a != workers || b != workers {
		t.Errorf("stored %d and %d, want %d each", a, b, workers)
	}
	if first, err := lanes[1].Mark(t.Context()); first || err != nil {
		t.Errorf("marked as the very first stream: %t, %v", first, err)
	}
	if actions, err := Setup(t.Context(), js, cfg); err != nil || strings.Contains(dids(actions), "differs") {
		t.Errorf("set-up finds %s, %v", dids(actions), err)
	}
}

func TestWithoutSetupADeletedStreamIsToldAndNotMade(t *testing.T) {
	t.Parallel()
	js, cfg := newServer(t)
	by := cfg
	by.Setup = SetupOff
	var log logged
	lanes, _ := keep(t, js, by, &log, time.Minute, func() {})
	deleteOwn(t, js)
	for i := range 3 {
		if _, err := lanes.Append(t.Context(), event("k", uint64(i+1), "data")); err == nil {
			t.Fatal("stored without a stream")
		}
	}
	eventually(t, "the operator is told", func() bool { return log.count("SLUICE_LANES") > 0 && log.count("SLUICE_DLQ") > 0 })
	if log.count("sluice setup") != 2 || log.count("SLUICE_SETUP=own") != 2 || log.count("level=ERROR") != 2 {
		t.Errorf("said:\n%s\nwant an error for each stream, once, with what to do", log.String())
	}
	if _, err := js.Stream(t.Context(), "SLUICE_LANES"); err == nil {
		t.Error("the stream was made")
	}
	if _, err := Setup(t.Context(), js, cfg); err != nil {
		t.Fatal(err)
	}
	signal(lanes.store.missed)
	eventually(t, "it is told that it is over", func() bool { return log.count("there again") == 2 })
}
