package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/spf13/cobra"

	"sluice/limiter"
	"sluice/limiter/redisstore"
	"sluice/pipeline/stream"
)

func newLanesCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "lanes",
		Short: "Compare the waiting events with their index in Redis, and mend it",
		Long: `Compare the waiting events, whose bodies are in the stream SLUICE_LANES, with their places in Redis. Workers mend most of
what can go wrong there by themselves, within half a minute; this shows whether all is well, and mends what they don't.
Both may be used while workers run.

Reads SLUICE_NATS_…, SLUICE_REDIS_…, SLUICE_NAME and SLUICE_ALLOW_TIER; limits don't matter here. Exits with 1 if something is wrong, or
was and couldn't be mended.`,
		Example: `  sluice lanes check
  sluice lanes repair --dry-run
  sluice lanes repair --yes`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newLanesCheckCommand(), newLanesRepairCommand())
	return cmd
}

const findingsHelp = `What may be found:
  no_index        a shard's state is missing, is being rebuilt, or belongs to another lane stream
  no_place        a stored event that has no place in the index
  no_body         a place whose event is not stored
  wrong_lane      a place in the lane of another key than the event's
  wrong_order     a place that isn't where the event stands in the source
  wrong_cost      what a lane's events are noted to cost isn't what they cost
  twice           a second place of one event
  unreadable      a place that sluice didn't write
  dead_lease      events leased by a worker whose lease has ended
  not_due         a lane that no worker would look at
  damaged_bucket  a key's state that isn't what sluice writes; mended, its tokens begin anew
  damaged_lane    a part of a lane that has another type than sluice writes; mended, it is as if it had been empty`

func newLanesCheckCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Say what is wrong with the lane index",
		Long: `Compare every waiting event with its place in Redis, and say what is wrong. Nothing is changed. What seems wrong is looked
at again some seconds later, since workers go on meanwhile.

` + findingsHelp,
		Example: `  sluice lanes check
  sluice lanes check --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return checkLanes(cmd, asJSON) },
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON object")
	return cmd
}

func newLanesRepairCommand() *cobra.Command {
	var f repairFlags
	cmd := &cobra.Command{
		Use:   "repair",
		Short: "Mend the lane index",
		Long: `Do what check does, and mend what it finds: places without events go, events without a place get one, lanes are put into
order and looked at. No event is deleted; what a worker holds at the moment is left to it. It asks first, and without a terminal
needs --yes.

` + findingsHelp,
		Example: `  sluice lanes repair --dry-run
  sluice lanes repair --yes --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	cmd.Flags().BoolVar(&f.dryRun, "dry-run", false, "only say what would be mended")
	cmd.Flags().BoolVar(&f.yes, "yes", false, "don't ask; needed without a terminal")
	cmd.Flags().BoolVar(&f.json, "json", false, "print a JSON object")
	return cmd
}

// lanePatience is how long what seems wrong may take to be right: longer than any step of a worker as a rule.
const lanePatience = 2 * time.Second

// repairRounds bounds how often what was found is mended: some of it shows only once something else is.
const repairRounds = 3

// openIndex connects to lane stream and index. The caller calls end.
func openIndex(ctx context.Context, report func(error)) (store *redisstore.Store, end func(), err error) {
	cfg, err := loadConfig(natsPart, redisPart, limitPart)
	if err != nil {
		return nil, nil, err
	}
	address, err := cfg.Redis.address(slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, nil, err
	}
	rdb, err := redisstore.Reach(ctx, address, cfg.Redis.URL.String())
	if err != nil {
		return nil, nil, err
	}
	nc, err := stream.Dial(ctx, cfg.stream(), report)
	if err != nil {
		_ = rdb.Close()
		return nil, nil, err
	}
	end = func() {
		nc.Close()
		_ = rdb.Close()
	}
	sc := cfg.stream()
	js, err := sc.JetStream(nc)
	var lanes *stream.Lanes
	if err == nil {
		lanes, err = stream.OpenLanes(ctx, js, sc)
	}
	if err == nil {
		store, err = redisstore.New(rdb, redisstore.Options{ // which asks for no limits to look and mend
			Name: cfg.Name, Worker: workerID(), Limits: limiter.Fixed(nil), Tiers: cfg.AllowTier, Bodies: lanes, Log: slog.New(slog.DiscardHandler),
		})
	}
	if err != nil {
		end()
		return nil, nil, err
	}
	return store, end, nil
}

func checkLanes(cmd *cobra.Command, asJSON bool) error {
	store, end, err := openIndex(cmd.Context(), newProgress(cmd.ErrOrStderr(), 0).report)
	if err != nil {
		return err
	}
	defer end()
	in, err := store.Inspect(cmd.Context(), lanePatience)
	if err != nil {
		return err
	}
	return printInspection(cmd.OutOrStdout(), in, asJSON)
}

// repairFlags are the flags of repair, as given.
type repairFlags struct{ dryRun, yes, json bool }

