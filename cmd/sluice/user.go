package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"sluice/limiter"
	"sluice/limiter/redisstore"
	"sluice/pipeline"
	"sluice/pipeline/stream"
)

// userFlags are the flags of user, as given.
type userFlags struct {
	ruleChange
	tier        string
	yes, dryRun bool
}

// userActions are what can be done with a key, and the flags that each understands; "": look at it.
var userActions = map[string][]string{
	"":       {"json", "tier"},
	"pause":  {"json", "comment", "wait"},
	"resume": {"json", "comment", "wait"},
	"purge":  {"json", "yes", "dry-run"},
	"reset":  {"json", "yes"},
}

func newUserCommand() *cobra.Command {
	var f userFlags
	cmd := &cobra.Command{
		Use:   "user KEY [pause|resume|purge|reset]",
		Short: "Tell why a key gets what it gets, and do something about it",
		Long: `Tell in a sentence why a key gets what it gets, then what rules it, what its limits have left, what waits, what the receiver
said last, and who is about to push. Nothing is changed, and it is one look: events that are still in the source are not known.

  pause    let nothing of the key pass until resume; like 'sluice pause key:KEY'
  resume   let it pass again, by the limits that ruled before
  purge    delete its waiting events for good; what a worker is about to push is pushed. Workers may run
  reset    forget its tokens, the receiver's cool-down and failures: the key is as new, and may get one burst more

purge and reset ask first, and without a terminal need --yes. KEY is the key as it is, of 1 to 256 bytes.

Reads SLUICE_NATS_…, SLUICE_REDIS_…, SLUICE_NAME, and SLUICE_LIMIT, which rules where nothing else is said.`,
		Example: `  sluice user alice
  sluice user alice --json
  sluice user alice pause --comment 'endpoint on fire'
  sluice user alice purge --dry-run
  sluice user alice reset --yes`,
		Args: cobra.RangeArgs(1, 2),
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) != 1 { // keys may be a million
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return []string{"pause", "resume", "purge", "reset"}, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			action := ""
			if len(args) > 1 {
				action = args[1]
			}
			return f.run(cmd, args[0], action)
		},
	}
	f.add(cmd)
	cmd.Flags().StringVar(&f.tier, "tier", "", "of a key without waiting events: for events that name this tier")
	cmd.Flags().BoolVar(&f.yes, "yes", false, "purge, reset: don't ask; needed without a terminal")
	cmd.Flags().BoolVar(&f.dryRun, "dry-run", false, "purge: only count")
	return cmd
}

func (f *userFlags) run(cmd *cobra.Command, key, action string) error {
	place := limiter.Place{Source: limiter.SourceKey, Name: key}
	if err := place.Validate(); err != nil {
		return usagef("%s", err)
	}
	flags, known := userActions[action]
	if !known {
		return usagef("%q is none of pause, resume, purge, reset", action)
	}
	var wrong []string
	cmd.Flags().Visit(func(flag *pflag.Flag) {
		if !slices.Contains(flags, flag.Name) {
			wrong = append(wrong, "--"+flag.Name)
		}
	})
	if len(wrong) > 0 {
		return usagef("%s: not for %s", strings.Join(wrong, ", "), strings.TrimSpace("user KEY "+action))
	}
	switch action {
	case "pause", "resume":
		return f.ruleChange.run(cmd, place, func(r limiter.Rule) limiter.Rule {
			r.Paused = action == "pause"
			return r
		})
	case "purge":
		return f.purge(cmd, key)
	case "reset":
		return f.reset(cmd, key)
	}
	return f.show(cmd, key)
}

func (f *userFlags) show(cmd *cobra.Command, key string) error {
	if f.tier != "" {
		if err := (limiter.Place{Source: limiter.SourceTier, Name: f.tier}).Validate(); err != nil {
			return usagef("--tier: %s", err)
		}
	}
	b, err := openUser(cmd.Context(), key, newProgress(cmd.ErrOrStderr(), 0).report)
	if err != nil {
		return err
	}
	defer b.close()
	report, err := b.look(cmd.Context(), f.tier)
	if err != nil {
		return err
	}
	if f.json {
		return report.encode(cmd.OutOrStdout())
	}
	return report.print(cmd.OutOrStdout())
}

