package redisstore

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"sync"
	"time"

	"sluice/limiter"
	"sluice/pipeline"
)

// Policy says what becomes of events while Redis is away: the value of SLUICE_ON_REDIS_DOWN.
type Policy string

// The policies.
const (
	Local  Policy = "local"  // each worker lets pass its share of every limit
	Closed Policy = "closed" // events stay in the source
	Open   Policy = "open"   // all events pass
)

// Policies lists all policies.
var Policies = []Policy{Local, Closed, Open}

// Fleet is how workers know of each other without Redis.
type Fleet interface {
	// Tell says to the others whether this worker is without Redis.
	Tell(away bool)
	// Workers are the ids of the live workers, this one among them, and how many of them are without Redis. None: that
	// isn't known now.
	Workers() (ids []string, away int)
}

// FallbackOptions of a [Fallback].
type FallbackOptions struct {
	Policy Policy
	Grace  time.Duration // after so long without Redis the policy is Closed; 0: never
	Fleet  Fleet

	// Pause lets the source go to other workers, which see Redis while this one doesn't; Resume ends that.
	Pause, Resume func()
}

// backend is what a Fallback needs of its [Store].
type backend interface {
	pipeline.Limiter
	pipeline.Index
	reachable() bool
	turns() <-chan struct{}
	passed(bool)
	try(context.Context) error
	Trouble() error
	Open(context.Context) error
	charge([]debt) error
	index([]pipeline.ParkRequest) (left []pipeline.ParkRequest, err error)
}

// Fallback is a store that knows what to do while Redis is away. It implements [pipeline.Limiter] and [pipeline.Index].
//
// While Redis is away, events are decided on by the policy; those that have to wait then are remembered, once their bodies
// are stored, until the index can take them; lanes sleep. When it is back, what was spent is charged and what was remembered is
// indexed before the first event is decided on by Redis again.
//
// The policies Local and Closed are for a Redis that is away from all workers. A worker that alone is without it hands its
// events back to the others.
type Fallback struct {
	store  backend
	opt    FallbackOptions
	limits limiter.Resolver
	worker string
	log    *slog.Logger
	count  func(Policy)

	promised promised

	mu      sync.RWMutex // read while a decision is made, so that none is made under an old mode
	mode    mode
	changed chan struct{} // closed when the mode changes
	shares  *shares       // of this outage; nil: they haven't ruled yet
	since   time.Time     // when Redis went away
	apart   time.Time     // since when other workers have been seeing Redis while this one doesn't; zero: none does
	lost    time.Time     // since when no worker has been seeing it; zero: one may

	parking sync.Mutex
	parked  []parked // events to be indexed when Redis is back
	most    int      // of them
	seen    struct{ decisions, parked, spent int64 }
}

type parked struct {
	pipeline.ParkRequest
	at time.Time
}

// mode is who decides on events.
type mode uint8

const (
	byRedis   mode = iota
	byNobody       // events wait
	byShares       // see shares
	byPolicy       // all pass
	elsewhere      // other workers
)

const (
	// othersPatience is how long other workers may still see Redis, or see it already, while this one doesn't: outages
	// neither begin nor end for all at the same moment.
	othersPatience = 1500 * time.Millisecond

	decideEvery = 50 * time.Millisecond

	// returnPatience is how long a worker that sees Redis again waits for the others, which have something to charge, too.
	returnPatience = 750 * time.Millisecond

	mostParked = 1_000_000 // of about 200 bytes
)

// NewFallback returns a fallback for s. Run has to run.
func NewFallback(s *Store, opt FallbackOptions) *Fallback {
	return newFallback(s, opt, s.opt.Limits, s.opt.Worker, s.opt.Log, func(p Policy) {
		s.metrics.fallback.WithLabelValues(string(p)).Inc()
	})
}

func newFallback(s backend, opt FallbackOptions, limits limiter.Resolver, worker string, log *slog.Logger,
	count func(Policy),
) *Fallback {
	return &Fallback{
		store: s, opt: opt, limits: limits, worker: worker, log: log, count: count,
		changed: make(chan struct{}), most: mostParked,
	}
}

// away is the answer to a call that Redis would have to answer. The lock is held.
func (f *Fallback) away() error { return &pipeline.Away{Changed: f.changed} }

// explained is err of the store, as the page has to know it. If it is the beginning of an outage, the mode follows within a
// moment.
func (f *Fallback) explained(err error) error {
	if !failing(err) {
		return err
	}
	f.mu.RLock()
	defer f.mu.RUnlock()
	if f.mode == byRedis && !errors.Is(err, errAway) {
		return &pipeline.Away{Cause: err, Changed: f.changed}
	}
	return f.away()
}

