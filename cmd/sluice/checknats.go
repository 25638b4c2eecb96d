package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go/jetstream"

	"sluice/pipeline"
	"sluice/pipeline/stream"
)

func checkNATS(ctx context.Context, cfg Config, f *findings) {
	const about = "NATS"
	nc, err := stream.Dial(ctx, cfg.stream(), func(error) {}) // rights are asked for one by one
	if err != nil {
		f.add(fault, about, reason(err), "")
		return
	}
	defer nc.Close()
	f.add(fine, about, fmt.Sprintf("connected to %s, version %s", nc.ConnectedServerName(), nc.ConnectedServerVersion()), "")
	sc := cfg.stream()
	js, err := sc.JetStream(nc)
	if err != nil {
		f.add(fault, about, reason(err), "")
		return
	}
	if !checkObjects(ctx, cfg, sc, js, f) {
		return
	}
	checkRights(ctx, js, sc, f)
	checkLevels(ctx, js, sc, f)
	checkBacklog(ctx, js, sc, f)
	checkKeys(ctx, cfg, js, sc, f)
}

// checkObjects looks at streams and consumer. It answers false when JetStream can't be asked.
func checkObjects(ctx context.Context, cfg Config, sc stream.Config, js jetstream.JetStream, f *findings) bool {
	actions, errs, err := stream.Look(ctx, js, sc)
	for i, a := range actions {
		switch {
		case a.Did == "missing" && creates(cfg.Setup, a.Object, sc):
			f.add(warning, a.Object, "missing", "the first worker creates it, or run `sluice setup` (SLUICE_SETUP="+cfg.Setup+")")
		case errs[i] != nil:
			f.add(fault, a.Object, reason(errs[i]), "")
		case a.Did == "differs":
			f.add(warning, a.Object, "differs from what sluice would create: "+a.Detail, "that works; change it if it isn't meant so")
		default:
			f.add(fine, a.Object, strings.TrimSpace(a.Did+" "+a.Detail), "")
		}
	}
	if err != nil {
		f.add(fault, "JetStream", reason(err), "")
	}
	return err == nil
}

// creates says whether a worker creates the object if it is missing.
func creates(mode, object string, sc stream.Config) bool {
	switch mode {
	case string(stream.SetupAll):
		return true
	case string(stream.SetupOwn):
		return object != "stream "+sc.Stream
	}
	return false
}

func checkRights(ctx context.Context, js jetstream.JetStream, sc stream.Config, f *findings) {
	const about = "NATS rights"
	denied, err := stream.Denied(ctx, js, sc)
	switch {
	case err != nil:
		f.add(fault, about, reason(err), "")
	case len(denied) > 0:
		f.add(fault, about, "not permitted: "+strings.Join(denied, ", "), "permit them to the NATS user of sluice; deploy/acl/nats.conf has all that it needs")
	default:
		f.add(fine, about, "this user may do what a worker needs", "")
	}
}

// nearlyFull is the part of a stream's size that calls for a look.
const nearlyFull = 0.8

func checkLevels(ctx context.Context, js jetstream.JetStream, sc stream.Config, f *findings) {
	levels, err := stream.Levels(ctx, js, sc)
	if err != nil {
		f.add(warning, "sluice's streams", reason(err), "")
	}
	for _, l := range levels {
		used := float64(l.Bytes) / float64(max(1, l.Most))
		what := fmt.Sprintf("%d events, %.0f %% of its size", l.Events, 100*used)
		if l.Most > 0 && used > nearlyFull {
			f.add(warning, "stream "+l.Stream, "nearly full: "+what, "raise "+l.Variable+", or make room: a full one holds events back")
		} else {
			f.add(fine, "stream "+l.Stream, what, "")
		}
	}
}

func checkBacklog(ctx context.Context, js jetstream.JetStream, sc stream.Config, f *findings) {
	b, err := stream.LookAtBacklog(ctx, js, sc)
	if err != nil {
		return // told as an object
	}
	what := fmt.Sprintf("%d events wait, %d are with workers", b.Waiting, b.Out)
	if b.Waiting > 0 && b.Out == 0 && b.Pulls == 0 {
		f.add(warning, "backlog", what+", and nobody pulls", "start a worker; if one runs, look at its log")
		return
	}
	f.add(fine, "backlog", what, "")
}

// sampled is how many of the newest events are shown with their keys.
const sampled = 5

func checkKeys(ctx context.Context, cfg Config, js jetstream.JetStream, sc stream.Config, f *findings) {
	const about = "keys"
	events, err := stream.Newest(ctx, js, sc, sampled)
	if err != nil {
		f.add(warning, about, "can't look at events: "+reason(err), "no worker needs that; permit STREAM.MSG.GET of the source to whoever checks")
		return
	}
	if len(events) == 0 {
		f.add(fine, about, "no event is in stream "+sc.Stream+" to show its key", "")
	}
	for _, ev := range events {
		keyOfEvent(cfg.Key, ev, f)
	}
}

func keyOfEvent(spec pipeline.KeySpec, ev *pipeline.Event, f *findings) {
	about := "event " + visible(ev.Subject)
	key, err := spec.Key(ev)
	if err != nil {
		f.add(warning, about, reason(err), "it becomes a dead letter; change SLUICE_KEY="+spec.String()+", or what the producer sends")
		return
	}
	f.add(fine, about, "has the key "+visible(key), "")
}
