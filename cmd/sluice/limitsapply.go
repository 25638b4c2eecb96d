package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync/atomic"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"sluice/limiter"
	"sluice/pipeline/stream"
)

// applyFlags are the flags of apply, as given.
type applyFlags struct {
	ruleChange
	file               string
	dryRun, prune, yes bool
}

func newLimitsApplyCommand() *cobra.Command {
	var f applyFlags
	cmd := &cobra.Command{
		Use:   "apply -f FILE",
		Short: "Make the limits what a file says",
		Long: `Make the limits what a YAML file says, and tell what that changes; the same file again changes nothing. What the file
doesn't mention stays, or goes with --prune, which asks first. Pauses stay unless the file says paused: true or false; the
brake is never touched.

  default: 10/s burst 20
  tiers:
    gold: 100/s
  patterns:
    team-*: 50/s
  keys:
    alice: tier:gold
    bob: {limits: 5/s, comment: asked us to}`,
		Example: "  sluice limits apply -f limits.yaml --dry-run\n  sluice limits apply -f limits.yaml --prune --yes\n  sluice limits export | sluice limits apply -f -",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	cmd.Flags().StringVarP(&f.file, "file", "f", "", "the file; - is the standard input")
	cmd.Flags().BoolVar(&f.dryRun, "dry-run", false, "only tell what would change")
	cmd.Flags().BoolVar(&f.prune, "prune", false, "take back what the file doesn't mention")
	cmd.Flags().BoolVar(&f.yes, "yes", false, "don't ask before --prune takes something back; needed without a terminal")
	f.add(cmd)
	return cmd
}

// ruleDiff is what apply changes.
type ruleDiff struct {
	changes   []ruleStep
	unchanged int
}

// ruleStep is one change.
type ruleStep struct {
	was stream.StoredRule
	is  stream.StoredRule // with the revision of was
}

func (s ruleStep) sign() string {
	switch {
	case s.is.Rule.None():
		return "-"
	case s.was.Rule.None() && s.was.Fault == nil:
		return "+"
	}
	return "~"
}

func (f *applyFlags) run(cmd *cobra.Command) error {
	if err := f.check(); err != nil {
		return err
	}
	rules, err := f.read(cmd.InOrStdin())
	if err != nil {
		return err
	}
	ctx := cmd.Context()
	b, err := openRules(ctx, newProgress(cmd.ErrOrStderr(), 0).report)
	if err != nil {
		return err
	}
	defer b.nc.Close()
	now, err := b.bucket.All(ctx, ruleSources[1:]...)
	if err != nil {
		return err
	}
	diff, err := compareRules(rules, now, f.prune, changedBy(), f.comment)
	if err != nil {
		return fmt.Errorf("%s: %w", f.file, err)
	}
	if f.dryRun || len(diff.changes) == 0 {
		return diff.tell(cmd.OutOrStdout(), f.json, f.dryRun, &arrival{}, 0)
	}
	if gone := diff.removed(); gone > 0 && !f.yes {
		if f.file == "-" || !isTerminal(cmd.InOrStdin()) {
			return usagef("--prune takes back %s; give --yes, or --dry-run to see them", count(int64(gone), "rule"))
		}
		if err := confirm(cmd, fmt.Sprintf("Take back %s that the file doesn't mention?", count(int64(gone), "rule"))); err != nil {
			return err
		}
	}
	arrival, err := b.expect(cmd, f.wait)
	if err != nil {
		return err
	}
	version, done, err := b.put(ctx, diff.changes)
	if err != nil {
		return fmt.Errorf("%d of %s made; run it again: %w", done, count(int64(len(diff.changes)), "change"), err)
	}
	if !f.json {
		if err := diff.tell(cmd.OutOrStdout(), false, false, arrival, version); err != nil {
			return err
		}
	}
	behind := arrival.tell(b.bucket.Version(version), f.json)
	if f.json {
		behind = errors.Join(diff.tell(cmd.OutOrStdout(), true, false, arrival, version), behind)
	}
	return behind
}

func (f *applyFlags) read(stdin io.Reader) ([]fileRule, error) {
	switch f.file {
	case "":
		return nil, usagef("-f is missing: the file with the limits, or - for the standard input")
	case "-":
		return readRuleFile(stdin)
	}
	file, err := os.Open(f.file)
	if err != nil {
		return nil, fmt.Errorf("reading limits: %w", err)
	}
	defer func() { _ = file.Close() }()
	rules, err := readRuleFile(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.file, err)
	}
	return rules, nil
}

