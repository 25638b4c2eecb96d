package redisstore_test

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"

	"sluice/limiter"
	"sluice/limiter/redisstore"
)

// A limiter whose tokens all processes on one Redis share; it needs one at that address.
func ExampleNewLimiter() {
	rdb, _ := redisstore.NewClient(redisstore.Address{Single: &redis.Options{Addr: "127.0.0.1:6379"}})
	limits, _ := limiter.ParseLimits("10/s burst 20")
	shared, _ := redisstore.NewLimiter(rdb, limits, redisstore.LimiterOptions{})

	d, err := shared.Reserve(context.Background(), "alice", 1, 0)
	fmt.Println(err == nil && d.Verdict == limiter.Go)
}