func (f *repairFlags) run(cmd *cobra.Command) error {
	ask := !f.yes && !f.dryRun
	if ask && !isTerminal(cmd.InOrStdin()) {
		return usagef("nobody can be asked; give --yes, or --dry-run to see what would be mended")
	}
	ctx, out := cmd.Context(), cmd.OutOrStdout()
	store, end, err := openIndex(ctx, newProgress(cmd.ErrOrStderr(), 0).report)
	if err != nil {
		return err
	}
	defer end()
	in, err := store.Inspect(ctx, lanePatience)
	if err != nil {
		return err
	}
	if f.dryRun || len(in.Findings) == 0 {
		return printInspection(out, in, f.json)
	}
	if ask {
		_, _ = fmt.Fprint(cmd.ErrOrStderr(), findingTable(paintOn(cmd.ErrOrStderr()), in))
		if err := confirm(cmd, fmt.Sprintf("Mend %s?", countKinds(in.Findings))); err != nil {
			return err
		}
	}
	found := len(in.Findings)
	var before []redisstore.Finding
	for round := 0; round < repairRounds && len(in.Findings) > 0 && !slices.Equal(in.Findings, before); round++ {
		if before, err = in.Findings, store.Mend(ctx, in.Findings); err != nil {
			return err
		}
		if in, err = store.Inspect(ctx, lanePatience); err != nil {
			return err
		}
	}
	if !f.json {
		if _, err := fmt.Fprintf(out, "%s; before: %s\n", repaired(len(in.Findings)), count(int64(found), "finding")); err != nil {
			return err
		}
	}
	return printInspection(out, in, f.json)
}

// repaired says what the last look after mending has shown.
func repaired(left int) string {
	if left == 0 {
		return "mended"
	}
	return count(int64(left), "finding") + " not mended"
}

// inspectionJSON is what was found, for programs.
type inspectionJSON struct {
	Events   int           `json:"events"`
	Places   int           `json:"places"`
	Lanes    int           `json:"lanes"`
	Findings []findingJSON `json:"findings"`
}

type findingJSON struct {
	Finding redisstore.FindingKind `json:"finding"`
	keyJSON
	Seq    uint64 `json:"seq,omitempty"`
	Detail string `json:"detail,omitempty"`
}

// findingRows are shown at most; programs get all.
const findingRows = 200

// printInspection prints what was found; the error says how much.
func printInspection(out io.Writer, in redisstore.Inspection, asJSON bool) error {
	var err error
	if asJSON {
		list := make([]findingJSON, len(in.Findings))
		for i, f := range in.Findings {
			list[i] = findingJSON{f.Kind, keyOf(f.Key), f.Seq, f.Detail}
		}
		err = json.NewEncoder(out).Encode(inspectionJSON{in.Bodies, in.Places, in.Lanes, list})
	} else {
		_, err = fmt.Fprint(out, findingTable(paintOn(out), in))
	}
	if err == nil && len(in.Findings) > 0 {
		err = errors.New(countKinds(in.Findings))
	}
	return err
}

func findingTable(p paint, in redisstore.Inspection) string {
	looked := fmt.Sprintf("%s and %s in %s", count(int64(in.Bodies), "stored event"), count(int64(in.Places), "place"), count(int64(in.Lanes), "lane"))
	if len(in.Findings) == 0 {
		return looked + ": all is well\n"
	}
	t := plainTable()
	t.AppendHeader(table.Row{p.with("finding", text.Bold), p.with("key", text.Bold), p.with("seq", text.Bold), p.with("detail", text.Bold)})
	t.SetColumnConfigs([]table.ColumnConfig{
		{Number: 2, WidthMax: 30, WidthMaxEnforcer: shorten},
		{Number: 3, Align: text.AlignRight, AlignHeader: text.AlignRight},
	})
	for _, f := range in.Findings[:min(len(in.Findings), findingRows)] {
		seq := "-"
		if f.Seq > 0 {
			seq = fmt.Sprint(f.Seq)
		}
		t.AppendRow(table.Row{p.with(string(f.Kind), text.FgYellow), shownKey(f.Key), seq, f.Detail})
	}
	more := ""
	if n := len(in.Findings) - findingRows; n > 0 {
		more = fmt.Sprintf("and %d more; --json prints all\n", n)
	}
	return fmt.Sprintf("%s\n%s%s\n", trimRight(t.Render()), more, looked)
}

// countKinds is like "3 findings (2 no_place, 1 not_due)".
func countKinds(found []redisstore.Finding) string {
	tally := map[redisstore.FindingKind]int{}
	for _, f := range found {
		tally[f.Kind]++
	}
	var parts []string
	for _, kind := range slices.Sorted(maps.Keys(tally)) {
		parts = append(parts, fmt.Sprintf("%d %s", tally[kind], kind))
	}
	return fmt.Sprintf("%s (%s)", count(int64(len(found)), "finding"), strings.Join(parts, ", "))
}
