package limiter

import "fmt"

// SetTier gives all keys of a tier their limits, or changes them, at once.
func (l *Local) SetTier(tier string, limits Limits) error {
	p, err := newPlan(limits)
	if err != nil {
		return fmt.Errorf("tier %q: %w", tier, err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.plans[tier] = p
	return nil
}

// Assign puts a key into a tier instead of the one it was in, "": into none. Until the tier has limits, the key has those
// of all.
func (l *Local) Assign(key, tier string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if tier == "" {
		delete(l.tier, key)
		return
	}
	l.tier[key] = tier
}

// SetKey gives a key limits of its own, or changes them, at once; no tier matters to it any more.
func (l *Local) SetKey(key string, limits Limits) error {
	p, err := newPlan(limits)
	if err != nil {
		return fmt.Errorf("the limits of a key: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.own[key] = p
	return nil
}

// ResetKey takes a key's own limits away.
func (l *Local) ResetKey(key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.own, key)
}

// Limits are those of a key now: its own, else its tier's, else those of all. They must not be changed.
func (l *Local) Limits(key string) Limits {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.planOf(key).limits
}

func (l *Local) planOf(key string) *plan {
	if p, ok := l.own[key]; ok {
		return p
	}
	if tier, ok := l.tier[key]; ok {
		if p, ok := l.plans[tier]; ok {
			return p
		}
	}
	return l.plan
}
