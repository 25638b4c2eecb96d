package main

import (
	"time"

	"sluice/limiter/redisstore"
)

// OutageConfig is what becomes of events while Redis is away.
type OutageConfig struct {
	Policy redisstore.Policy
	Grace  time.Duration // then Closed; 0: never
}

func outagePart(r *reader, env *environment, cfg *Config) {
	policies := make([]string, len(redisstore.Policies))
	for i, p := range redisstore.Policies {
		policies[i] = string(p)
	}
	cfg.Outage = OutageConfig{
		Policy: redisstore.Policy(r.oneOf("ON_REDIS_DOWN", env.OnRedisDown, policies...)),
		Grace:  r.duration("ON_REDIS_DOWN_GRACE", env.OnRedisDownGrace, 0),
	}
	switch {
	case cfg.KeyConcurrency > 0 && cfg.Outage.Policy == redisstore.Open:
		r.faultf("ON_REDIS_DOWN", string(redisstore.Open), "can't be with SLUICE_KEY_CONCURRENCY: no pushes are counted then; use closed or local")
	case cfg.KeyConcurrency == 1:
		// Lanes sleep in any case. An event that is acked without a place in the index would lose its place in the order.
		cfg.Outage.Policy = redisstore.Closed
	}
}
