package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"sluice/limiter"
	"sluice/pipeline"
	"sluice/pipeline/stream"
)

func newDLQCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "dlq",
		Short: "Look at dead letters, replay or purge them",
		Long: `Look at the events that couldn't be delivered, publish them again, or delete them. They are in the stream SLUICE_DLQ,
each with the reason and what was last said about it. The flags that select are the same for ls, replay and purge; dead
letters have to fit all that are given.

Reads SLUICE_NATS_… and SLUICE_NAME; replay SLUICE_STREAM and SLUICE_SUBJECTS, too.`,
		Example: `  sluice dlq ls --summary
  sluice dlq show 17
  sluice dlq replay --key alice --rate 100/s
  sluice dlq purge --reason rejected --older 30d`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newDLQListCommand(), newDLQShowCommand(), newDLQReplayCommand(), newDLQPurgeCommand())
	return cmd
}

// letterFlags are the flags that select dead letters, as given.
type letterFlags struct {
	reasons      []string
	key          string
	older, newer string
	ids          []string
	limit        int
	flags        *pflag.FlagSet
}

func (f *letterFlags) add(flags *pflag.FlagSet) {
	f.flags = flags
	flags.StringArrayVar(&f.reasons, "reason", nil, "of this reason; may be repeated: any of them")
	flags.StringVar(&f.key, "key", "", "of this key, as it is")
	flags.StringVar(&f.older, "older", "", "dead-lettered longer ago than this, such as 7d")
	flags.StringVar(&f.newer, "newer", "", "dead-lettered within this time, such as 1h")
	flags.StringArrayVar(&f.ids, "id", nil, "of the event with this id; may be repeated: any of them")
	flags.IntVar(&f.limit, "limit", 0, "at most so many, the oldest first")
}

// letterSelection is what the flags mean. The server selects by which, the rest is looked at here.
type letterSelection struct {
	which         stream.DeadSelection
	after, before time.Time // when they were dead-lettered, by this machine's clock; zero: any
	ids           []string
	limit         int  // 0: any number
	narrow        bool // it doesn't simply mean all
}

func reasonNames() string {
	names := make([]string, len(pipeline.DeadReasons))
	for i, reason := range pipeline.DeadReasons {
		names[i] = string(reason)
	}
	return strings.Join(names, ", ")
}

func (f *letterFlags) parse(now time.Time) (letterSelection, error) {
	s := letterSelection{ids: f.ids, limit: f.limit}
	for _, name := range []string{"reason", "key", "older", "newer", "id", "limit"} {
		s.narrow = s.narrow || f.flags.Changed(name)
	}
	for _, name := range f.reasons {
		reason := pipeline.DeadReason(name)
		if !slices.Contains(pipeline.DeadReasons, reason) {
			return s, usagef("--reason %q is not known; use %s", name, reasonNames())
		}
		s.which.Reasons = append(s.which.Reasons, reason)
	}
	switch {
	case f.flags.Changed("key") && f.key == "":
		return s, usagef("--key is empty; events without a key have the reason no_key")
	case len(f.key) > limiter.MaxKey:
		return s, usagef("--key has %d bytes, keys have at most %d; events with a longer one have the reason bad_key", len(f.key), limiter.MaxKey)
	case slices.Contains(f.ids, ""):
		return s, usagef("--id is empty")
	case f.limit < 0 || f.limit == 0 && f.flags.Changed("limit"):
		return s, usagef("--limit %d: use at least 1", f.limit)
	}
	s.which.Key = f.key
	for _, age := range []struct {
		name, text string
		to         *time.Time
	}{{"older", f.older, &s.before}, {"newer", f.newer, &s.after}} {
		if !f.flags.Changed(age.name) {
			continue
		}
		d, err := parseDuration(age.text)
		if err == nil && d < 0 {
			err = errors.New("is negative")
		}
		if err != nil {
			return s, usagef("--%s %q %s; use one such as 36h or 7d", age.name, age.text, err)
		}
		*age.to = now.Add(-d)
	}
	return s, nil
}

// fits says whether a letter that the server has selected is meant. Its clock is so much ahead of this machine's.
func (s letterSelection) fits(l stream.DeadLetter, ahead time.Duration) bool {
	buried := l.Buried.Add(-ahead)
	if !s.before.IsZero() && !buried.Before(s.before) || !s.after.IsZero() && !buried.After(s.after) {
		return false
	}
	return len(s.ids) == 0 || slices.Contains(s.ids, l.Event.ID) || slices.Contains(s.ids, l.Event.Header.Get(nats.MsgIdHdr))
}

// letterBox is a connection to the dead letters.
type letterBox struct {
	cfg     Config
	nc      *nats.Conn
	js      jetstream.JetStream
	letters *stream.DeadLetters
	ahead   time.Duration // NATS' clock, by which dead letters are dated, before this machine's
}

// now is the time by NATS' clock.
func (b *letterBox) now() time.Time { return time.Now().Add(b.ahead) }

// openLetters connects to the dead letters. report gets what NATS complains about later. The caller closes nc.
func openLetters(ctx context.Context, report func(error), parts ...part) (*letterBox, error) {
	cfg, err := loadConfig(append(parts, natsPart)...)
	if err != nil {
		return nil, err
	}
	nc, err := stream.Dial(ctx, cfg.stream(), report)
	if err != nil {
		return nil, err
	}
	b := &letterBox{cfg: cfg, nc: nc}
	sc := cfg.stream()
	if b.js, err = sc.JetStream(nc); err == nil {
		b.letters, err = stream.OpenDeadLetters(ctx, b.js, sc)
	}
	if err != nil {
		nc.Close()
		return nil, err
	}
	b.ahead = b.letters.Ahead()
	return b, nil
}

// errEnough ends a listing that has reached its limit.
var errEnough = errors.New("enough")

// each calls fn with the selected letters, the oldest first and without their data.
func (b *letterBox) each(ctx context.Context, s letterSelection, fn func(stream.DeadLetter) error) error {
	found := 0
	err := b.letters.Each(ctx, s.which, func(l stream.DeadLetter) error {
		if !s.fits(l, b.ahead) {
			return nil
		}
		if err := fn(l); err != nil {
			return err
		}
		if found++; found == s.limit {
			return errEnough
		}
		return nil
	})
	switch {
	case errors.Is(err, errEnough):
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("stopped: %w", context.Cause(ctx))
	}
	return err
}

// gather collects the selected letters without their events, and counts them.
func (b *letterBox) gather(ctx context.Context, s letterSelection) (letters []stream.DeadLetter, tally letterTally, err error) {
	tally = letterTally{}
	err = b.each(ctx, s, func(l stream.DeadLetter) error {
		tally[l.Reason]++
		letters = append(letters, stream.DeadLetter{BodyID: l.BodyID, InTwo: l.InTwo})
		return nil
	})
	return letters, tally, err
}

// none says that nothing is selected.
func (s letterSelection) none() string {
	if s.narrow {
		return "no dead letter fits"
	}
	return "there are no dead letters"
}

// letterTally counts dead letters by reason.
type letterTally map[pipeline.DeadReason]int

// String is like "3 dead letters (2 rejected, 1 max_wait)".
func (t letterTally) String() string {
	total := 0
	var parts []string
	for _, reason := range slices.Sorted(maps.Keys(t)) {
		total += t[reason]
		parts = append(parts, fmt.Sprintf("%d %s", t[reason], visible(string(reason))))
	}
	return fmt.Sprintf("%s (%s)", count(int64(total), "dead letter"), strings.Join(parts, ", "))
}
