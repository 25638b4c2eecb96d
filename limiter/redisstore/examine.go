package redisstore

import (
	"context"
	"crypto/rand"
	_ "embed"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"sluice/limiter"
)

//go:embed probe.lua
var probeLua string

var probeScript = script(probeLua)

// Facts are what [Examine] finds out about a Redis.
type Facts struct {
	Servers []ServerFacts
	Ahead   time.Duration // the clock of Redis before this machine's, to half the round trip; below 0: behind
	Within  time.Duration // half the round trip
	Denied  []string      // commands that this user may not use and a worker needs
}

// ServerFacts are what a server tells of itself; empty where this user may not ask.
type ServerFacts struct {
	Addr        string
	Version     string
	Eviction    string // maxmemory-policy
	Persistence bool   // it writes an append-only file
}

// Reach makes a client and asks Redis once; the error says what to do. See [Connect] for where.
func Reach(ctx context.Context, addr Address, where string) (redis.UniversalClient, error) {
	redis.SetLogger(quiet{})
	rdb := addr.client()
	err := ping(ctx, rdb)
	if wrong := addr.mistaken(ctx, rdb, err); wrong != "" {
		_ = rdb.Close()
		return nil, fmt.Errorf("the Redis at %s (SLUICE_REDIS_URL) %s", where, wrong)
	}
	if err != nil {
		_ = rdb.Close()
		return nil, fmt.Errorf("cannot reach Redis at %s (SLUICE_REDIS_URL): %s", where, addr.explain(err))
	}
	return rdb, nil
}

// Examine looks at a Redis as a worker of the pipeline called name would use it. It writes only keys of its own, which
// expire within seconds.
func Examine(ctx context.Context, rdb redis.UniversalClient, name string) (Facts, error) {
	var facts Facts
	client, err := onceOf(rdb)
	if err != nil {
		return facts, err
	}
	facts.Servers = examineServers(ctx, rdb)

	prefix := ""
	if name != "sluice" {
		prefix = name + ":"
	}
	tag := "{" + limiter.Tag(0) + "}:probe-" + rand.Text()
	denied, err := probeScript.Run(ctx, client, []string{prefix + "ratelimit:" + tag, prefix + "lane:" + tag}).Slice()
	if redis.IsPermissionError(err) {
		facts.Denied = []string{strings.TrimSpace(err.Error())}
		return facts, nil
	}
	if err != nil {
		return facts, fmt.Errorf("redis: %w", err)
	}
	for _, name := range denied[1:] {
		facts.Denied = append(facts.Denied, fmt.Sprint(name))
	}
	if client.cluster != nil && deniedAsking(ctx, client.cluster) {
		facts.Denied = append(facts.Denied, "ASKING")
	}

	sent := time.Now()
	now, err := rdb.Time(ctx).Result()
	if err != nil {
		return facts, fmt.Errorf("redis: asking for the time: %w", err)
	}
	facts.Within = time.Since(sent) / 2
	facts.Ahead = now.Sub(sent.Add(facts.Within))
	return facts, nil
}

// deniedAsking says whether a node of a Cluster refuses what its client has to say while a slot moves. It is said for the next
// command of its connection, here one without keys.
func deniedAsking(ctx context.Context, cluster *redis.ClusterClient) bool {
	var denied atomic.Bool
	_ = eachMaster(ctx, cluster, func(ctx context.Context, node *redis.Client) error {
		said, _ := node.Pipelined(ctx, func(p redis.Pipeliner) error {
			p.Do(ctx, "asking")
			p.Ping(ctx)
			return nil
		})
		if redis.IsPermissionError(said[0].Err()) {
			denied.Store(true)
		}
		return nil
	})
	return denied.Load()
}

func examineServers(ctx context.Context, rdb redis.UniversalClient) (all []ServerFacts) {
	found := make(chan ServerFacts, 1024) // a Cluster's masters are asked at the same time
	_ = eachMaster(ctx, rdb, func(ctx context.Context, node *redis.Client) error {
		info := node.Info(ctx).Val() // empty: not permitted to ask, which is no fault
		select {
		case found <- ServerFacts{
			Addr: node.Options().Addr, Version: field(info, "redis_version"), Eviction: field(info, "maxmemory_policy"),
			Persistence: field(info, "aof_enabled") == "1",
		}:
		default:
		}
		return nil
	})
	for len(found) > 0 {
		all = append(all, <-found)
	}
	return all
}
