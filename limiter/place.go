package limiter

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// SourceAll is the source of what rules all keys whatever else is said: the brake. It only ever pauses.
const SourceAll RulingSource = "all"

// Place is what a rule of a [Book] is about.
type Place struct {
	Source RulingSource
	Name   string // of the tier, pattern or key; else ""
}

// tierRule keeps the names of tiers fit for headers, labels of metrics and command lines.
var tierRule = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$`)

// Validate says what is wrong with the place.
func (p Place) Validate() error {
	switch p.Source {
	case SourceAll, SourceDefault:
		if p.Name != "" {
			return fmt.Errorf("%s has no names", p.Source)
		}
	case SourceTier:
		if !tierRule.MatchString(p.Name) {
			return fmt.Errorf("%.80q is not the name of a tier; use 1 to 64 letters, digits, _, - and ., a letter or digit first", p.Name)
		}
	case SourcePattern:
		return validatePattern(p.Name)
	case SourceKey:
		if p.Name == "" || len(p.Name) > MaxKey {
			return fmt.Errorf("a key of %d bytes; keys have 1 to %d", len(p.Name), MaxKey)
		}
	default:
		return fmt.Errorf("%.40q is none of key, pattern, tier, default, all", string(p.Source))
	}
	return nil
}

// String is the place as people write it; [ParsePlace] reads it.
func (p Place) String() string {
	switch p.Source {
	case SourceAll, SourceDefault:
		return string(p.Source)
	}
	return string(p.Source) + ":" + p.Name
}

// ParsePlace reads default, all, tier:NAME, pattern:PATTERN, key:KEY, or a key as it is.
func ParsePlace(s string) (Place, error) {
	place := Place{Source: SourceKey, Name: s}
	switch prefix, rest, _ := strings.Cut(s, ":"); {
	case s == string(SourceAll) || s == string(SourceDefault):
		return Place{Source: RulingSource(s)}, nil
	case s == "":
		return Place{}, errors.New("a key can't be empty")
	case len(s) > len(prefix) && (prefix == string(SourceKey) || prefix == string(SourceTier) || prefix == string(SourcePattern)):
		place = Place{Source: RulingSource(prefix), Name: rest}
	case strings.Contains(s, "*"):
		return Place{}, fmt.Errorf("%.80q holds a *; write pattern:%.80s for all keys like it, or key:%.80s for this one", s, s, s)
	}
	return place, place.Validate()
}

// Rule is what a [Book] says of a place; the zero Rule says nothing.
type Rule struct {
	Limits Limits // nil: none are stated
	Tier   string // of a key: the tier it is in
	Paused bool   // nothing passes, whatever else is said; the rest is kept for later
}

// None says that the rule says nothing.
func (r Rule) None() bool { return r.Limits == nil && r.Tier == "" && !r.Paused }

// Equal says that both rules say the same.
func (r Rule) Equal(other Rule) bool {
	return r.Tier == other.Tier && r.Paused == other.Paused && (r.Limits == nil) == (other.Limits == nil) && r.Limits.Equal(other.Limits)
}

// String is the rule for people: "5/s", "tier:gold", "paused (5/s)".
func (r Rule) String() string {
	var parts []string
	if r.Limits != nil {
		parts = append(parts, r.Limits.String())
	}
	if r.Tier != "" {
		parts = append(parts, Place{SourceTier, r.Tier}.String())
	}
	text := strings.Join(parts, "; ")
	switch {
	case r.Paused && text != "":
		return "paused (" + text + ")"
	case r.Paused:
		return "paused"
	case text == "":
		return "-"
	}
	return text
}

// Validate says what is wrong with the rule at a place.
func (r Rule) Validate(p Place) error {
	if r.Tier != "" {
		if p.Source != SourceKey {
			return errors.New("only a key can be in a tier")
		}
		if err := (Place{SourceTier, r.Tier}).Validate(); err != nil {
			return err
		}
	}
	if p.Source == SourceAll && r.Limits != nil {
		return errors.New("all can only be paused; the limits of those that nothing else is said of are at default")
	}
	return nil
}
