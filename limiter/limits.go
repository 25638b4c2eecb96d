package limiter

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
)

// MaxLimits is the most limits that one key may have: each is read and written with every reservation.
const MaxLimits = 8

// Limits are the limits of a key that must all agree, in the order of [ParseLimits]: by period, then by kind. None at all
// pause, as the zero [Limit] does.
type Limits []Limit

// ParseLimits reads limits parted by commas, each N/UNIT [burst B] [bucket|window|leaky|sliding], in any order, case and
// spacing; or "0" (pause), which among others pauses all; or "unlimited", alone. Limits that mean the same are Equal and
// have the same text. An error names the text and what to write instead, but not where the text stood: that is the
// caller's.
func ParseLimits(s string) (Limits, error) {
	ls, err := parseLimits(s)
	if err != nil {
		return nil, fmt.Errorf("limit %.80q: %w", s, err)
	}
	return ls, nil
}

func parseLimits(s string) (Limits, error) {
	if err := groupedDigits(s); err != nil {
		return nil, err
	}
	count := strings.Count(s, ",") + 1
	if count > MaxLimits {
		return nil, tooMany(count)
	}
	ls := make(Limits, 0, count)
	for part := range strings.SplitSeq(s, ",") {
		if count > 1 && strings.TrimSpace(part) == "" {
			return nil, errors.New("a comma has no limit on one side; write a limit there, or leave the comma out")
		}
		l, err := parseLimit(part)
		switch {
		case err != nil && count > 1:
			return nil, fmt.Errorf("%.40q: %w", strings.TrimSpace(part), err)
		case err != nil:
			return nil, err
		}
		ls = append(ls, l)
	}
	return ls.canonical()
}

// groupedDigits refuses "1,000": one limit or two, it would be a guess, and one half might be a 0 that pauses.
func groupedDigits(s string) error {
	for i := 1; i+3 < len(s); i++ {
		if s[i] != ',' || !digit(s[i-1]) {
			continue
		}
		n := 0
		for i+1+n < len(s) && digit(s[i+1+n]) {
			n++
		}
		if n == 3 {
			return fmt.Errorf(`a comma can't group digits; write %s%s without it, or "%[1]s, %[2]s" if two limits are meant`,
				lastDigits(s[:i]), s[i+1:i+4])
		}
	}
	return nil
}

func digit(c byte) bool { return c >= '0' && c <= '9' }

// lastDigits are the at most three digits at the end of s.
func lastDigits(s string) string {
	i := len(s)
	for i > 0 && len(s)-i < 3 && digit(s[i-1]) {
		i--
	}
	return s[i:]
}

func tooMany(count int) error {
	return fmt.Errorf("%d limits are more than the most, %d; leave out those that others imply", count, MaxLimits)
}

// canonical puts limits into their order, and refuses those that can't stand together. It changes ls.
func (ls Limits) canonical() (Limits, error) {
	if len(ls) > MaxLimits {
		return nil, tooMany(len(ls))
	}
	if len(ls) > 1 {
		if slices.ContainsFunc(ls, func(l Limit) bool { return l.Unlimited }) {
			return nil, errors.New(`"unlimited" can't stand beside other limits; write it alone, or leave it out`)
		}
		if slices.ContainsFunc(ls, Limit.Paused) {
			return Limits{{}}, nil
		}
	}
	slices.SortFunc(ls, func(a, b Limit) int {
		return cmp.Or(cmp.Compare(a.Period, b.Period), cmp.Compare(a.Kind, b.Kind))
	})
	for i := 1; i < len(ls); i++ {
		if a, b := ls[i-1], ls[i]; a.Kind == b.Kind && a.Period == b.Period {
			return nil, fmt.Errorf(`"%s" and "%s" are of one kind and one unit, so they would share their tokens; write one of them`,
				a, b)
		}
	}
	return ls, nil
}

// String is the shortest text that [ParseLimits] reads as the same limits.
func (ls Limits) String() string {
	if len(ls) == 0 {
		return Limit{}.String()
	}
	texts := make([]string, len(ls))
	for i, l := range ls {
		texts[i] = l.String()
	}
	return strings.Join(texts, ", ")
}

// Equal says that both are the same limits, given that [ParseLimits] made them.
func (ls Limits) Equal(other Limits) bool { return slices.Equal(ls, other) }

// Paused says that the limits let nothing pass.
func (ls Limits) Paused() bool { return len(ls) == 0 || slices.ContainsFunc(ls, Limit.Paused) }

// Unlimited says that nothing is counted.
func (ls Limits) Unlimited() bool { return len(ls) == 1 && ls[0].Unlimited }

// MaxCost is the most tokens that one event may take: what costs more would never find enough. While nothing is counted,
// or nothing passes, that is any number.
func (ls Limits) MaxCost() int64 {
	most := int64(math.MaxInt64)
	if ls.Paused() || ls.Unlimited() {
		return most
	}
	for _, l := range ls {
		most = min(most, l.Burst)
	}
	return most
}
