package redisstore

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"sluice/integration/testenv"
	"sluice/limiter"
	"sluice/limiter/limitertest"
)

func TestLimiterConformsOnOneRedisAndOnACluster(t *testing.T) {
	t.Parallel()
	t.Run("single", func(t *testing.T) { limiterConforms(t, testenv.Redis(t).Client()) })
	t.Run("cluster", func(t *testing.T) {
		opt, err := redis.ParseClusterURL(testenv.RedisCluster(t).URL())
		if err != nil {
			t.Fatal(err)
		}
		rdb := Address{Cluster: opt}.client()
		t.Cleanup(func() { _ = rdb.Close() })
		limiterConforms(t, rdb)
	})
}

func limiterConforms(t *testing.T, rdb redis.UniversalClient) {
	var names atomic.Int64
	limitertest.Run(t, func(t *testing.T, limits limiter.Limits) limitertest.Limiter {
		l, err := NewLimiter(rdb, limits, LimiterOptions{Name: fmt.Sprintf("suite%d", names.Add(1))})
		if err != nil {
			t.Fatal(err)
		}
		return stepping{l}
	})
}

// stepping goes by a clock that stands still from the first step on, instead of that of Redis.
type stepping struct{ *Limiter }

func (l stepping) Step(by time.Duration) {
	l.store.now = cmp.Or(l.store.now, time.Now().UnixMicro()) + by.Microseconds()
}

// A worker that is the only live one lets pass without Redis what the limits allow. Its shares begin empty, so the
// outage has lasted for longer than any of the limits counts here.
func TestFallbackConformsForTheOnlyWorker(t *testing.T) {
	t.Parallel()
	limitertest.Run(t, func(t *testing.T, limits limiter.Limits) limitertest.Limiter {
		s := &standIn{broken: true, away: true, workers: 1}
		f := newFallback(s, FallbackOptions{Policy: Local, Fleet: s}, limiter.Fixed(limits), "w0", slog.New(slog.DiscardHandler), func(Policy) {})
		f.leave()
		f.shares.start = f.shares.start.Add(-100 * time.Hour)
		return tierless{f}
	})
}

// tierless asks for events that name no tier.
type tierless struct{ *Fallback }

func (f tierless) Reserve(ctx context.Context, key string, cost int64, horizon time.Duration) (limiter.Decision, error) {
	return f.Fallback.Reserve(ctx, key, "", cost, horizon)
}