// Reserve asks Redis, or decides by the policy.
func (f *Fallback) Reserve(ctx context.Context, key, tier string, cost int64, horizon time.Duration) (limiter.Decision, error) {
	if ctx.Err() != nil {
		return limiter.Decision{}, context.Cause(ctx)
	}
	f.mu.RLock()
	if f.mode == byRedis {
		f.mu.RUnlock()
		d, err := f.store.Reserve(ctx, key, tier, cost, horizon)
		if err == nil && d.Verdict == limiter.Hold {
			f.promised.add(key, d.At, cost)
		}
		return d, f.explained(err)
	}
	defer f.mu.RUnlock()
	switch f.mode {
	case byShares, byPolicy:
		return f.decide(key, tier, cost, horizon), nil
	}
	return limiter.Decision{}, f.refusal()
}

// refusal is why nothing is decided on. The lock is held.
func (f *Fallback) refusal() error {
	if f.mode == elsewhere {
		return pipeline.ErrElsewhere
	}
	return f.away()
}

// decide decides without Redis. The lock is held for reading.
func (f *Fallback) decide(key, tier string, cost int64, horizon time.Duration) limiter.Decision {
	now, limits := time.Now(), f.limits.Resolve(key, tier).Limits
	switch {
	case limits.Paused():
		return limiter.Decision{Verdict: limiter.Park, Reason: limiter.Paused}
	case cost > limits.MaxCost():
		return limiter.Decision{Verdict: limiter.Never}
	}
	f.parking.Lock()
	f.seen.decisions++
	f.parking.Unlock()
	if f.mode == byPolicy || limits.Unlimited() {
		f.count(f.opt.Policy)
		if horizon < 0 { // the key has as many pushes in flight as it may
			return limiter.Decision{Verdict: limiter.Park, Reason: limiter.Throttled}
		}
		return limiter.Decision{Verdict: limiter.Go, At: now, Stale: now.Add(time.Hour), Remaining: math.MaxInt64}
	}
	f.count(Local)
	return f.shares.reserve(key, tier, cost, horizon)
}

// Park adds an event to its lane in the index, or remembers to do so while this worker decides without Redis. Should the
// worker die before it could, the place is found missing when the body is verified.
func (f *Fallback) Park(ctx context.Context, r pipeline.ParkRequest) (pipeline.LaneInfo, error) {
	f.mu.RLock()
	if f.mode == byRedis {
		f.mu.RUnlock()
		info, err := f.store.Park(ctx, r)
		return info, f.explained(err)
	}
	defer f.mu.RUnlock()
	if f.mode != byShares && f.mode != byPolicy {
		return pipeline.LaneInfo{}, f.refusal()
	}
	f.parking.Lock()
	defer f.parking.Unlock()
	if len(f.parked) >= f.most {
		return pipeline.LaneInfo{}, f.away() // the source keeps it
	}
	f.parked = append(f.parked, parked{r, time.Now()})
	f.seen.parked++
	return pipeline.LaneInfo{Waiting: 1, Next: -1}, nil
}

// Claim takes lanes that are due; none while Redis is away.
func (f *Fallback) Claim(ctx context.Context, most int) ([]string, time.Duration, error) {
	if !f.present() {
		return nil, 2 * decideEvery, nil
	}
	keys, next, err := f.store.Claim(ctx, most)
	if failing(err) {
		return keys, 2 * decideEvery, nil
	}
	return keys, next, err
}

// Lease books the next events of a lane.
func (f *Fallback) Lease(ctx context.Context, r pipeline.LeaseRequest) (pipeline.Lease, error) {
	if !f.present() {
		return pipeline.Lease{}, f.explained(errAway)
	}
	l, err := f.store.Lease(ctx, r)
	for _, e := range l.Events {
		f.promised.add(r.Key, e.At, e.Cost)
	}
	return l, f.explained(err)
}

// Settle says what became of leased events.
func (f *Fallback) Settle(ctx context.Context, r pipeline.SettleRequest) (pipeline.LaneInfo, error) {
	if !f.present() {
		return pipeline.LaneInfo{}, f.explained(errAway)
	}
	info, err := f.store.Settle(ctx, r)
	return info, f.explained(err)
}

// Holds says whether an event may be in its lane.
func (f *Fallback) Holds(ctx context.Context, key string, order uint64) (bool, error) {
	if !f.present() {
		return false, f.explained(errAway)
	}
	may, err := f.store.Holds(ctx, key, order)
	return may, f.explained(err)
}

// Forget takes a collapsed event out of the index.
func (f *Fallback) Forget(ctx context.Context, key string, e pipeline.Entry) (bool, error) {
	if !f.present() {
		return false, f.explained(errAway)
	}
	was, err := f.store.Forget(ctx, key, e)
	return was, f.explained(err)
}

// Now is the time by Redis' clock, as it was last seen.
func (f *Fallback) Now() time.Time { return f.store.Now() }

func (f *Fallback) present() bool {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.mode == byRedis
}

var (
	_ pipeline.Limiter = (*Fallback)(nil)
	_ pipeline.Index   = (*Fallback)(nil)
)
