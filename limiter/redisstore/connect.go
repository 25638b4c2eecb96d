package redisstore

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// Connect returns a client with the options that the store relies on, once Redis answers. It tries until ctx ends. where
// is what the log calls the server: its URL without user and password.
func Connect(ctx context.Context, opt *redis.Options, where string, log *slog.Logger) (*redis.Client, error) {
	redis.SetLogger(quiet{}) // each of its messages is an error that some call returns, too
	tune(opt)
	rdb := redis.NewClient(opt)
	told := ""
	var since time.Time
	for {
		err := ping(ctx, rdb)
		if err == nil {
			warnOfEviction(ctx, rdb, log)
			return rdb, nil
		}
		if ctx.Err() != nil {
			_ = rdb.Close()
			return nil, context.Cause(ctx)
		}
		if text := err.Error(); text != told || time.Since(since) > 30*time.Second {
			told, since = text, time.Now()
			log.Warn(fmt.Sprintf("cannot reach Redis at %s (SLUICE_REDIS_URL): %s; trying again", where, text))
		}
		select {
		case <-ctx.Done():
		case <-time.After(500 * time.Millisecond):
		}
	}
}

// tune sets what correctness needs. By default go-redis runs a script up to four times when a reply is lost, and ignores
// the deadline of a call.
func tune(opt *redis.Options) {
	opt.MaxRetries = -1
	opt.DialerRetries = 1
	opt.ContextTimeoutEnabled = true
	opt.DialTimeout = time.Second
	opt.ReadTimeout = callTimeout
	opt.WriteTimeout = callTimeout
	opt.PoolSize = 32
	opt.PoolTimeout = callTimeout
	opt.ConnMaxLifetime = 30 * time.Minute
	opt.DisableIdentity = true
	opt.Protocol = 2
	opt.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
}

func ping(ctx context.Context, rdb *redis.Client) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	return rdb.Ping(ctx).Err()
}

// warnOfEviction tells when Redis may throw state away: each lost bucket is a fresh burst, each lost lane a rebuild.
func warnOfEviction(ctx context.Context, rdb *redis.Client, log *slog.Logger) {
	info, err := rdb.Info(ctx, "memory").Result()
	if err != nil {
		return // not permitted to ask; that is no fault
	}
	for line := range strings.SplitSeq(info, "\r\n") {
		if policy, ok := strings.CutPrefix(line, "maxmemory_policy:"); ok && policy != "noeviction" {
			log.Error("Redis may evict keys, which breaks the limits; set its maxmemory-policy to noeviction", "maxmemory-policy", policy)
		}
	}
}

type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}
