package main

import (
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"sluice/pipeline/stream"
)

// worker says once what a worker of that description would.
func (r *checkRig) worker(info stream.WorkerInfo) {
	r.t.Helper()
	cfg, err := loadConfig(natsPart)
	if err != nil {
		r.t.Fatal(err)
	}
	nc, err := nats.Connect(r.env["NATS_URL"])
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(nc.Close)
	fleet, err := stream.JoinFleet(nc, cfg.stream(), info)
	if err != nil {
		r.t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		fleet.Run(r.t.Context())
	}()
	r.t.Cleanup(func() { <-done }) // the context ends before
}

func TestCheckTellsWhichWorkersDisagreeAndWhichRulesAreBad(t *testing.T) {
	r := newCheckRig(t, server.Options{})
	r.setUp()
	kv, err := r.js.KeyValue(t.Context(), "sluice_limits")
	if err != nil {
		t.Fatal(err)
	}
	for key, value := range map[string]string{"key.alice": "fast", "tier.gold": "5/s"} {
		if _, err := kv.PutString(t.Context(), key, value); err != nil {
			t.Fatal(err)
		}
	}
	s, err := r.js.Stream(t.Context(), "KV_sluice_limits")
	if err != nil {
		t.Fatal(err)
	}
	current := stream.LimitsVersion{Bucket: s.CachedInfo().Created.UnixNano(), Seq: 2}
	behind := stream.LimitsVersion{Bucket: current.Bucket, Seq: 1}
	r.worker(stream.WorkerInfo{ID: "one", Limits: current, Settings: "aa", Build: "v1"})
	r.worker(stream.WorkerInfo{ID: "two", Limits: current, Settings: "aa", Build: "v2"})
	r.worker(stream.WorkerInfo{ID: "three", Limits: behind, Settings: "bb", Build: "v1", Away: true})
	code, found := r.check()
	if code != exitFailed {
		t.Errorf("exit code %d", code)
	}
	for _, want := range []finding{
		{fault, "workers", "behind version 2 of the limits: three", "restart"},
		{fault, "workers", "without Redis: three", "SLUICE_REDIS_"},
		{warning, "workers", "other settings than aa: three", "same variables"},
		{warning, "workers", "other build than v1: two", "upgrade"},
		{warning, "limits", "key.alice can't be understood: ", "sluice limits set"},
	} {
		has := false
		for _, one := range found {
			has = has || one.Level == want.Level && one.About == want.About && strings.HasPrefix(one.Text, want.Text) && strings.Contains(one.Remedy, want.Remedy)
		}
		if !has {
			t.Errorf("want %+v in\n%+v", want, found)
		}
	}
}

func TestCheckFindsWorkersThatAgree(t *testing.T) {
	r := newCheckRig(t, server.Options{})
	r.setUp()
	s, err := r.js.Stream(t.Context(), "KV_sluice_limits")
	if err != nil {
		t.Fatal(err)
	}
	r.worker(stream.WorkerInfo{ID: "one", Limits: stream.LimitsVersion{Bucket: s.CachedInfo().Created.UnixNano()}})
	_, found := r.check()
	said := map[string]string{}
	for _, one := range found {
		said[one.About] = one.Level + ": " + one.Text
	}
	if said["workers"] != "ok: 1 worker, limits are at version 0" || said["limits"] != "ok: 0 rules, all understood" {
		t.Errorf("it finds %q", said)
	}
}
