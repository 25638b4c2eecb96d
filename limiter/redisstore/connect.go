package redisstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// Connect returns a client once Redis answers. It tries until ctx ends, or until it is clear that the server is of another
// kind than addr says. where is what the log calls the server: its URL without user and password.
func Connect(ctx context.Context, addr Address, where string, log *slog.Logger) (redis.UniversalClient, error) {
	redis.SetLogger(quiet{}) // each of its messages is an error that some call returns, too
	rdb := addr.client()
	told := ""
	var since time.Time
	for {
		err := ping(ctx, rdb)
		if wrong := addr.mistaken(ctx, rdb, err); wrong != "" {
			_ = rdb.Close()
			return nil, fmt.Errorf("the Redis at %s (SLUICE_REDIS_URL) %s", where, wrong)
		}
		if err == nil {
			warnOfEviction(ctx, rdb, log)
			return rdb, nil
		}
		if ctx.Err() != nil {
			_ = rdb.Close()
			return nil, context.Cause(ctx)
		}
		if text := addr.explain(err); text != told || time.Since(since) > 30*time.Second {
			told, since = text, time.Now()
			log.Warn(fmt.Sprintf("cannot reach Redis at %s (SLUICE_REDIS_URL): %s; trying again", where, text))
		}
		select {
		case <-ctx.Done():
		case <-time.After(500 * time.Millisecond):
		}
	}
}

const startTimeout = 2 * time.Second // of each question at the start

func ping(ctx context.Context, rdb redis.UniversalClient) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	return rdb.Ping(ctx).Err()
}

// mistaken says what waiting can't mend: a server of another kind than SLUICE_REDIS_MODE says. err is the first answer.
func (a Address) mistaken(ctx context.Context, rdb redis.UniversalClient, err error) string {
	said := ""
	if err != nil {
		said = strings.ToLower(err.Error())
	}
	switch {
	case a.Cluster != nil && strings.Contains(said, "cluster support disabled"):
		return "is no Cluster; set SLUICE_REDIS_MODE=single"
	case a.Cluster != nil && strings.Contains(said, "unknown command"):
		return "is no Cluster; set SLUICE_REDIS_MODE=sentinel if it is a Sentinel"
	case a.Sentinel != nil && strings.Contains(said, "unknown command"):
		return "is no Sentinel; set SLUICE_REDIS_MODE=single, or cluster if it is one"
	case a.Single == nil || err != nil:
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	info := rdb.Info(ctx).Val() // empty: not permitted to ask; that is no fault
	switch {
	case sentinel(info):
		return "is a Sentinel; set SLUICE_REDIS_MODE=sentinel and add ?master_name=… to the URL"
	case field(info, "cluster_enabled") == "1":
		return "is a node of a Cluster; set SLUICE_REDIS_MODE=cluster"
	}
	return ""
}

// explain is the error's text, with what helps where the text alone doesn't say it.
func (a Address) explain(err error) string {
	switch {
	case a.Sentinel != nil && errors.Is(err, redis.Nil):
		return fmt.Sprintf("the Sentinels know no master %q; check master_name", a.Sentinel.MasterName)
	case a.Cluster != nil && errors.Is(err, redis.Nil): // in place of the addresses of its nodes
		return "the Cluster doesn't tell the addresses of its nodes; set cluster-preferred-endpoint-type to ip or hostname on each of them"
	case redis.IsAuthError(err) && a.Sentinel != nil:
		return err.Error() + "; check SLUICE_REDIS_USERNAME and SLUICE_REDIS_PASSWORD, and the Sentinels' own in the URL"
	case redis.IsAuthError(err):
		return err.Error() + "; check SLUICE_REDIS_USERNAME and SLUICE_REDIS_PASSWORD"
	}
	return err.Error()
}

// warnOfEviction tells when Redis may throw state away: each lost bucket is a fresh burst, each lost lane a rebuild.
func warnOfEviction(ctx context.Context, rdb redis.UniversalClient, log *slog.Logger) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	// An error is that this user isn't permitted to ask, or that a node is away; neither is a fault here.
	_ = eachMaster(ctx, rdb, func(ctx context.Context, node *redis.Client) error {
		info, err := node.Info(ctx).Result()
		if policy := field(info, "maxmemory_policy"); policy != "" && policy != "noeviction" {
			log.Error("Redis may evict keys, which breaks the limits; set its maxmemory-policy to noeviction",
				"maxmemory-policy", policy, "server", node.Options().Addr)
		}
		return err
	})
}

// eachMaster calls fn for every server that holds keys, in a Cluster for all at the same time.
func eachMaster(ctx context.Context, rdb redis.UniversalClient, fn func(context.Context, *redis.Client) error) error {
	if cluster, ok := rdb.(*redis.ClusterClient); ok {
		return cluster.ForEachMaster(ctx, fn)
	}
	one, _ := rdb.(*redis.Client)
	return fn(ctx, one)
}

// sentinel says whether what INFO answers comes from a Sentinel. Redis and Valkey have the mode under different names.
func sentinel(info string) bool {
	return cmp.Or(field(info, "redis_mode"), field(info, "server_mode")) == "sentinel"
}

// field finds name in what INFO answers.
func field(info, name string) string {
	for line := range strings.SplitSeq(info, "\r\n") {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return value
		}
	}
	return ""
}

type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}
