package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sluice/limiter"
	"sluice/pipeline/stream"
)

// ruleChange is a change of one rule, as the flags have it.
type ruleChange struct {
	comment string
	wait    time.Duration
	json    bool
}

func (c *ruleChange) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&c.comment, "comment", "", "why, for those who ask later")
	c.addWait(cmd)
}

func (c *ruleChange) addWait(cmd *cobra.Command) {
	cmd.Flags().DurationVar(&c.wait, "wait", 2*time.Second, "how long to wait for the workers; 0: not at all")
	cmd.Flags().BoolVar(&c.json, "json", false, "print as JSON")
}

func newLimitsSetCommand() *cobra.Command {
	var c ruleChange
	cmd := &cobra.Command{
		Use:   "set PLACE LIMITS | tier:NAME",
		Short: "Say which limits rule somewhere",
		Long: `Say which limits rule at a place, or which tier a key is in (both by a semicolon: '5/s; tier:gold'), instead of what was said
there; a pause stays. It says when every live worker runs the change, and names those that don't within --wait (exit code 1;
the change is stored all the same).

` + placeHelp,
		Example: `  sluice limits set alice 5/s burst 10 --comment 'asked us to'
  sluice limits set tier:gold '100/s, 10000/h sliding'
  sluice limits set alice tier:gold
  sluice limits set pattern:team-* 50/s
  sluice limits set default 20/s`,
		Args:              cobra.MinimumNArgs(2),
		ValidArgsFunction: completePlaces,
		RunE: func(cmd *cobra.Command, args []string) error {
			place, err := placeArg(args[0])
			if err != nil {
				return err
			}
			rule, err := ruleArg(place, strings.Join(args[1:], " "))
			if err != nil {
				return err
			}
			return c.run(cmd, place, func(was limiter.Rule) limiter.Rule {
				rule.Paused = was.Paused
				return rule
			})
		},
	}
	c.add(cmd)
	return cmd
}

func newLimitsRemoveCommand() *cobra.Command {
	var (
		c   ruleChange
		yes bool
	)
	cmd := &cobra.Command{
		Use:   "rm PLACE",
		Short: "Take back all that is said of a place",
		Long: `Take back what is said of a place, a pause included: what is said of the next one rules. It asks first, and without a terminal
needs --yes. 'sluice limits history' still tells what was said.`,
		Example:           "  sluice limits rm alice\n  sluice limits rm tier:gold --yes",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: completePlaces,
		RunE: func(cmd *cobra.Command, args []string) error {
			place, err := placeArg(args[0])
			if err != nil {
				return err
			}
			if !yes {
				if !isTerminal(cmd.InOrStdin()) {
					return usagef("give --yes to take back what is said of %s", named(place))
				}
				if err := confirm(cmd, fmt.Sprintf("Take back what is said of %s?", named(place))); err != nil {
					return err
				}
			}
			return c.run(cmd, place, func(limiter.Rule) limiter.Rule { return limiter.Rule{} })
		},
	}
	c.add(cmd)
	cmd.Flags().BoolVar(&yes, "yes", false, "don't ask; needed without a terminal")
	return cmd
}

// run changes the rule of a place and tells when it rules.
func (c *ruleChange) run(cmd *cobra.Command, place limiter.Place, fn func(limiter.Rule) limiter.Rule) error {
	if err := c.check(); err != nil {
		return err
	}
	ctx := cmd.Context()
	b, err := openRules(ctx, newProgress(cmd.ErrOrStderr(), 0).report)
	if err != nil {
		return err
	}
	defer b.nc.Close()
	arrival, err := b.expect(cmd, c.wait)
	if err != nil {
		return err
	}
	was, is, err := b.bucket.Edit(ctx, place, changedBy(), c.comment, func(was limiter.Rule) (limiter.Rule, error) {
		rule := fn(was)
		if rule.Tier != "" && rule.Tier != was.Tier {
			return rule, b.checkTier(cmd, rule.Tier)
		}
		return rule, nil
	})
	if err != nil {
		return err
	}
	changed := is.Revision != was.Revision
	if !c.json {
		printChange(cmd, was, is, changed)
	}
	var behind error
	if is.Revision > 0 {
		behind = arrival.tell(b.bucket.Version(is.Revision), c.json)
	}
	if c.json {
		behind = errors.Join(json.NewEncoder(cmd.OutOrStdout()).Encode(struct {
			Was     ruleJSON `json:"was"`
			Is      ruleJSON `json:"is"`
			Changed bool     `json:"changed"`
			arrivalJSON
		}{ruleOf(was), ruleOf(is), changed, arrival.json()}), behind)
	}
	return behind
}

