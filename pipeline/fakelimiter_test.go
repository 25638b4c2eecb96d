package pipeline

import (
	"context"
	"time"

	"sluice/limiter"
)

// limit is a rate as the time that one token takes, and a burst. No time: unlimited. A negative time: paused.
type limit struct {
	every time.Duration
	burst int64
}

func (m *memory) limit(key string) limit {
	if l, ok := m.limits[key]; ok {
		return l
	}
	return m.fallback
}

// extra is what the waiting events cost beyond one token each.
func (s *laneState) extra() (n int64) {
	for _, e := range s.lane {
		n += e.Cost - 1
	}
	for _, e := range s.retry {
		if !e.Collapsed {
			n += e.Cost - 1
		}
	}
	return n
}

// never says that so many tokens are never there.
func (l limit) never(cost int64) bool { return l.every > 0 && cost > l.burst }

// slot is in what time the bucket can pay n tokens; charge takes them.
func (m *memory) slot(key string, s *laneState, n int64, now time.Time) time.Duration {
	l := m.limit(key)
	if l.every <= 0 || l.never(n) {
		return 0
	}
	return max(0, latest(s.full, now).Sub(now)+time.Duration(n-l.burst)*l.every)
}

func (m *memory) charge(key string, s *laneState, n int64, now time.Time) {
	if l := m.limit(key); l.every > 0 {
		s.full = latest(s.full, now).Add(time.Duration(n) * l.every)
	}
}

// Reserve decides as reserve.lua does for one event.
func (m *memory) Reserve(ctx context.Context, key, _ string, cost int64, horizon time.Duration) (limiter.Decision, error) {
	f, err := m.enter(ctx, "reserve", key, 1)
	defer m.mu.Unlock()
	if f == notDone {
		return limiter.Decision{}, err
	}
	l, s, now := m.limit(key), m.of(key), time.Now()
	if l.never(cost) {
		return limiter.Decision{Verdict: limiter.Never}, err
	}
	ahead := len(s.lane) + len(s.retry)
	tokens := int64(ahead) + s.extra()
	if s.opened.After(now) {
		ahead += s.opening
		tokens += int64(s.opening) + s.openingExtra
	}
	d := limiter.Decision{Verdict: limiter.Park, Ahead: int64(ahead), AheadCost: tokens, Counted: true}
	slot := m.slot(key, s, cost, now)
	switch {
	case l.every < 0:
		d.Reason = limiter.Paused
	case s.closedUntil.After(now):
		d.Reason = limiter.Cooling
	case ahead+len(s.busy) > 0:
		d.Reason = limiter.LaneAhead
	case horizon < 0:
		d.Reason = limiter.Throttled
	case slot == 0:
		m.charge(key, s, cost, now)
		return limiter.Decision{Verdict: limiter.Go, At: now, Stale: now.Add(m.allowance)}, err
	case slot <= horizon:
		m.charge(key, s, cost, now)
		at := now.Add(slot)
		return limiter.Decision{Verdict: limiter.Hold, Reason: limiter.Throttled, At: at, Stale: at.Add(m.allowance)}, err
	default:
		d.Reason = limiter.Throttled
	}
	d.Wait = slot + time.Duration(tokens)*max(l.every, 0)
	if m.maxWait > 0 && d.Wait > m.maxWait && d.Reason != limiter.Paused && d.Reason != limiter.Cooling {
		d.Verdict, d.Counted = limiter.Overflow, false
		return d, err
	}
	if !s.opened.After(now) {
		s.opening, s.openingExtra = 0, 0
	}
	s.opened, s.opening, s.openingExtra = now.Add(2*time.Second), s.opening+1, s.openingExtra+cost-1
	return d, err
}

// made is the number of calls of a name for key since a moment.
func (m *memory) made(name, key string, since time.Time) (n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range m.calls[name][key] {
		if !c.at.Before(since) {
			n++
		}
	}
	return n
}

// all is the number of calls so far.
func (m *memory) all() (n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, byKey := range m.calls {
		for _, calls := range byKey {
			n += len(calls)
		}
	}
	return n
}
