package limiter

import (
	"fmt"
	"hash/maphash"
	"strings"
	"sync"
	"sync/atomic"
)

// Book is a [Resolver] whose rules change while it is asked. For an event of a key the first of these rules that says
// something:
//
//	all        the brake: nothing passes
//	key        the key's own limits, or its pause
//	tier       the limits of the tier that the key is in
//	pattern    the limits of the most specific pattern that the key matches: the longest text before the first *, then the
//	           most bytes beside *, then the first by alphabet
//	tier       the limits of the tier that the event names
//	default    the limits of all others, at first those that the book was made with
//
// A tier without a rule says nothing. Answers take no lock that a change holds for long, and allocate nothing. Keys with equal
// rules share their [Ruling], which for that has no Name: a million keys take about 150 MiB.
type Book struct {
	base   *Ruling // default, when no rule is at that place
	paused *Ruling // of a key
	brake  *Ruling
	tables atomic.Pointer[tables]
	seed   maphash.Seed
	shards [bookShards]bookShard

	change  sync.RWMutex // held while the book changes, read by those who compare before and after
	rules   map[ruleText]*keyRule
	sweepAt int
	last    *link
	fns     []func(affected func(key string) bool)
}

const bookShards = 64

// bookShard is a part of the keys.
type bookShard struct {
	mu   sync.RWMutex
	keys map[string]*keyRule
}

// tables are all rules but those of single keys. They are replaced, never changed.
type tables struct {
	all      *Ruling // nil: the brake is off
	standard *Ruling
	tiers    map[string]*Ruling
	patterns patterns
}

// keyRule is the rule of a key, shared by all keys with the same.
type keyRule struct {
	ruling *Ruling // nil: only a tier is stated
	tier   string
}

// ruleText tells key rules apart.
type ruleText struct {
	limits, tier string
	paused       bool
}

// Change is a new rule for a place; the zero Rule takes away the one that is there.
type Change struct {
	Place Place
	Rule  Rule
}

// Validate says what is wrong with the change.
func (c Change) Validate() error {
	err := c.Place.Validate()
	if err == nil {
		err = c.Rule.Validate(c.Place)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", c.Place.Source, err)
	}
	return nil
}

// NewBook has limits for all keys until it is told otherwise.
func NewBook(limits Limits) *Book {
	pause := Limits{{}}
	b := &Book{
		base:   &Ruling{Limits: limits, Source: SourceDefault},
		paused: &Ruling{Limits: pause, Source: SourceKey},
		brake:  &Ruling{Limits: pause, Source: SourceAll},
		seed:   maphash.MakeSeed(), rules: map[ruleText]*keyRule{}, last: &link{},
	}
	b.tables.Store(&tables{standard: b.base})
	for i := range b.shards {
		b.shards[i].keys = map[string]*keyRule{}
	}
	return b
}

// Resolve says which limits rule an event of key that names tier, or "".
func (b *Book) Resolve(key, tier string) *Ruling {
	return b.tables.Load().resolve(key, b.of(key), tier)
}

func (t *tables) resolve(key string, own *keyRule, tier string) *Ruling {
	if t.all != nil {
		return t.all
	}
	if own != nil {
		if own.ruling != nil {
			return own.ruling
		}
		if r := t.tiers[own.tier]; r != nil {
			return r
		}
	}
	if r := t.patterns.match(key); r != nil {
		return r
	}
	if r := t.tiers[tier]; r != nil {
		return r
	}
	return t.standard
}

func (b *Book) shardOf(key string) int { return int(maphash.String(b.seed, key) % bookShards) }

func (b *Book) of(key string) *keyRule {
	s := &b.shards[b.shardOf(key)]
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.keys[key]
}

// Apply makes changes, in order and all or, if one isn't valid, none.
func (b *Book) Apply(changes ...Change) error {
	for _, c := range changes {
		if err := c.Validate(); err != nil {
			return err
		}
	}
	b.change.Lock()
	now := b.tables.Load()
	next := &draftTables{tables: *now}
	was := map[string]*keyRule{}
	for _, c := range changes {
		if c.Place.Source != SourceKey {
			b.put(next, now, c)
			continue
		}
		old, rule := b.of(c.Place.Name), b.ruleOf(b.rules, c.Rule)
		if _, seen := was[c.Place.Name]; !seen && old != rule {
			was[c.Place.Name] = old
		}
		b.shards[b.shardOf(c.Place.Name)].set(c.Place.Name, rule)
	}
	told := next.seal(now) || len(was) > 0
	var affected func(string) bool
	if told {
		affected = b.write(&journal{tables: now, keys: was}, &next.tables)
		b.tables.Store(&next.tables)
	}
	b.sweep()
	fns := b.fns
	b.change.Unlock()
	for _, fn := range fns {
		if told {
			fn(affected)
		}
	}
	return nil
}

func (s *bookShard) set(key string, rule *keyRule) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if rule == nil {
		delete(s.keys, key)
		return
	}
	if _, known := s.keys[key]; !known {
		key = strings.Clone(key) // the caller's may be a part of something large
	}
	s.keys[key] = rule
}

// ruleOf is the shared form of a key's rule; nil if it says nothing.
func (b *Book) ruleOf(rules map[ruleText]*keyRule, r Rule) *keyRule {
	if r.None() {
		return nil
	}
	text := ruleText{tier: r.Tier, paused: r.Paused}
	if r.Limits != nil {
		text.limits = r.Limits.String()
	}
	if shared := rules[text]; shared != nil {
		return shared
	}
	shared := b.rules[text]
	if shared == nil {
		shared = &keyRule{tier: r.Tier}
		switch {
		case r.Paused:
			shared.ruling = b.paused
		case r.Limits != nil:
			shared.ruling = b.rulingOf(rules, text.limits, r.Limits)
		}
	}
	rules[text] = shared
	return shared
}

// rulingOf shares the ruling of keys that are in different tiers or none.
func (b *Book) rulingOf(rules map[ruleText]*keyRule, text string, limits Limits) *Ruling {
	alone := ruleText{limits: text}
	for _, known := range []map[ruleText]*keyRule{rules, b.rules} {
		if shared := known[alone]; shared != nil {
			return shared.ruling
		}
	}
	return &Ruling{Limits: limits, Source: SourceKey}
}

// sweep forgets rules that no key has any more, now and then: it takes a look at all keys.
func (b *Book) sweep() {
	const least = 1024
	if len(b.rules) <= max(least, b.sweepAt) {
		return
	}
	used := make(map[*keyRule]bool, len(b.rules)/2)
	for i := range b.shards {
		for _, rule := range b.shards[i].keys { // only changes write, and this is one
			used[rule] = true
		}
	}
	for text, rule := range b.rules {
		if !used[rule] {
			delete(b.rules, text)
		}
	}
	b.sweepAt = 2 * len(b.rules)
}