func printChange(cmd *cobra.Command, was, is stream.StoredRule, changed bool) {
	out := cmd.OutOrStdout()
	if !changed {
		_, _ = fmt.Fprintf(out, "%s: %s, as before\n", named(is.Place), is.Rule)
		return
	}
	_, _ = fmt.Fprintf(out, "%s: %s -> %s, version %d\n", named(is.Place), was.Rule, is.Rule, is.Revision)
	if is.Rule.Paused && was.Rule.Paused {
		_, _ = fmt.Fprintf(out, "it is still paused; 'sluice resume' lets it go on\n")
	}
}

// checkTier refuses tiers that nothing is said of: most likely the name is misspelt.
func (b *ruleBox) checkTier(cmd *cobra.Command, name string) error {
	rules, err := b.bucket.All(cmd.Context(), limiter.SourceTier)
	if err != nil {
		return err
	}
	var names []string
	for _, r := range rules {
		if r.Rule.None() && r.Fault == nil {
			continue
		}
		if r.Place.Name == name {
			return nil
		}
		names = append(names, r.Place.Name)
	}
	if len(names) == 0 {
		return fmt.Errorf("there is no tier %s, nor any other; begin with 'sluice limits set tier:%s LIMITS'", name, name)
	}
	return fmt.Errorf("there is no tier %s; there are %s", name, strings.Join(names, ", "))
}

// arrival waits until the workers run a change.
type arrival struct {
	cmd         *cobra.Command
	muster      *stream.Muster // nil: nobody waits
	wait        time.Duration
	all, behind []stream.WorkerInfo
}

// arrivalJSON says for programs how far a change has come.
type arrivalJSON struct {
	Workers int      `json:"workers"`
	Behind  []string `json:"behind,omitempty"` // ids of those that don't run it
}

// leastWait is how long it takes until every live worker was heard.
const leastWait = 1500 * time.Millisecond

// check refuses to wait for too short a time to know who is live.
func (c *ruleChange) check() error {
	if c.wait != 0 && c.wait < leastWait {
		return usagef("--wait %s is too short to hear all workers; use at least %s, or 0", c.wait, leastWait)
	}
	return nil
}

// expect begins to listen to the workers.
func (b *ruleBox) expect(cmd *cobra.Command, wait time.Duration) (a *arrival, err error) {
	a = &arrival{cmd: cmd, wait: wait}
	if wait > 0 {
		a.muster, err = stream.CallMuster(cmd.Context(), b.nc, b.sc)
	}
	return a, err
}

// tell waits until all live workers run v. An error names those that don't.
func (a *arrival) tell(v stream.LimitsVersion, quiet bool) error {
	if a.muster == nil {
		return nil
	}
	defer a.muster.Close()
	a.all, a.behind = a.muster.Await(a.cmd.Context(), v, a.wait)
	if len(a.behind) > 0 {
		names := make([]string, len(a.behind))
		for i, w := range a.behind {
			names[i] = fmt.Sprintf("%s (runs %s)", visible(w.ID), shownVersion(w.Limits, v))
		}
		return fmt.Errorf("version %d is stored, but %d of %s don't run it after %s: %s", v.Seq, len(a.behind), workersOf(len(a.all)), a.wait,
			strings.Join(names, ", "))
	}
	if quiet {
		return nil
	}
	text := "all " + workersOf(len(a.all)) + " run it"
	switch len(a.all) {
	case 0:
		text = "no worker is live; those that start will run it"
	case 1:
		text = "1 worker runs it; no other is live"
	}
	_, err := fmt.Fprintln(a.cmd.OutOrStdout(), text)
	return err
}

func (a *arrival) json() arrivalJSON {
	out := arrivalJSON{Workers: len(a.all)}
	for _, w := range a.behind {
		out.Behind = append(out.Behind, w.ID)
	}
	return out
}

// shownVersion is a worker's version of limits beside that of the bucket.
func shownVersion(v, bucket stream.LimitsVersion) string {
	switch {
	case v == (stream.LimitsVersion{}):
		return "none"
	case v.Bucket != bucket.Bucket:
		return fmt.Sprintf("%d of a bucket that is gone", v.Seq)
	}
	return fmt.Sprint(v.Seq)
}
