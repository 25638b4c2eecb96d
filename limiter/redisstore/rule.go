package redisstore

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"sluice/limiter"
)

// rule is a ruling as the scripts take it.
type rule struct {
	ruling    *limiter.Ruling
	args      []any // see base.lua
	maxCost   int64 // what costs more is never paid
	unlimited bool
	plain     bool          // one bucket, which is all that take knows
	every     time.Duration // one token's time of the quickest limit; 0: nothing accrues, or none may come late
	each      time.Duration // one token's time of the slowest limit: what a token adds to the wait of those behind it
}

// The modes of base.lua.
const (
	modeCounted = iota
	modePaused
	modeUnlimited
)

func newRule(ruling *limiter.Ruling, maxWait time.Duration) (*rule, error) {
	limits := ruling.Limits
	r := &rule{ruling: ruling, maxCost: limits.MaxCost(), unlimited: limits.Unlimited()}
	mode := modeCounted
	switch {
	case limits.Unlimited():
		mode, limits = modeUnlimited, nil
	case limits.Paused():
		mode, limits = modePaused, nil
	}
	r.plain = mode == modeCounted && len(limits) == 1 && limits[0].Kind == limiter.Bucket
	r.args = []any{mode, len(limits)}
	late := true
	for _, l := range limits {
		c, err := l.Class()
		if err != nil {
			return nil, err
		}
		longest := int64(-1)
		if maxWait > 0 {
			longest = c.Tokens(maxWait)
		}
		r.args = append(r.args, fieldPrefix(l), int(c.Kind), c.Num, c.Den, c.Burst, longest)
		// One token's time more would be one event more in a sliding limit's period.
		late = late && c.Kind != limiter.Sliding
		if every := c.Every(); r.every == 0 || every < r.every {
			r.every = every
		}
		r.each = max(r.each, c.Every())
	}
	if !late {
		r.every = 0
	}
	return r, nil
}

// fieldPrefix stands before the fields of a limit in a key's hash, so that each limit keeps its state whatever stands beside
// it. A bucket per second, the usual one, has none.
func fieldPrefix(l limiter.Limit) string {
	if l.Kind == limiter.Bucket && l.Period == time.Second {
		return ""
	}
	return l.Name() + ":"
}

// allowance is how long after its slot a token may still be used: an event may only be late by what the bound allows.
func (r *rule) allowance() time.Duration {
	if r.unlimited {
		return time.Hour
	}
	return max(minAllowance, r.every)
}

// rules finds the rule of a key. What is derived from a ruling is kept by its pointer.
type rules struct {
	resolver limiter.Resolver
	maxWait  time.Duration
	log      *slog.Logger

	last atomic.Pointer[rule] // found: mostly there is but one

	mu          sync.Mutex
	recent, old map[*limiter.Ruling]*rule
}

// maxRules is how many rules are kept before those are forgotten that weren't found since so many ago.
const maxRules = 1024

// of is the rule of an event of key in tier.
func (r *rules) of(key, tier string) *rule {
	ruling := r.resolver.Resolve(key, tier)
	if last := r.last.Load(); last != nil && last.ruling == ruling {
		return last
	}
	found := r.by(ruling)
	r.last.Store(found)
	return found
}

func (r *rules) by(ruling *limiter.Ruling) *rule {
	r.mu.Lock()
	defer r.mu.Unlock()
	found := r.recent[ruling]
	if found != nil {
		return found
	}
	if found = r.old[ruling]; found == nil {
		var err error
		if found, err = newRule(ruling, r.maxWait); err != nil {
			r.log.Error("limits that can't be kept pause their keys", "source", ruling.Source, "name", ruling.Name, "err", err)
			found, _ = newRule(&limiter.Ruling{}, 0) // no limits are a pause
			found.ruling = ruling
		}
	}
	if r.recent == nil || len(r.recent) >= maxRules {
		r.recent, r.old = map[*limiter.Ruling]*rule{}, r.recent
	}
	r.recent[ruling] = found
	return found
}

// rule is that of an event of key, which names its tier: that counts only where it may.
func (s *Store) rule(key, tier string) *rule {
	if !s.opt.Tiers {
		tier = ""
	}
	return s.rules.of(key, tier)
}

// table is the rules of one call as they stand before its entries.
type table struct {
	args   []any
	places []int // of each entry's rule, from 1
}

// newTable makes the table of n entries, each under its rule.
func newTable(n int, ruleOf func(i int) *rule) table {
	t := table{
		args:   append(make([]any, 0, 16), clockTolerance.Microseconds(), expiryMargin.Microseconds(), 0),
		places: make([]int, n),
	}
	places := map[*rule]int{}
	var last *rule // mostly of all entries
	place := 0
	for i := range t.places {
		if r := ruleOf(i); r != last {
			last, place = r, places[r]
			if place == 0 {
				place = len(places) + 1
				places[r] = place
				t.args = append(t.args, r.args...)
			}
		}
		t.places[i] = place
	}
	t.args[2] = len(places)
	return t
}