// compareRules says what has to change so that the rules are those of a file: tiers before the keys in them, what goes last.
func compareRules(file []fileRule, now []stream.StoredRule, prune bool, by, comment string) (d ruleDiff, err error) {
	at := map[limiter.Place]stream.StoredRule{}
	for _, r := range now {
		if r.Place != (limiter.Place{}) {
			at[r.Place] = r
		}
	}
	mentioned := map[limiter.Place]bool{}
	for _, r := range file {
		mentioned[r.place] = true
	}
	for _, r := range file {
		was, known := at[r.place]
		was.Place = r.place
		is := stream.StoredRule{Place: r.place, Rule: r.rule, By: by, Comment: comment, Revision: was.Revision}
		if tier := (limiter.Place{Source: limiter.SourceTier, Name: r.rule.Tier}); tier.Name != "" && !mentioned[tier] && (prune || at[tier].Rule.None()) {
			return d, fmt.Errorf("line %d: %s: there is no tier %s", r.line, named(r.place), r.rule.Tier)
		}
		if !r.paused {
			is.Rule.Paused = was.Rule.Paused
		}
		if r.comment != nil {
			is.Comment = *r.comment
		}
		same := is.Rule.Equal(was.Rule) && (r.comment == nil || *r.comment == was.Comment)
		if same && was.Fault == nil && (known || is.Rule.None()) {
			d.unchanged++
			continue
		}
		d.changes = append(d.changes, ruleStep{was, is})
	}
	for _, was := range now {
		if was.Place == (limiter.Place{}) || mentioned[was.Place] || was.Removed {
			continue
		}
		is := stream.StoredRule{Place: was.Place, Rule: limiter.Rule{Paused: was.Rule.Paused}, By: by, Comment: comment, Revision: was.Revision}
		if prune && (was.Fault != nil || !is.Rule.Equal(was.Rule)) {
			d.changes = append(d.changes, ruleStep{was, is})
		}
	}
	slices.SortStableFunc(d.changes, func(a, b ruleStep) int { return a.order() - b.order() })
	return d, nil
}

// order puts tiers before the keys in them, and takes them back after those.
func (s ruleStep) order() int {
	i := slices.Index(ruleSources, s.is.Place.Source)
	if s.is.Rule.None() {
		return 2*len(ruleSources) - i
	}
	return i
}

// removed counts what goes.
func (d ruleDiff) removed() int {
	n := 0
	for _, s := range d.changes {
		if s.is.Rule.None() {
			n++
		}
	}
	return n
}

// putters is how many changes are on their way at a time.
const putters = 32

// put makes the changes, those of one order side by side. It returns the version with all of them, and how many were made.
func (b *ruleBox) put(ctx context.Context, steps []ruleStep) (version uint64, done int64, err error) {
	var last, made atomic.Uint64
	for len(steps) > 0 && err == nil {
		n := slices.IndexFunc(steps, func(s ruleStep) bool { return s.order() != steps[0].order() })
		if n < 0 {
			n = len(steps)
		}
		g, ctx := errgroup.WithContext(ctx)
		g.SetLimit(putters)
		for _, s := range steps[:n] {
			g.Go(func() error {
				revision, err := b.bucket.Put(ctx, s.is)
				if err != nil {
					return err
				}
				made.Add(1)
				for was := last.Load(); was < revision && !last.CompareAndSwap(was, revision); was = last.Load() {
				}
				return nil
			})
		}
		err = g.Wait()
		steps = steps[n:]
	}
	return last.Load(), int64(made.Load()), err
}

// tell prints what changes, or has changed.
func (d ruleDiff) tell(out io.Writer, asJSON, dryRun bool, arrival *arrival, version uint64) error {
	added, changed, removed := 0, 0, 0
	rows := make([][]string, len(d.changes))
	for i, s := range d.changes {
		says := s.is.Rule.String()
		switch s.sign() {
		case "+":
			added++
		case "-":
			removed++
			says = s.was.Rule.String()
		default:
			changed++
			says = saysCell(s.was) + " -> " + says
		}
		rows[i] = []string{s.sign(), shownPlace(s.is.Place), says}
	}
	if asJSON {
		return json.NewEncoder(out).Encode(struct {
			Added     int    `json:"added"`
			Changed   int    `json:"changed"`
			Removed   int    `json:"removed"`
			Unchanged int    `json:"unchanged"`
			DryRun    bool   `json:"dry_run"`
			Version   uint64 `json:"version,omitempty"`
			arrivalJSON
		}{added, changed, removed, d.unchanged, dryRun, version, arrival.json()})
	}
	if len(rows) > 0 {
		if err := printTable(out, []string{"", "place", "says"}, rows); err != nil {
			return err
		}
	}
	end := ""
	switch {
	case len(rows) == 0:
	case dryRun:
		end = "; nothing was changed"
	default:
		end = fmt.Sprintf("; version %d", version)
	}
	_, err := fmt.Fprintf(out, "%d added, %d changed, %d removed, %d as before%s\n", added, changed, removed, d.unchanged, end)
	return err
}

func newLimitsExportCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "export",
		Short: "Write the limits as a file for apply",
		Long: `Write all that is said of limits as YAML that 'sluice limits apply' takes, pauses and comments included; without the brake, and
without what can't be understood (exit code 1).`,
		Example: "  sluice limits export > limits.yaml",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			b, err := openRules(cmd.Context(), newProgress(cmd.ErrOrStderr(), 0).report)
			if err != nil {
				return err
			}
			defer b.nc.Close()
			rules, err := b.bucket.All(cmd.Context())
			if err != nil {
				return err
			}
			var faults []error
			rules = slices.DeleteFunc(rules, func(r stream.StoredRule) bool {
				if r.Fault != nil && !r.Removed {
					faults = append(faults, fmt.Errorf("left out: %s: %w", r.Key, r.Fault))
				}
				return r.Removed || r.Fault != nil || r.Place.Source == limiter.SourceAll
			})
			return errors.Join(writeRuleFile(cmd.OutOrStdout(), rules), errors.Join(faults...))
		},
	}
}