// userBox is a connection to all that is known of a key.
type userBox struct {
	*ruleBox
	key     string
	rules   []stream.StoredRule // that may concern it
	rdb     redis.UniversalClient
	store   *redisstore.Store
	lanes   *stream.Lanes
	letters *stream.DeadLetters
}

// openUser connects to NATS and Redis. report gets what NATS complains about later. The caller calls close.
func openUser(ctx context.Context, key string, report func(error)) (*userBox, error) {
	rules, err := openRules(ctx, report, redisPart, limitPart)
	if err != nil {
		return nil, err
	}
	b := &userBox{ruleBox: rules, key: key}
	if err := b.open(ctx); err != nil {
		b.close()
		return nil, err
	}
	return b, nil
}

func (b *userBox) open(ctx context.Context) error {
	addr, err := b.cfg.Redis.address(slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	if b.rdb, err = redisstore.Reach(ctx, addr, b.cfg.Redis.URL.String()); err != nil {
		return err
	}
	js, err := b.sc.JetStream(b.nc)
	if err != nil {
		return err
	}
	if b.lanes, err = stream.OpenLanes(ctx, js, b.sc); err != nil {
		return err
	}
	if b.letters, err = stream.OpenDeadLetters(ctx, js, b.sc); err != nil {
		return err
	}
	book, rules, err := b.bookOf(ctx, b.key)
	if err != nil {
		return err
	}
	b.rules = rules
	b.store, err = redisstore.New(b.rdb, redisstore.Options{
		Name: b.cfg.Name, Worker: workerID(), Limits: book, Tiers: true, Bodies: b.lanes, Log: slog.New(slog.DiscardHandler),
	})
	return err
}

func (b *userBox) close() {
	b.nc.Close()
	if b.rdb != nil {
		_ = b.rdb.Close()
	}
}

// bookOf is all that is said of a key, as a worker would have it, and where. A rule that can't be understood is there with what
// rules in its place.
func (b *ruleBox) bookOf(ctx context.Context, key string) (*limiter.Book, []stream.StoredRule, error) {
	rules, err := b.bucket.Concerning(ctx, key)
	if err != nil {
		return nil, nil, err
	}
	book := limiter.NewBook(b.cfg.Limit)
	for i := range rules {
		r := &rules[i]
		if r.Place == (limiter.Place{}) {
			continue
		}
		r.Rule, err = b.bucket.Ruling(ctx, *r)
		if err == nil {
			err = book.Apply(limiter.Change{Place: r.Place, Rule: r.Rule})
		}
		if err != nil {
			return nil, nil, err
		}
	}
	return book, rules, nil
}

// stateless says who makes the state in Redis, if that is what it lacks.
func stateless(doing string, err error) error {
	if errors.Is(err, redisstore.ErrEpoch) {
		return fmt.Errorf("%s: %w: a worker does that, see 'sluice workers'", doing, err)
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// look tells how the key stands.
func (b *userBox) look(ctx context.Context, tier string) (userReport, error) {
	st, err := b.store.Standing(ctx, b.key, tier)
	if err != nil {
		return userReport{}, stateless("look at the key", err)
	}
	report := userReport{
		now: time.Now(), st: st, dead: letterTally{},
		explanation: explanation{key: b.key, ruling: st.Ruling, rules: concerning(b.key, st.Tier, b.rules), standard: b.cfg.Limit},
	}
	if st.First.Seq > 0 {
		report.first, err = b.lanes.Read(ctx, b.key, st.First.BodyID)
		if err != nil && !errors.Is(err, pipeline.ErrGone) { // delivered meanwhile
			return report, err
		}
	}
	err = b.letters.Each(ctx, stream.DeadSelection{Key: b.key}, func(l stream.DeadLetter) error {
		report.dead[l.Reason]++
		return nil
	})
	return report, err
}
