package redisstore

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"sluice/integration/testenv"
	"sluice/limiter"
	"sluice/limiter/limitertest"
)

func TestLimiterConformsOnOneRedisAndOnACluster(t *testing.T) {
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
		return l
	})
}
