package limiter

import (
	"context"
	"maps"
	"math"
	"slices"
	"sync"
	"time"
)

// Local keeps the limits of many keys in this process, on its monotonic clock. A key is forgotten once its state says no
// more than a missing one, so that the memory is in proportion to the keys seen lately: each call, of whatever key, looks
// at some. All methods may be called at the same time.
type Local struct {
	start time.Time // the 0 of the models' times

	mu    sync.Mutex
	plan  *plan // of the keys that neither have limits of their own nor belong to a tier that has
	own   map[string]*plan
	tier  map[string]string // of the keys that belong to one
	plans map[string]*plan  // of the tiers
	keys  map[string]*Model
	ring  []string // the keys, to look at in turn for those that can be forgotten
	hand  int
	swept int64 // the time up to which looks were made; see sweep
}

const (
	lookEvery = int64(10)   // microseconds of which a look costs 1 %
	mostLooks = int64(1000) // of one call: 0.1 ms
	leastRing = 1024        // keys for which memory that is left over doesn't matter
)

// NewLocal returns a limiter for keys that share the limits, each with tokens of its own. Limits that the arithmetic can't
// hold are an error.
func NewLocal(limits Limits) (*Local, error) {
	p, err := newPlan(limits)
	if err != nil {
		return nil, err
	}
	return &Local{
		start: time.Now(), plan: p, keys: map[string]*Model{},
		own: map[string]*plan{}, tier: map[string]string{}, plans: map[string]*plan{},
	}, nil
}

// SetLimits changes the limits of all keys at once, as [Model.SetLimits] does for one, but not of those with limits of
// their own or of a tier.
func (l *Local) SetLimits(limits Limits) error {
	p, err := newPlan(limits)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.plan = p
	return nil
}

// Reserve takes cost tokens, at least 1, of key, now ([Go]) or at a slot at most horizon (1 s at most) ahead ([Hold]). Else
// it takes nothing and says how long the event would have to wait ([Park]), or that it costs too much ([Never]). A horizon
// below 0 only asks. The error is that of ctx, which is looked at once, for nothing here blocks.
func (l *Local) Reserve(ctx context.Context, key string, cost int64, horizon time.Duration) (Decision, error) {
	if err := ctx.Err(); err != nil {
		return Decision{}, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	at := time.Now() // under the lock, so that no key sees time go back
	now := at.Sub(l.start).Microseconds()
	l.sweep(now)
	p := l.planOf(key)
	switch {
	case p.paused:
		return Decision{Verdict: Park, Reason: Paused}, nil
	case p.unlimited:
		return Decision{Verdict: Go, At: at, Stale: at.Add(p.allowance), Remaining: math.MaxInt64}, nil
	case cost > p.maxCost:
		return Decision{Verdict: Never}, nil
	}

	r := l.model(key, p, now).Reserve(now, 1, cost, horizon)
	d := Decision{Remaining: r.Remaining, Scarcest: r.Scarcest}
	switch {
	case r.Granted == 1:
		d.Verdict, d.At = Go, at
		d.Stale = at.Add(p.allowance)
	case r.Scheduled == 1:
		d.Verdict, d.Reason, d.At = Hold, Throttled, l.start.Add(duration(r.Slots[0]))
		d.Stale = d.At.Add(p.allowance)
	default:
		d.Verdict, d.Reason, d.Wait = Park, Throttled, r.Wait
	}
	return d, nil
}

// Len is the number of keys in memory.
func (l *Local) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.keys)
}

// model is the key's model under the limits of now, which are p.
func (l *Local) model(key string, p *plan, now int64) *Model {
	m, ok := l.keys[key]
	if !ok {
		// Two looks for each new key: the ring turns faster than it grows.
		l.forgetOne(now)
		l.forgetOne(now)
		m = &Model{plan: p, states: make([]State, len(p.classes))}
		l.keys[key] = m
		l.ring = append(l.ring, key)
	}
	if m.plan != p {
		m.follow(p)
	}
	return m
}

// sweep looks at as many keys as the time since the last call pays for, so that they are forgotten whether or not new ones
// come, and a call takes no longer for that.
func (l *Local) sweep(now int64) {
	due := (now - l.swept) / lookEvery
	if due <= 0 {
		return
	}
	l.swept = now
	for range min(due, mostLooks, int64(len(l.ring))) {
		l.forgetOne(now)
	}
}

// forgetOne looks at the next key of the ring and forgets it if it can.
func (l *Local) forgetOne(now int64) {
	if len(l.ring) == 0 {
		return
	}
	l.hand %= len(l.ring)
	key := l.ring[l.hand]
	m := l.keys[key]
	// What is uncounted for now keeps the state that it had: a pause is no way to a full bucket.
	if p := l.planOf(key); m.plan != p && !p.uncounted() {
		m.follow(p)
	}
	if m.FullAt(now) > now {
		l.hand++
		return
	}
	delete(l.keys, key)
	last := len(l.ring) - 1
	l.ring[l.hand], l.ring[last] = l.ring[last], ""
	l.ring = l.ring[:last]
	l.shrink()
}

// shrink gives back the memory of a peak once a quarter of its keys is left: neither a map nor a slice does so by itself.
func (l *Local) shrink() {
	if cap(l.ring) < leastRing || len(l.ring) > cap(l.ring)/4 {
		return
	}
	l.ring = slices.Clone(l.ring)
	keys := make(map[string]*Model, len(l.keys))
	maps.Copy(keys, l.keys)
	l.keys = keys
}
