package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	"sluice/limiter"
	"sluice/pipeline/stream"
)

const placeHelp = `PLACE is a key (alice, or key:alice where it could be misread), tier:NAME, pattern:TEXT with * for any characters,
or default. The first that says something rules:

  all          the brake: 'sluice pause --all'
  key          the key's own limits or pause
  tier         that the key is in
  pattern      the most specific one: the longest text before its first *, then the most characters, then by alphabet
  tier         that the event names
  default      and if nothing is said there: SLUICE_LIMIT of the workers`

func newLimitsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "limits",
		Short: "See and change limits while the workers run",
		Long: `See and change limits while the workers run. They are in the KV bucket sluice_limits; every worker follows it, and every
change is told with who made it, when and why.

` + placeHelp + `

Reads SLUICE_NATS_… and SLUICE_NAME; get SLUICE_LIMIT, too.`,
		Example: `  sluice limits get alice
  sluice limits set alice 5/s burst 10 --comment 'asked us to'
  sluice limits set tier:gold 100/s
  sluice limits set alice tier:gold
  sluice limits apply -f limits.yaml --dry-run`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newLimitsGetCommand(), newLimitsSetCommand(), newLimitsRemoveCommand(), newLimitsListCommand(),
		newLimitsApplyCommand(), newLimitsExportCommand(), newLimitsHistoryCommand())
	return cmd
}

// ruleBox is a connection to the rules.
type ruleBox struct {
	cfg    Config
	sc     stream.Config
	nc     *nats.Conn
	bucket *stream.LimitBucket
}

// openRules connects to the rules. report gets what NATS complains about later. The caller closes nc.
func openRules(ctx context.Context, report func(error), parts ...part) (*ruleBox, error) {
	cfg, err := loadConfig(append(parts, natsPart)...)
	if err != nil {
		return nil, err
	}
	b := &ruleBox{cfg: cfg, sc: cfg.stream()}
	if b.nc, err = stream.Dial(ctx, b.sc, report); err != nil {
		return nil, err
	}
	js, err := b.sc.JetStream(b.nc)
	if err == nil {
		b.bucket, err = stream.OpenLimitBucket(ctx, js, b.sc)
	}
	if err != nil {
		b.nc.Close()
		return nil, err
	}
	return b, nil
}

// placeArg reads PLACE.
func placeArg(text string) (limiter.Place, error) {
	place, err := limiter.ParsePlace(text)
	if err != nil {
		return place, usagef("%s", err)
	}
	return place, nil
}

// ruleArg reads what set says: limits, tier:NAME, or both by a semicolon.
func ruleArg(place limiter.Place, text string) (r limiter.Rule, err error) {
	if place.Source == limiter.SourceAll {
		return r, usagef("all can only be paused, by 'sluice pause --all'; the limits of those that nothing else is said of are at default")
	}
	if r, err = parseRule(text); err == nil {
		err = r.Validate(place)
	}
	if err != nil {
		return r, usagef("%s", err)
	}
	return r, nil
}

// parseRule reads limits, tier:NAME, or both by a semicolon.
func parseRule(text string) (r limiter.Rule, err error) {
	for part := range strings.SplitSeq(text, ";") {
		part = strings.TrimSpace(part)
		switch tier, isTier := strings.CutPrefix(part, "tier:"); {
		case isTier && r.Tier != "" || !isTier && r.Limits != nil:
			return r, errors.New("says limits or a tier twice")
		case isTier && tier == "":
			return r, errors.New("tier: names no tier")
		case isTier:
			r.Tier = tier
		default:
			if r.Limits, err = limiter.ParseLimits(part); err != nil {
				return r, err
			}
		}
	}
	return r, nil
}

// changedBy says who changes something, for those who ask later.
func changedBy() string {
	name := os.Getenv("SUDO_USER")
	if name == "" {
		if u, err := user.Current(); err == nil {
			name = u.Username
		}
	}
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return name + "@" + host
}

// completePlaces offers default, tiers and patterns. Keys may be a million.
func completePlaces(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	const none = cobra.ShellCompDirectiveNoFileComp
	if len(args) > 0 {
		return nil, none
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), 2*time.Second)
	defer cancel()
	b, err := openRules(ctx, func(error) {})
	if err != nil {
		return nil, none
	}
	defer b.nc.Close()
	rules, err := b.bucket.All(ctx, limiter.SourceTier, limiter.SourcePattern)
	if err != nil {
		return nil, none
	}
	var places []string
	if strings.HasPrefix("default", begun) {
		places = append(places, "default\tall others")
	}
	for _, r := range rules {
		if text := r.Place.String(); !r.Rule.None() && strings.HasPrefix(text, begun) {
			places = append(places, text+"\t"+r.Rule.String())
		}
	}
	return places, none
}

func workersOf(n int) string { return count(int64(n), "worker") }

// shownPlace is a place in a table.
func shownPlace(p limiter.Place) string { return visible(p.String()) }

// named is like "alice" or "tier:gold" in a sentence.
func named(p limiter.Place) string {
	if p.Source == limiter.SourceKey {
		return visible(p.Name)
	}
	return shownPlace(p)
}

// ruleJSON is a rule for programs.
type ruleJSON struct {
	Source     limiter.RulingSource `json:"source"`
	Name       string               `json:"name,omitempty"`
	NameBase64 []byte               `json:"name_base64,omitempty"` // instead of name where that isn't UTF-8
	Limits     string               `json:"limits,omitempty"`
	Tier       string               `json:"tier,omitempty"`
	Paused     bool                 `json:"paused,omitempty"`
	Removed    bool                 `json:"removed,omitempty"`
	By         string               `json:"by,omitempty"`
	Comment    string               `json:"comment,omitempty"`
	At         *time.Time           `json:"at,omitempty"`
	Version    uint64               `json:"version,omitempty"`
	Fault      string               `json:"fault,omitempty"` // the entry can't be understood
	Value      string               `json:"value,omitempty"` // with fault: what is stored
}

func ruleOf(s stream.StoredRule) ruleJSON {
	key := keyOf(s.Place.Name)
	out := ruleJSON{
		Source: s.Place.Source, Name: key.Key, NameBase64: key.KeyBase64, Tier: s.Rule.Tier, Paused: s.Rule.Paused, Removed: s.Removed,
		By: s.By, Comment: s.Comment, Version: s.Revision,
	}
	if s.Rule.Limits != nil {
		out.Limits = s.Rule.Limits.String()
	}
	if !s.At.IsZero() {
		at := s.At.UTC()
		out.At = &at
	}
	if s.Fault != nil {
		out.Fault, out.Value = fmt.Sprintf("%s: %s", s.Key, s.Fault), s.Value
	}
	return out
}
