package redisstore

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"sluice/limiter"
	"sluice/pipeline"
)

func rearmed(t *testing.T, s *Store, affected func(string) bool) {
	t.Helper()
	if err := s.Rearm(t.Context(), affected); err != nil {
		t.Fatal(err)
	}
}

// settleAll ends a lease whose events are all delivered.
func settleAll(key string, l pipeline.Lease) pipeline.SettleRequest {
	r := pipeline.SettleRequest{Key: key, Token: l.Token, Release: true}
	for _, e := range l.Events {
		r.Events = append(r.Events, done(e))
	}
	return r
}

func anyKey(string) bool { return true }

// claimed are the keys that are due now.
func (r *rig) claimed() map[string]bool {
	r.t.Helper()
	for _, sh := range r.shards {
		sh.due(0)
	}
	keys, _, err := r.Claim(r.t.Context(), 16*maxKeys)
	if err != nil {
		r.t.Fatal(err)
	}
	got := map[string]bool{}
	for _, k := range keys {
		got[k] = true
	}
	return got
}

func TestRaisedLimitFreesWaitingKeysAtOnce(t *testing.T) {
	r, limits := newLimitedRig(t, "1/h")
	for _, key := range []string{"raised", "other"} {
		r.park(key, 1, 2, 3)
		l := leaseOf(t, r.Store, key, 0, 9)
		if _, err := settle(t, r.Store, settleAll(key, l)); err != nil || len(l.Events) != 1 {
			t.Fatal(err, l)
		}
	}
	r.at(2_000_000)
	if got := r.claimed(); len(got) != 0 {
		t.Fatalf("%v are due", got)
	}
	limits.set("raised", "100/s")
	rearmed(t, r.Store, func(key string) bool { return key == "raised" })
	if got := r.claimed(); len(got) != 1 || !got["raised"] {
		t.Errorf("%v are due, want the key whose limit was raised", got)
	}
	if l := leaseOf(t, r.Store, "raised", 0, 9); len(l.Events) != 2 {
		t.Errorf("%d of it are leased, want 2", len(l.Events))
	}
}

func TestResumedKeysGoOnAtOnceAndPausedOnesNot(t *testing.T) {
	r, limits := newLimitedRig(t, "100/s burst 2")
	r.park("k", 1, 2, 3, 4)
	l := leaseOf(t, r.Store, "k", 0, 1)
	limits.setAll("0")
	rearmed(t, r.Store, anyKey)
	if next := leaseOf(t, r.Store, "k", l.Token, 9); len(next.Events) != 0 {
		t.Errorf("%d leased while it is paused", len(next.Events))
	}
	if info, err := settle(t, r.Store, settleAll("k", l)); err != nil || info.Next < time.Minute {
		t.Errorf("the next look is in %s, %v; want a minute", info.Next, err)
	}
	limits.setAll("100/s burst 2")
	rearmed(t, r.Store, anyKey)
	if got := r.claimed(); !got["k"] {
		t.Error("a key that is resumed isn't due")
	}
	if l := leaseOf(t, r.Store, "k", 0, 9); len(l.Events) != 3 {
		t.Errorf("%d are leased, want 3", len(l.Events))
	}
}

func TestManyWaitingKeysAreRearmedSoonAndOnce(t *testing.T) {
	r, _ := newLimitedRig(t, "1/h")
	const all = 100_000
	pipe := r.rdb.Pipeline()
	for i := range all {
		key := fmt.Sprint("user ", i)
		at := start + 30_000_000 + int64(i/700) // many of one time
		pipe.ZAdd(t.Context(), r.shard(key).dueKey, redis.Z{Score: float64(at), Member: limiter.EncodeKey(key)})
	}
	soon := fmt.Sprint("user ", all)
	pipe.ZAdd(t.Context(), r.shard(soon).dueKey, redis.Z{Score: float64(start + 900_000), Member: limiter.EncodeKey(soon)})
	if _, err := pipe.Exec(t.Context()); err != nil {
		t.Fatal(err)
	}
	spared := func(key string) bool { return strings.HasSuffix(key, "77") }
	due := func() (n, spare int) {
		for _, sh := range r.shards {
			for _, z := range r.rdb.ZRangeWithScores(t.Context(), sh.dueKey, 0, -1).Val() {
				key, _ := limiter.DecodeKey(z.Member.(string))
				switch {
				case int64(z.Score) == start:
					n++
				case spared(key):
					spare++
				}
			}
		}
		return n, spare
	}
	begin := time.Now()
	rearmed(t, r.Store, func(key string) bool { return !spared(key) })
	took := time.Since(begin)
	t.Logf("%d waiting keys in %s", all, took)
	if took > 5*time.Second {
		t.Errorf("%d waiting keys took %s, want less than 5 s", all, took)
	}
	if n, spare := due(); n != all*99/100 || spare != all/100 {
		t.Errorf("%d are due now and %d of the spared ones later, want %d and %d", n, spare, all*99/100, all/100)
	}
	r.rdb.ConfigResetStat(t.Context())
	rearmed(t, r.Store, func(key string) bool { return !spared(key) })
	if stats := r.rdb.Info(t.Context(), "commandstats").Val(); strings.Contains(stats, "cmdstat_zadd:") {
		t.Error("what is due was moved again")
	}
}

// Lanes that fall due and have to wait once more all the time must not keep a worker at it for ever.
func TestRearmEndsAlthoughKeysWaitOnceMore(t *testing.T) {
	t.Parallel()
	r, _ := newLimitedRig(t, "1/h")
	const keys = 20_000
	later := func(key string) {
		r.rdb.ZAdd(t.Context(), r.shard(key).dueKey, redis.Z{Score: float64(start + 60_000_000), Member: limiter.EncodeKey(key)})
	}
	for i := range keys {
		later(fmt.Sprint(i))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	var asked atomic.Int64
	err := r.Rearm(ctx, func(string) bool {
		if asked.Add(1)%100 == 0 {
			for key := range r.claimed() {
				later(key)
			}
		}
		return true
	})
	if err != nil {
		t.Error(err)
	}
	if n := asked.Load(); n > keys {
		t.Errorf("%d keys were moved, want each of %d once", n, keys)
	}
}

// A call that was made by the old limits says last when its lane is due.
func TestRearmWaitsForCallsByTheOldLimits(t *testing.T) {
	r, _ := newLimitedRig(t, "1/h")
	r.park("k", 1)
	sh := r.shard("k")
	sh.bundle.ruling.RLock()
	done := make(chan struct{})
	go func() {
		defer close(done)
		rearmed(t, r.Store, anyKey)
	}()
	r.rdb.ZAdd(t.Context(), sh.dueKey, redis.Z{Score: float64(start + 60_000_000), Member: "k"})
	select {
	case <-done:
		t.Error("it didn't wait")
	case <-time.After(50 * time.Millisecond):
	}
	sh.bundle.ruling.RUnlock()
	<-done
	if at, _ := r.dueAt("k"); at != 0 {
		t.Errorf("due in %d us", at)
	}
}

func TestRearmTellsOfAStateThatIsNotKnown(t *testing.T) {
	r, _ := newLimitedRig(t, "1/h")
	r.shards[5].lose(r.shards[5].epoch)
	if err := r.Rearm(t.Context(), anyKey); err == nil {
		t.Error("a shard that isn't known was rearmed")
	}
}
