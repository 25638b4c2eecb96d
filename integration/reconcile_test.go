package integration

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sluice/limiter"
	"sluice/limiter/redisstore"
	"sluice/pipeline"
	"sluice/pipeline/metrics"
	"sluice/pipeline/stream"
	"sluice/sink"
)

// inside runs a worker in this process until the test ends, for what no setting of the binary can change. It returns the
// worker's lanes and metrics.
func (w *world) inside(limit string, verifyAge time.Duration) (*stream.Lanes, *prometheus.Registry) {
	w.t.Helper()
	ctx, t, log := w.t.Context(), w.t, slog.New(slog.DiscardHandler)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	cfg := stream.Config{
		URLs: w.nats.URL(), Name: "sluice", Stream: "EVENTS", Subjects: []string{"events.>"}, Setup: stream.SetupOwn,
		Replicas: 1, LanesMaxBytes: 1 << 30, DLQMaxBytes: 1 << 30,
	}
	_, err := stream.Setup(ctx, w.js, cfg)
	must(err)
	lanes, err := stream.OpenLanes(ctx, w.js, cfg)
	must(err)
	dead, err := stream.OpenDeadLetters(ctx, w.js, cfg)
	must(err)
	l, err := limiter.ParseLimits(limit)
	must(err)
	reg := prometheus.NewRegistry()
	store, err := redisstore.New(w.redis.Client(), redisstore.Options{
		Name: "sluice", Worker: "inside", Limits: limiter.Fixed(l), Bodies: lanes, VerifyAge: verifyAge, Log: log, Registry: reg,
	})
	must(err)
	must(store.Start(ctx))
	source, err := stream.OpenSource(ctx, w.js, cfg, log)
	must(err)
	to, err := sink.NewWebhook(sink.WebhookConfig{URL: w.receiver.URL(), Timeout: 15 * time.Second, Concurrency: 64}, "inside")
	must(err)
	key, err := pipeline.ParseKeySpec("subject:2")
	must(err)
	p := pipeline.New(pipeline.Config{
		Key: key, Concurrency: 64, Drain: time.Second,
		Retry: pipeline.Retry{For: time.Hour, Base: time.Second, Cap: time.Second},
	}, pipeline.Ports{
		Source: source, Limiter: store, Index: store, Lanes: lanes, DeadLetters: dead, Sink: to, Log: log,
		Gossip: stream.NewGossip(w.nats.Conn(), cfg), Observer: metrics.New(reg, limiter.Fixed(l), to.Name(), sink.Classes, sink.Class),
	})
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	background, worked := make(chan struct{}), make(chan error, 1)
	go func() {
		defer close(background)
		store.Run(ctx)
	}()
	go func() { worked <- p.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-worked; err != nil {
			t.Error(err)
		}
		<-background
		if err := source.Close(context.Background()); err != nil {
			t.Error(err)
		}
		to.Close()
	})
	return lanes, reg
}

// An event that has lost its place in the index, and one that never got one because its worker died after storing it, are
// found and delivered.
func TestEventsWithoutAPlaceInTheIndexAreFound(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lanes, reg := w.inside("10/s burst 1", time.Second)
	w.publish("k", 30, 0)

	rdb := w.redis.Client()
	lane := "lane:{" + limiter.Tag(limiter.Shard("k")) + "}:k"
	deadline := time.Now().Add(5 * time.Second)
	for rdb.ZCard(t.Context(), lane).Val() < 10 {
		if time.Now().After(deadline) {
			t.Fatal("no lane came into being")
		}
		time.Sleep(10 * time.Millisecond)
	}
	lost := rdb.ZRange(t.Context(), lane, -3, -3).Val()
	if n := rdb.ZRem(t.Context(), lane, lost[0]).Val(); n != 1 {
		t.Fatalf("%v was not in the lane", lost)
	}
	for i, key := range []string{"k", "other"} { // one joins a lane, one has none
		id := fmt.Sprint("stored-", i)
		_, err := lanes.Append(t.Context(), &pipeline.Event{
			ID: id, Key: key, Subject: "events." + key, Data: []byte("stored"), Time: time.Now(), Cost: 1,
			Source: pipeline.SourceID{Stream: "EVENTS", Created: 1, Seq: uint64(1000 + i)},
		})
		if err != nil {
			t.Fatal(err)
		}
		w.published[id] = time.Now()
	}
	start := time.Now()
	w.receiver.WaitForDelivered(32, 10*time.Second)
	t.Logf("all delivered within %s", time.Since(start).Round(time.Millisecond))
	w.atRest(0)
	w.bounded(10, 1)
	if d := w.duplicates(); d != 0 {
		t.Errorf("%d duplicates", d)
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if n := f.GetMetric()[0].GetCounter().GetValue(); f.GetName() == "sluice_orphans_total" && n != 3 {
			t.Errorf("%v orphans were counted, want 3", n)
		}
	}
}
