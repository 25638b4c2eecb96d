package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

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
	muster, err := stream.CallMuster(ctx, nc, sc)
	if err != nil {
		return err
	}
	defer muster.Close()
	js, err := sc.JetStream(nc)
	if err != nil {
		return err
	}
	var last stream.LimitsVersion
	bucket, err := stream.OpenLimitBucket(ctx, js, sc)
	if err == nil {
		last, err = bucket.Last(ctx)
	}
	if err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
		return err
	}
	roll := roll{workers: muster.Workers(ctx), last: last}
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
	if len(trouble) == 0 {
		agree := workersOf(len(r.workers)) + " agree"
		if len(r.workers) == 1 {
			agree = "1 worker"
		}
		_, err := fmt.Fprintf(out, "%s, limits are at version %d\n", agree, r.last.Seq)
		return err
	}
	_, err := fmt.Fprintln(out, strings.Join(trouble, "\n"))
	return err
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return visible(s)
}

// disagreements are sentences about who is unlike the others.
func (r roll) disagreements() []string {
	var lines []string
	who := func(text string, is func(stream.WorkerInfo) bool) {
		var ids []string
		for _, w := range r.workers {
			if is(w) {
				ids = append(ids, visible(w.ID))
			}
		}
		if len(ids) > 0 {
			lines = append(lines, text+": "+strings.Join(ids, ", "))
		}
	}
	who(fmt.Sprintf("behind version %d of the limits", r.last.Seq), func(w stream.WorkerInfo) bool { return !w.Limits.Covers(r.last) })
	who("without Redis", func(w stream.WorkerInfo) bool { return w.Away })
	for _, what := range []struct {
		name string
		of   func(stream.WorkerInfo) string
	}{
		{"settings", func(w stream.WorkerInfo) string { return w.Settings }},
		{"build", func(w stream.WorkerInfo) string { return w.Build }},
	} {
		usual := r.usual(what.of)
		who("other "+what.name+" than "+orDash(usual), func(w stream.WorkerInfo) bool { return what.of(w) != usual })
	}
	return lines
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
