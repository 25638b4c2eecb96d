package integration

import (
	"fmt"
	"log/slog"
	"os"
	"testing"
	"time"

	"sluice/integration/testenv"
	"sluice/limiter"
	"sluice/limiter/redisstore"
	"sluice/pipeline"
	"sluice/pipeline/stream"
)

// The index of a million waiting events is rebuilt within half a minute: for so long nobody is served.
func TestIndexOfAMillionEventsIsRebuiltInTime(t *testing.T) {
	events, within := 5_000, 5*time.Second
	if os.Getenv("SLUICE_SOAK") != "" {
		events, within = 1_000_000, 30*time.Second
	}
	n, rdb := testenv.NATS(t), testenv.Redis(t).Client()
	cfg := stream.Config{
		URLs: n.URL(), Name: "sluice", Stream: "EVENTS", Subjects: []string{"events.>"}, Setup: stream.SetupAll,
		Replicas: 1, LanesMaxBytes: 8 << 30, DLQMaxBytes: 1 << 30,
	}
	if _, err := stream.Setup(t.Context(), n.JetStream(), cfg); err != nil {
		t.Fatal(err)
	}
	lanes, err := stream.OpenLanes(t.Context(), n.JetStream(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	limits, err := limiter.ParseLimits("1/s")
	if err != nil {
		t.Fatal(err)
	}
	store, err := redisstore.New(rdb, redisstore.Options{
		Name: "sluice", Worker: "me", Limits: limiter.Fixed(limits), Bodies: lanes, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	const keys = 10_000
	stored := make(chan error, 64)
	start := time.Now()
	for worker := range cap(stored) {
		go func() {
			for i := worker; i < events; i += cap(stored) {
				ev := &pipeline.Event{
					ID: fmt.Sprint(i), Key: fmt.Sprint("key", i%keys), Subject: "events.key", Time: start, Data: []byte("data"),
					Source: pipeline.SourceID{Stream: "EVENTS", Created: 1, Seq: uint64(i + 1)},
				}
				if _, err := lanes.Append(t.Context(), ev); err != nil {
					stored <- err
					return
				}
			}
			stored <- nil
		}()
	}
	for range cap(stored) {
		if err := <-stored; err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d events stored in %s", events, time.Since(start).Round(time.Millisecond))

	rdb.FlushAll(t.Context())
	start = time.Now()
	if err := store.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	took := time.Since(start)
	t.Logf("%d events of %d lanes indexed in %s", events, min(keys, events), took.Round(time.Millisecond))
	if took > within {
		t.Errorf("the rebuild of %d events took %s, want at most %s", events, took, within)
	}
	indexed := int64(0)
	for i := range min(keys, events) {
		key := fmt.Sprint("key", i)
		indexed += rdb.ZCard(t.Context(), "lane:{"+limiter.Tag(limiter.Shard(key))+"}:"+key).Val()
	}
	if indexed != int64(events) {
		t.Errorf("%d events are indexed, want %d", indexed, events)
	}
}
