package redisstore

import (
	"time"

	"sluice/limiter"
)

// rule is the limits of a key as the scripts take them.
type rule struct {
	args      []any // see common.lua
	maxCost   int64 // what costs more is never paid
	unlimited bool
	every     time.Duration // one token's time of the quickest limit; 0: nothing accrues, or none may come late
	each      time.Duration // one token's time of the slowest limit: what an event adds to the wait of those behind it
}

// The modes of common.lua.
const (
	modeCounted = iota
	modePaused
	modeUnlimited
)

func newRule(limits limiter.Limits, maxWait time.Duration) (rule, error) {
	r := rule{maxCost: limits.MaxCost(), unlimited: limits.Unlimited()}
	mode := modeCounted
	switch {
	case limits.Unlimited():
		mode, limits = modeUnlimited, nil
	case limits.Paused():
		mode, limits = modePaused, nil
	}
	r.args = []any{clockTolerance.Microseconds(), expiryMargin.Microseconds(), mode, len(limits)}
	late := true
	for _, l := range limits {
		c, err := l.Class()
		if err != nil {
			return rule{}, err
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
