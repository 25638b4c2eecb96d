package redisstore

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"sluice/integration/testenv"
	"sluice/limiter"
)

func shared(t testing.TB, rdb redis.UniversalClient, limit string) *Limiter {
	t.Helper()
	limits, err := limiter.ParseLimits(limit)
	if err != nil {
		t.Fatal(err)
	}
	l, err := NewLimiter(rdb, limits, LimiterOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// taken takes tokens of a key until it is refused.
func taken(t testing.TB, l *Limiter, key string) (n int, refused limiter.Decision) {
	t.Helper()
	for {
		d, err := l.Reserve(t.Context(), key, 1, 0)
		if err != nil {
			t.Fatal(err)
		}
		if d.Verdict != limiter.Go {
			return n, d
		}
		n++
	}
}

func TestLimitersShareTheirTokens(t *testing.T) {
	t.Parallel()
	rdb := testenv.Redis(t).Client()
	var gone atomic.Int64
	var all sync.WaitGroup
	for range 3 {
		l := shared(t, rdb, "20/h")
		for range 4 {
			all.Go(func() {
				for range 10 {
					d, err := l.Reserve(t.Context(), "k", 1, 0)
					if err != nil {
						t.Error(err)
					}
					if d.Verdict == limiter.Go {
						gone.Add(1)
					} else if d.Verdict != limiter.Park || d.Reason != limiter.Throttled || d.Wait <= 0 || d.Wait > 3*time.Minute {
						t.Errorf("refused with %+v, want to wait for one token, whoever else waits", d)
					}
				}
			})
		}
	}
	all.Wait()
	if gone.Load() != 20 {
		t.Errorf("%d of 120 went, want 20", gone.Load())
	}
	for _, key := range rdb.Keys(t.Context(), "*").Val() {
		if !strings.HasPrefix(key, "limiter:ratelimit:{") && !strings.HasPrefix(key, "limiter:epoch:{") {
			t.Errorf("it wrote %s, too", key)
		}
	}
}

// A refusal must not keep those who come later behind it, as a parked event does.
func TestRefusalLeavesNoTraceInRedis(t *testing.T) {
	t.Parallel()
	rdb := testenv.Redis(t).Client()
	l := shared(t, rdb, "20/s burst 1")
	taken(t, l, "k")
	h := rdb.HGetAll(t.Context(), "limiter:ratelimit:{"+limiter.Tag(limiter.Shard("k"))+"}:k").Val()
	if h["opened"] != "" || h["opening"] != "" || h["tokens"] == "" {
		t.Errorf("after a refusal: %v", h)
	}
}

// A9 on the real clock of Redis.
func TestWhoWaitsAsTheSharedLimiterSaysIsServed(t *testing.T) {
	t.Parallel()
	rdb := testenv.Redis(t).Client()
	for _, limit := range []string{"7/500ms burst 1", "30/s leaky", "20/s burst 2, 5/200ms sliding", "3/100ms window"} {
		t.Run(limit, func(t *testing.T) {
			t.Parallel()
			l := shared(t, rdb, limit)
			for i := range 5 {
				_, d := taken(t, l, limit)
				if d.Wait <= 0 || d.Wait > time.Second {
					t.Fatalf("refused with %+v", d)
				}
				time.Sleep(d.Wait)
				if d, err := l.Reserve(t.Context(), limit, 1, 0); err != nil || d.Verdict != limiter.Go {
					t.Fatalf("round %d: after waiting as told: %+v, %v", i, d, err)
				}
			}
		})
	}
}

// The same calls give the same answers as in one process, but for those that time tells apart.
func TestSharedLimiterAnswersAsLocalDoes(t *testing.T) {
	t.Parallel()
	rdb := testenv.Redis(t).Client()
	const slice = 24*time.Hour/limiter.Slices + time.Minute // of a day: the two clocks cut the day at other moments
	for _, limit := range []string{"5/h, 8/d sliding", "9/h, 6/d sliding", "3/h leaky", "10/h burst 12 window", "0", "unlimited"} {
		limits, err := limiter.ParseLimits(limit)
		if err != nil {
			t.Fatal(err)
		}
		local, err := limiter.NewLocal(limits)
		if err != nil {
			t.Fatal(err)
		}
		l := shared(t, rdb, limit)
		for i, cost := range []int64{1, 2, 3, 0, 1, 9, 99, 1} {
			for _, horizon := range []time.Duration{-1, 0, time.Second} {
				want, _ := local.Reserve(t.Context(), limit, cost, horizon)
				got, err := l.Reserve(t.Context(), limit, cost, horizon)
				if err != nil {
					t.Fatal(err)
				}
				if got.Verdict != want.Verdict || got.Reason != want.Reason || got.Remaining != want.Remaining ||
					got.Remaining > 0 && got.Scarcest != want.Scarcest || (got.Wait-want.Wait).Abs() > slice {
					t.Errorf("%s, call %d of %d: %+v, want %+v", limit, i, cost, got, want)
				}
			}
		}
		if l.Limits("k").String() != limits.String() {
			t.Errorf("limits %v, want %v", l.Limits("k"), limits)
		}
	}
	if d, err := shared(t, rdb, "unlimited").Reserve(t.Context(), "k", 1, 0); err != nil || d.Remaining != math.MaxInt64 {
		t.Errorf("unlimited: %+v, %v", d, err)
	}
}

func TestLossOfRedisGivesNoFreshBurst(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	l, other := shared(t, server.Client(), "20/h burst 10"), shared(t, server.Client(), "20/h burst 10")
	if n, _ := taken(t, l, "k"); n != 10 {
		t.Fatalf("%d went at first, want the burst of 10", n)
	}
	taken(t, other, "k")
	server.Client().FlushAll(t.Context())
	for key := range 40 { // of all shards, also those that weren't used before
		if n, _ := taken(t, other, fmt.Sprint(key)); n != 0 {
			t.Fatalf("key %d: %d went after the loss, want none", key, n)
		}
	}
	if n, _ := taken(t, l, "k"); n != 0 {
		t.Errorf("%d went after the loss, want none", n)
	}
	if n, _ := taken(t, shared(t, server.Client(), "20/h burst 10"), "new"); n != 0 {
		t.Errorf("%d went in a process that started after the loss, want none", n)
	}
}

func TestLimiterKeepsAwayFromThePipelinesState(t *testing.T) {
	t.Parallel()
	r := newRig(t, "10/s")
	r.ask("k", 1, 0)
	limits := r.opt.Limits.Resolve("", "").Limits
	l, err := NewLimiter(r.rdb, limits, LimiterOptions{Name: "sluice"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Reserve(t.Context(), "k", 1, 0); !errors.Is(err, ErrName) {
		t.Errorf("%v, want ErrName", err)
	}
	if a := r.ask("k", 1, 0); a.granted != 1 {
		t.Errorf("the pipeline afterwards: %+v", a)
	}
	if n, _ := taken(t, shared(t, r.rdb, "3/h"), "k"); n != 3 {
		t.Errorf("%d under another name, want 3", n)
	}
}

func TestLimiterEndsWithItsContextAndTellsOfRedisAway(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	l := shared(t, server.Client(), "10/h")
	if _, err := l.Reserve(t.Context(), "k", 1, 0); err != nil {
		t.Fatal(err)
	}
	server.Pause()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	begin := time.Now()
	if _, err := l.Reserve(ctx, "k", 1, 0); !errors.Is(err, context.DeadlineExceeded) || time.Since(begin) > 500*time.Millisecond {
		t.Errorf("a Redis that hangs: %v after %v", err, time.Since(begin))
	}
	server.Resume()
	for _, key := range []string{"", strings.Repeat("k", limiter.MaxKey+1)} {
		if _, err := l.Reserve(t.Context(), key, 1, 0); err == nil {
			t.Errorf("a key of %d bytes should be refused", len(key))
		}
	}
	if _, err := NewLimiter(server.Client(), limiter.Limits{{Events: -1}}, LimiterOptions{}); err == nil {
		t.Error("limits out of range should be refused")
	}
}
