package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"sluice/limiter"
	"sluice/pipeline/stream"
)

func newLimitsGetCommand() *cobra.Command {
	var (
		asJSON bool
		tier   string
	)
	cmd := &cobra.Command{
		Use:   "get PLACE",
		Short: "Tell which limits rule a key, and why",
		Long: `Tell which limits rule a key, and all that is said of it, what rules first; or what is said of another place. Where nothing is
said SLUICE_LIMIT rules: it is shown as it is set here.

` + placeHelp,
		Example:           "  sluice limits get alice\n  sluice limits get alice --tier free\n  sluice limits get tier:gold --json",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: completePlaces,
		RunE: func(cmd *cobra.Command, args []string) error {
			place, err := placeArg(args[0])
			if err != nil {
				return err
			}
			if tier != "" {
				if err := (limiter.Place{Source: limiter.SourceTier, Name: tier}).Validate(); err != nil {
					return usagef("--tier: %s", err)
				}
			}
			b, err := openRules(cmd.Context(), newProgress(cmd.ErrOrStderr(), 0).report, limitPart)
			if err != nil {
				return err
			}
			defer b.nc.Close()
			if place.Source != limiter.SourceKey {
				return b.getPlace(cmd, place, asJSON)
			}
			return b.getKey(cmd, place.Name, tier, asJSON)
		},
	}
	cmd.Flags().StringVar(&tier, "tier", "", "for events that name this tier")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print as JSON")
	return cmd
}

func (b *ruleBox) getPlace(cmd *cobra.Command, place limiter.Place, asJSON bool) error {
	rule, err := b.bucket.Get(cmd.Context(), place)
	if err == nil {
		rule.Rule, err = b.bucket.Ruling(cmd.Context(), rule)
	}
	if err != nil {
		return err
	}
	out := cmd.OutOrStdout()
	if asJSON {
		return encodeRules(out, []stream.StoredRule{rule})
	}
	if rule.Removed {
		_, err := fmt.Fprintf(out, "nothing is said of %s\n", named(place))
		return err
	}
	return printTable(out, []string{"place", "says", "since (UTC)", "by", "comment"},
		[][]string{{placeCell(rule), saysCell(rule), whenCell(rule.At), visible(rule.By), visible(rule.Comment)}})
}

func (b *ruleBox) getKey(cmd *cobra.Command, key, tier string, asJSON bool) error {
	book, rules, err := b.bookOf(cmd.Context(), key)
	if err != nil {
		return err
	}
	x := explanation{key: key, ruling: book.Resolve(key, tier), rules: concerning(key, tier, rules), standard: b.cfg.Limit}
	if asJSON {
		return x.encode(cmd.OutOrStdout())
	}
	return x.print(cmd.OutOrStdout())
}

// concerning are the rules that say something of a key, what rules first.
func concerning(key, tier string, rules []stream.StoredRule) []stream.StoredRule {
	at := map[limiter.Place]stream.StoredRule{}
	var matching []stream.StoredRule
	for _, r := range rules {
		switch {
		case r.Removed:
		case r.Place.Source == limiter.SourcePattern && limiter.MatchPattern(r.Place.Name, key):
			matching = append(matching, r)
		default:
			at[r.Place] = r
		}
	}
	slices.SortFunc(matching, func(a, b stream.StoredRule) int { return limiter.ComparePatterns(a.Place.Name, b.Place.Name) })
	own := at[limiter.Place{Source: limiter.SourceKey, Name: key}]
	var all []stream.StoredRule
	add := func(p limiter.Place) {
		if r, said := at[p]; said {
			all = append(all, r)
			delete(at, p)
		}
	}
	add(limiter.Place{Source: limiter.SourceAll})
	add(limiter.Place{Source: limiter.SourceKey, Name: key})
	add(limiter.Place{Source: limiter.SourceTier, Name: own.Rule.Tier})
	all = append(all, matching...)
	add(limiter.Place{Source: limiter.SourceTier, Name: tier})
	add(limiter.Place{Source: limiter.SourceDefault})
	return all
}

// explanation says why a key has its limits.
type explanation struct {
	key      string
	ruling   *limiter.Ruling
	rules    []stream.StoredRule
	standard limiter.Limits // SLUICE_LIMIT
}

// place is where the ruling comes from; that of the default if it is SLUICE_LIMIT.
func (x explanation) place() limiter.Place {
	place := limiter.Place{Source: x.ruling.Source, Name: x.ruling.Name}
	if place.Source == limiter.SourceKey {
		place.Name = x.key
	}
	return place
}

// from is where the ruling comes from, for people, and what is said there; nil: nothing, SLUICE_LIMIT rules.
func (x explanation) from() (string, *stream.StoredRule) {
	place := x.place()
	for i := range x.rules {
		if x.rules[i].Place == place && !x.rules[i].Rule.None() { // one that can't be understood may leave the place to SLUICE_LIMIT
			return shownPlace(place), &x.rules[i]
		}
	}
	return "SLUICE_LIMIT", nil
}

func (x explanation) print(out io.Writer) error {
	who := visible(x.key)
	text := fmt.Sprintf("%s: %s", who, x.ruling.Limits)
	if x.ruling.Limits.Paused() {
		text = fmt.Sprintf("%s: paused, nothing passes", who)
	}
	from, said := x.from()
	rows := make([][]string, 0, len(x.rules)+1)
	for _, r := range x.rules {
		rows = append(rows, []string{mark(said != nil && r.Place == said.Place), placeCell(r), saysCell(r), whenCell(r.At), visible(r.By), visible(r.Comment)})
	}
	rows = append(rows, []string{mark(said == nil), "SLUICE_LIMIT", x.standard.String(), "", "", "as it is set here"})
	if _, err := fmt.Fprintf(out, "%s (by %s)\n\n", text, from); err != nil {
		return err
	}
	return printTable(out, []string{"", "place", "says", "since (UTC)", "by", "comment"}, rows)
}

func mark(rules bool) string {
	if rules {
		return ">"
	}
	return ""
}

func (x explanation) encode(out io.Writer) error {
	key := keyOf(x.key)
	rules := make([]ruleJSON, len(x.rules))
	for i, r := range x.rules {
		rules[i] = ruleOf(r)
	}
	enc := json.NewEncoder(out)
	enc.SetEscapeHTML(false)
	return enc.Encode(struct {
		keyJSON
		Limits string     `json:"limits"`
		Paused bool       `json:"paused"`
		From   string     `json:"from"`
		Rules  []ruleJSON `json:"rules"`
	}{key, x.ruling.Limits.String(), x.ruling.Limits.Paused(), strings.ToValidUTF8(x.place().String(), "?"), rules})
}
