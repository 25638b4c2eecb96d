package limiter

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// validatePattern says what is wrong with a pattern.
func validatePattern(s string) error {
	switch {
	case len(s) > MaxKey:
		return fmt.Errorf("a pattern of %d bytes; keys have at most %d", len(s), MaxKey)
	case !strings.Contains(s, "*"):
		return fmt.Errorf("the pattern %.80q holds no *; a * stands for any characters, or none", s)
	case strings.Contains(s, "**"):
		return errors.New("a pattern with ** means the same as one with *; write that")
	}
	return nil
}

// MatchPattern says whether key matches a pattern: a text in which each * stands for any bytes, or none.
func MatchPattern(text, key string) bool {
	p := pattern{parts: strings.Split(text, "*")}
	return p.match(key)
}

// pattern is a text in which each * stands for any bytes, or none.
type pattern struct {
	text   string
	parts  []string // between the *; at least two
	ruling *Ruling
}

func (p *pattern) match(key string) bool {
	if len(p.parts) == 1 {
		return key == p.parts[0]
	}
	first, last := p.parts[0], p.parts[len(p.parts)-1]
	if len(key) < len(first)+len(last) || !strings.HasPrefix(key, first) || !strings.HasSuffix(key, last) {
		return false
	}
	rest := key[len(first) : len(key)-len(last)]
	for _, part := range p.parts[1 : len(p.parts)-1] {
		i := strings.Index(rest, part)
		if i < 0 {
			return false
		}
		rest = rest[i+len(part):]
	}
	return true
}

// patterns finds the most specific pattern that a key matches: that with the longest text before its first *, then that with
// the most bytes beside its *, then the first by alphabet.
type patterns struct {
	byText map[string]*Ruling
	// For finding: each length of a text before the first *, the longest first, and the patterns with such a text.
	lengths []int
	starts  map[string][]pattern
}

// newPatterns takes byText for its own.
func newPatterns(byText map[string]*Ruling) patterns {
	ps := patterns{byText: byText, starts: map[string][]pattern{}}
	for text, ruling := range byText {
		p := pattern{text: text, parts: strings.Split(text, "*"), ruling: ruling}
		start := p.parts[0]
		ps.starts[start] = append(ps.starts[start], p)
		if !slices.Contains(ps.lengths, len(start)) {
			ps.lengths = append(ps.lengths, len(start))
		}
	}
	slices.SortFunc(ps.lengths, func(a, b int) int { return cmp.Compare(b, a) })
	for _, list := range ps.starts {
		slices.SortFunc(list, func(a, b pattern) int { return ComparePatterns(a.text, b.text) })
	}
	return ps
}

// ComparePatterns is negative if a is the more specific pattern, and rules.
func ComparePatterns(a, b string) int {
	start := func(p string) int { return strings.IndexByte(p, '*') }
	literal := func(p string) int { return len(p) - strings.Count(p, "*") }
	return cmp.Or(cmp.Compare(start(b), start(a)), cmp.Compare(literal(b), literal(a)), cmp.Compare(a, b))
}

func (ps *patterns) match(key string) *Ruling {
	for _, n := range ps.lengths {
		if n > len(key) {
			continue
		}
		list := ps.starts[key[:n]]
		for i := range list {
			if list[i].match(key) {
				return list[i].ruling
			}
		}
	}
	return nil
}
