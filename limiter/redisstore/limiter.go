package redisstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"sluice/limiter"
)

// ErrName says that the name of a [Limiter] is that of a pipeline, whose state it must not touch. Choose another.
var ErrName = errors.New("the name belongs to a pipeline")

// LimiterOptions of a [Limiter]. The zero value will do.
type LimiterOptions struct {
	Name     string                // its keys in Redis start with it, so that limiters of different names don't meet; "": limiter
	Log      *slog.Logger          // of damaged or lost state; nil: none
	Registry prometheus.Registerer // for the metrics of the calls; nil: none. Two limiters of one registry need prometheus.WrapRegistererWithPrefix
}

// Limiter is what [limiter.Local] is, with its tokens in Redis: all processes that use the same Redis and name share them. It has
// no lanes, starts nothing that lasts and needs no end. All methods may be called at the same time; calls that come while one is in
// flight go to Redis together. A call is one round trip; the first refusal of a key in a second is two.
//
// A Redis that has lost its data brings no fresh burst, as long as one of the processes that knew them is alive: a key then
// holds what can have been refilled since.
type Limiter struct{ store *Store }

// NewLimiter returns a limiter for keys that share the limits, each with tokens of its own. Redis is first called when
// the first tokens are asked for. The client is best made by [NewClient]; any *redis.Client or *redis.ClusterClient will do, for a
// call whose reply is lost is never repeated. Another client, as a *redis.Ring, is an error that says what to give instead.
func NewLimiter(rdb redis.UniversalClient, limits limiter.Limits, opt LimiterOptions) (*Limiter, error) {
	log := opt.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	s, err := New(rdb, Options{Name: cmp.Or(opt.Name, "limiter"), Limits: limiter.Fixed(limits), Log: log, Registry: opt.Registry})
	if err != nil {
		return nil, err
	}
	s.alone = true
	if s.rdb.cluster != nil { // the keys that other nodes hold are served while one is away
		for _, sh := range s.shards {
			sh.breaker = newBreaker(s.turned)
		}
	}
	return &Limiter{s}, nil
}

// Reserve takes cost tokens, at least 1, of key (1 to [limiter.MaxKey] bytes), now ([limiter.Go]) or at a slot at most
// horizon (1 s at most) ahead ([limiter.Hold]). Else it takes nothing and says how long to wait ([limiter.Park]), or that it
// costs too much ([limiter.Never]). A horizon below 0 only asks. It answers by the end of ctx; when it errs, nobody knows
// whether tokens were taken, but a call that isn't under way by the end of ctx takes none.
func (l *Limiter) Reserve(ctx context.Context, key string, cost int64, horizon time.Duration) (limiter.Decision, error) {
	if key == "" || len(key) > limiter.MaxKey {
		return limiter.Decision{}, fmt.Errorf("a key has 1 to %d bytes, not %d", limiter.MaxKey, len(key))
	}
	if rule := l.store.rule(key, ""); rule.unlimited && ctx.Err() == nil { // nothing to ask
		now := time.Now()
		return limiter.Decision{Verdict: limiter.Go, At: now, Stale: now.Add(rule.allowance()), Remaining: math.MaxInt64}, nil
	}
	d, err := l.store.Reserve(ctx, key, "", max(1, cost), horizon)
	if d.Verdict == limiter.Overflow { // no lane has room
		d.Verdict = limiter.Park
	}
	return d, err
}

// Limits are those of every key. They must not be changed.
func (l *Limiter) Limits(key string) limiter.Limits { return l.store.rule(key, "").ruling.Limits }
