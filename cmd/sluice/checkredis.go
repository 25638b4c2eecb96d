package main

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"sluice/limiter/redisstore"
)

// clockOff is a difference between the clocks that no machine with NTP has.
const clockOff = 500 * time.Millisecond

func checkRedis(ctx context.Context, cfg Config, f *findings) {
	const about = "Redis"
	addr, err := cfg.Redis.address(slog.New(slog.DiscardHandler))
	if err != nil {
		f.add(fault, about, reason(err), "")
		return
	}
	rdb, err := redisstore.Reach(ctx, addr, cfg.Redis.URL.String())
	if err != nil {
		f.add(fault, about, reason(err), "")
		return
	}
	defer func() { _ = rdb.Close() }()
	facts, err := redisstore.Examine(ctx, rdb, cfg.Name)
	for _, s := range facts.Servers {
		checkRedisServer(s, f)
	}
	switch {
	case err != nil:
		f.add(fault, about, reason(err), "a worker needs a Redis that takes writes")
		return
	case len(facts.Denied) > 0:
		f.add(fault, "Redis rights", "not permitted: "+strings.Join(facts.Denied, ", "), "give the user the line of deploy/acl/redis.acl")
		return
	}
	f.add(fine, "Redis rights", "this user may do what a worker needs", "")
	what := fmt.Sprintf("Redis' clock is %s ahead of this machine's, to %s", facts.Ahead.Round(time.Millisecond), facts.Within.Round(time.Millisecond))
	if facts.Ahead.Abs() > clockOff+facts.Within {
		f.add(warning, "clocks", what, "limits and the ages of events go by Redis' clock, webhook-timestamp by the worker's: run NTP on both")
	} else {
		f.add(fine, "clocks", what, "")
	}
}

func checkRedisServer(s redisstore.ServerFacts, f *findings) {
	about := "Redis " + s.Addr
	switch {
	case s.Version == "":
		f.add(warning, about, "doesn't tell its version and settings", "permit INFO to see whether it may evict keys")
		return
	case s.Eviction != "noeviction":
		f.add(fault, about, "may evict keys: maxmemory-policy is "+s.Eviction, "set it to noeviction: each lost bucket is a burst beyond the limit")
	default:
		f.add(fine, about, "version "+s.Version+", evicts nothing", "")
	}
	if !s.Persistence {
		f.add(warning, about, "keeps no append-only file", "set appendonly yes: after a restart each bucket starts empty and the index is rebuilt")
	}
}
