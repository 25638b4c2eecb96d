package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"

	"sluice/pipeline/stream"
)

func newWorkersCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "workers",
		Short: "List the live workers, and who disagrees",
		Long: `List the workers that are alive, as they tell themselves within a second: which version of the limits rules in each, a
fingerprint of its settings, its build, whether it sees Redis, and since when it runs; and who is unlike the others.

Reads SLUICE_NATS_… and SLUICE_NAME.`,
		Example: "  sluice workers\n  sluice workers --json",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return listWorkers(cmd, asJSON) },
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON object per line")
	return cmd
}

func listWorkers(cmd *cobra.Command, asJSON bool) error {
	ctx := cmd.Context()
	cfg, err := loadConfig(natsPart)
	if err != nil {
		return err
	}
	sc := cfg.stream()
	nc, err := stream.Dial(ctx, sc, newProgress(cmd.ErrOrStderr(), 0).report)
	if err != nil {
		return err
	}
	defer nc.Close()
	roll, err := callRoll(ctx, nc, sc)
	if err != nil {
		return err
	}
	if asJSON {
		return roll.encode(cmd.OutOrStdout())
	}
	return roll.print(cmd.OutOrStdout())
}

// roll is the live workers, and the version of limits that they should run.
type roll struct {
	workers []stream.WorkerInfo
	last    stream.LimitsVersion
}

// callRoll hears who is live.
func callRoll(ctx context.Context, nc *nats.Conn, sc stream.Config) (roll, error) {
	muster, err := stream.CallMuster(ctx, nc, sc)
	if err != nil {
		return roll{}, err
	}
	defer muster.Close()
	js, err := sc.JetStream(nc)
	if err != nil {
		return roll{}, err
	}
	var last stream.LimitsVersion
	bucket, err := stream.OpenLimitBucket(ctx, js, sc)
	if err == nil {
		last, err = bucket.Last(ctx)
	}
	if err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
		return roll{}, err
	}
	return roll{workers: muster.Workers(ctx), last: last}, nil
}

func (r roll) encode(out io.Writer) error {
	enc := json.NewEncoder(out)
	enc.SetEscapeHTML(false)
	for _, w := range r.workers {
		err := enc.Encode(struct {
			stream.WorkerInfo
			Limits  uint64 `json:"limits"`
			Current bool   `json:"current"`
			Redis   bool   `json:"redis"`
			Away    bool   `json:"-"`
		}{WorkerInfo: w, Limits: w.Limits.Seq, Current: w.Limits.Covers(r.last), Redis: !w.Away})
		if err != nil {
			return err
		}
	}
	return nil
}

func (r roll) print(out io.Writer) error {
	if len(r.workers) == 0 {
		_, err := fmt.Fprintln(out, "no worker is live")
		return err
	}
	rows := make([][]string, len(r.workers))
	for i, w := range r.workers {
		redis := "yes"
		if w.Away {
			redis = "no"
		}
		rows[i] = []string{visible(w.ID), shownVersion(w.Limits, r.last), orDash(w.Settings), orDash(w.Build), redis, whenCell(w.Since)}
	}
	if err := printTable(out, []string{"worker", "limits", "settings", "build", "redis", "since (UTC)"}, rows); err != nil {
		return err
	}
	trouble := r.disagreements()
	for _, d := range trouble {
		if _, err := fmt.Fprintln(out, d); err != nil {
			return err
		}
	}
	if len(trouble) > 0 {
		return nil
	}
	_, err := fmt.Fprintln(out, r.agreement())
	return err
}

// agreement says that all are alike.
func (r roll) agreement() string {
	agree := workersOf(len(r.workers)) + " agree"
	if len(r.workers) == 1 {
		agree = "1 worker"
	}
	return fmt.Sprintf("%s, limits are at version %d", agree, r.last.Seq)
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return visible(s)
}

// disagreement says who is unlike the others, and what to do about it.
type disagreement struct {
	what   string
	who    []string // ids of workers
	level  string   // of the finding that it is
	remedy string
}

func (d disagreement) String() string { return d.what + ": " + strings.Join(d.who, ", ") }

func (r roll) disagreements() (all []disagreement) {
	add := func(d disagreement, is func(stream.WorkerInfo) bool) {
		for _, w := range r.workers {
			if is(w) {
				d.who = append(d.who, visible(w.ID))
			}
		}
		if len(d.who) > 0 {
			all = append(all, d)
		}
	}
	add(disagreement{
		what: fmt.Sprintf("behind version %d of the limits", r.last.Seq), level: fault,
		remedy: "a change takes a second; a worker that stays behind can't read the KV bucket: see its log and its rights, or restart it",
	}, func(w stream.WorkerInfo) bool { return !w.Limits.Covers(r.last) })
	add(disagreement{
		what: "without Redis", level: fault, remedy: "look at the way from these machines to Redis, and at their SLUICE_REDIS_…",
	}, func(w stream.WorkerInfo) bool { return w.Away })
	for _, like := range []struct {
		name, remedy string
		of           func(stream.WorkerInfo) string
	}{
		{"settings", "give all the same variables and restart those that differ", func(w stream.WorkerInfo) string { return w.Settings }},
		{"build", "finish the upgrade: restart those of the old build", func(w stream.WorkerInfo) string { return w.Build }},
	} {
		usual := r.usual(like.of)
		add(disagreement{what: "other " + like.name + " than " + orDash(usual), level: warning, remedy: like.remedy},
			func(w stream.WorkerInfo) bool { return like.of(w) != usual })
	}
	return all
}

// usual is what most workers have, the first by alphabet of several.
func (r roll) usual(of func(stream.WorkerInfo) string) string {
	counts := map[string]int{}
	for _, w := range r.workers {
		counts[of(w)]++
	}
	return slices.MinFunc(slices.Collect(maps.Keys(counts)), func(a, b string) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(a, b))
	})
}
