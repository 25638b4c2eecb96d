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
}
