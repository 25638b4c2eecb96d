package main

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/prometheus/client_golang/prometheus"

	"sluice/integration/testenv"
	"sluice/limiter"
	"sluice/limiter/redisstore"
	"sluice/pipeline"
	"sluice/pipeline/metrics"
	"sluice/pipeline/stream"
)

// A thousand throttled events and two dead letters are no work for more workers; seven events that nobody has pulled are.
func TestFleetFiguresTellThrottledFromEligible(t *testing.T) {
	r := newLetterRig(t, server.Options{})
	log := slog.New(slog.DiscardHandler)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	r.bury(pipeline.Rejected, "alice", 1, "")
	r.bury(pipeline.MaxWait, "bob", 2, "")
	lanes, err := stream.OpenLanes(t.Context(), r.js, r.cfg)
	must(err)
	limits, err := limiter.ParseLimits("1/h burst 1")
	must(err)
	store, err := redisstore.New(testenv.Redis(t).Client(), redisstore.Options{Name: "sluice", Worker: "me", Limits: limiter.Fixed(limits), Bodies: lanes, Log: log})
	must(err)
	must(store.Start(t.Context()))
	for i := range 1000 {
		ev := &pipeline.Event{
			ID: fmt.Sprint(i), Key: fmt.Sprint("k", i%10), Subject: "events.k", Time: time.Now(), Cost: 1,
			Source: pipeline.SourceID{Stream: "EVENTS", Created: 1, Seq: uint64(i + 1)},
		}
		if i < 10 {
			_, err = store.Reserve(t.Context(), ev.Key, "", 1, 0)
			must(err)
		}
		body, err := lanes.Append(t.Context(), ev)
		must(err)
		_, err = store.Park(t.Context(), pipeline.ParkRequest{Key: ev.Key, Entry: pipeline.Entry{BodyID: body, Order: ev.Source.Seq, Cost: 1}})
		must(err)
	}
	source, err := stream.OpenSource(t.Context(), r.js, r.cfg, log)
	must(err)
	must(source.Close(t.Context())) // pulls nothing
	for range 7 {
		_, err := r.js.Publish(t.Context(), "events.k", nil)
		must(err)
	}
	fleet, err := stream.JoinFleet(r.js.Conn(), r.cfg, stream.WorkerInfo{ID: "me"})
	must(err)
	ctx, stop := context.WithCancel(t.Context())
	spoken := make(chan struct{})
	go func() { defer close(spoken); fleet.Run(ctx) }()
	defer func() { stop(); <-spoken }()

	reg := prometheus.NewRegistry()
	look := &fleetLook{metrics.NewFleet(reg, time.Hour), source, lanes, r.letters, store, fleet, log}
	want := map[string]float64{
		"eligible_events": 7, "throttled_events": 1000, "lanes": 10, "dead_letters": 2, "workers": 1,
	}
	var got map[string]float64
	for deadline := time.Now().Add(8 * time.Second); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		must(look.look(t.Context()))
		families, err := reg.Gather()
		must(err)
		got = map[string]float64{}
		for _, f := range families {
			got[f.GetName()[len("sluice_fleet_"):]] = f.GetMetric()[0].GetGauge().GetValue()
		}
		oldest := got["oldest_eligible_seconds"]
		delete(got, "oldest_eligible_seconds")
		if maps.Equal(got, want) && oldest > 0.05 && oldest < 10 {
			return
		}
	}
	t.Errorf("the figures are %v, want %v", got, want)
}
