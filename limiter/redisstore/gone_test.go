package redisstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"sluice/integration/testenv"
	"sluice/limiter"
)

// cancelling is a hook that ends a context as soon as Redis has answered so many scripts.
type cancelling struct {
	after  atomic.Int64
	cancel context.CancelFunc
}

func (c *cancelling) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c *cancelling) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (c *cancelling) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if err == nil && (cmd.Name() == "eval" || cmd.Name() == "evalsha") && c.after.Add(-1) == 0 {
			c.cancel()
		}
		return err
	}
}

// waitUntilUnderWay waits until the only call of the batcher is.
func waitUntilUnderWay[Q, R any](t *testing.T, b *batcher[Q, R]) {
	t.Helper()
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(time.Millisecond) {
		b.mu.Lock()
		sent := b.running && len(b.waiting) == 0
		b.mu.Unlock()
		if sent {
			return
		}
		if time.Now().After(end) {
			t.Fatal("no call is made")
		}
	}
}

// Clients that give up during a hang come again after it, and must not find that they were charged.
func TestWhoGivesUpWhileRedisHangsTakesNoTokens(t *testing.T) {
	t.Parallel()
	for _, limit := range []string{"20/h", "20/h, 30/d"} { // by take, and by reserve
		t.Run(limit, func(t *testing.T) {
			t.Parallel()
			server := testenv.Redis(t)
			l := shared(t, server.Client(), limit)
			if _, err := l.Reserve(t.Context(), "k", 1, -1); err != nil {
				t.Fatal(err)
			}
			server.Pause()
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			defer cancel()
			var all sync.WaitGroup
			give := func() {
				all.Go(func() {
					if d, err := l.Reserve(ctx, "k", 1, 0); !errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("%+v, %v, want the end of the context", d, err)
					}
				})
			}
			give()
			b := l.store.shard("k").bundle
			if limit == "20/h" {
				waitUntilUnderWay(t, b.take)
			} else {
				waitUntilUnderWay(t, b.reserve)
			}
			for range 60 {
				give()
			}
			all.Wait()
			server.Resume()
			if n, _ := taken(t, l, "k"); n < 19 {
				t.Errorf("%d of 20 tokens are left, want all but that of the one call that was under way", n)
			}
		})
	}
}

func TestCallerWhoseContextHasEndedTakesNoToken(t *testing.T) {
	t.Parallel()
	rdb := testenv.Redis(t).Client()
	for _, limit := range []string{"20/h", "20/h, 30/d", "20/h sliding", "unlimited"} {
		l := shared(t, rdb, limit)
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		for range 30 {
			if d, err := l.Reserve(gone, limit, 1, 0); !errors.Is(err, context.Canceled) {
				t.Fatalf("%s: %+v, %v, want the end of the context", limit, d, err)
			}
		}
		if limit == "unlimited" {
			continue
		}
		if n, _ := taken(t, l, limit); n != 20 {
			t.Errorf("%s: %d tokens are left, want all 20", limit, n)
		}
	}
}

// The events of many keys that come at once go in several calls.
func TestBatchGoesOnOnlyForThoseWhoStillWait(t *testing.T) {
	t.Parallel()
	for _, limit := range []string{"20/h", "20/h, 30/d"} { // by take, and by reserve
		r := newRig(t, limit)
		b := r.bundles[0]
		ctx, cancel := context.WithCancel(t.Context())
		hook := &cancelling{cancel: cancel}
		hook.after.Store(1)
		r.rdb.AddHook(hook)
		var batch []awaited
		for i := 0; len(batch) < maxKeys+40; i++ {
			key := fmt.Sprint(i)
			if r.shard(key).bundle == b {
				batch = append(batch, awaited{reservation{key, r.rule(key, ""), 1, 0}, ctx})
			}
		}
		last := batch[len(batch)-1].key // of the second call, like those before it
		batch = append(batch, awaited{reservation{last, r.rule(last, ""), 1, 0}, t.Context()})
		run := b.runReserve
		if batch[0].rule.plain {
			run = b.runTake
		}
		out, err := run(batch)
		if err != nil {
			t.Fatal(err)
		}
		for i, o := range out {
			switch gone := i >= maxKeys && i < len(out)-1; {
			case gone && !errors.Is(o.err, context.Canceled):
				t.Errorf("%s: caller %d of the second call, who is gone: %+v", limit, i, o)
			case !gone && (o.err != nil || o.open || o.Verdict != limiter.Go):
				t.Errorf("%s: caller %d, who was there: %+v", limit, i, o)
			}
		}
		if n := len(r.rdb.Keys(t.Context(), "ratelimit:*").Val()); n != maxKeys+1 {
			t.Errorf("%s: tokens of %d keys were taken, want %d", limit, n, maxKeys+1)
		}
	}
}

func TestLimiterTakesNothingForWhoIsGoneWhenItHasBegun(t *testing.T) {
	t.Parallel()
	rdb := testenv.Redis(t).Client()
	l := shared(t, rdb, "20/h")
	ctx, cancel := context.WithCancel(t.Context())
	hook := &cancelling{cancel: cancel}
	hook.after.Store(1) // which begins the state
	rdb.AddHook(hook)
	if d, err := l.Reserve(ctx, "k", 1, 0); !errors.Is(err, context.Canceled) {
		t.Fatalf("%+v, %v, want the end of the context", d, err)
	}
	if n, _ := taken(t, l, "k"); n != 20 {
		t.Errorf("%d tokens are left, want all 20", n)
	}
}
