package redisstore

import (
	"strconv"
	"testing"
	"time"

	"sluice/limiter"
	"sluice/pipeline"
)

// expire does to a key, on the clock of the test, what Redis would have done by now.
func (r *rig) expire(key string) {
	r.t.Helper()
	hash := r.shard(key).hashKey(key)
	exp, err := strconv.ParseInt(r.rdb.HGet(r.t.Context(), hash, "exp").Val(), 10, 64)
	if err != nil {
		r.t.Fatal(err)
	}
	if set := r.rdb.PTTL(r.t.Context(), hash).Val(); set < 0 {
		r.t.Fatalf("the key %s has no expiry", key)
	}
	if exp <= r.now {
		r.rdb.Del(r.t.Context(), hash)
	}
}

const day = int64(24*time.Hour) / int64(time.Microsecond)

// What was spent counts for as long as it takes to come back, which for slow limits is longer than anybody thinks of.
func TestSlowLimitsRememberWhatWasSpent(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]struct{ days, pass int64 }{
		"10/365d":                 {91, 2},
		"1/d burst 300":           {91, 91},
		"10/365d, 20/365d window": {91, 2}, // by reserve
		"10/365d window":          {364, 0},
		"10/365d sliding":         {364, 0},
		"1/365d leaky":            {364, 0},
		"1/365d burst 100":        {99 * 365, 99},
	} {
		r := newRig(t, text)
		burst := r.rule("k", "").ruling.Limits[0].Burst
		if a := r.ask("k", burst+1, 0); a.granted != burst {
			t.Fatalf("%s: %d went at first, want %d", text, a.granted, burst)
		}
		r.at(want.days * day)
		r.expire("k")
		if a := r.ask("k", burst, 0); a.granted != want.pass {
			t.Errorf("%s: %d go after %d days, want %d", text, a.granted, want.days, want.pass)
		}
	}
}

// A lane keeps its key for as long as events may wait; that must not cut the limit's own time short.
func TestLaneCutsNoSlowLimitsMemoryShort(t *testing.T) {
	t.Parallel()
	r := newRig(t, "1/365d burst 50")
	key := keysOf(r.shard("k"), 1)[0]
	if a := r.ask(key, 51, 0); a.granted != 50 {
		t.Fatalf("%d went at first, want 50", a.granted)
	}
	_, err := r.Park(t.Context(), pipeline.ParkRequest{Key: key, Entry: pipeline.Entry{BodyID: pipeline.BodyID{Seq: 1}, Order: 1, Cost: 3}}) // has a price that is kept
	if err != nil {
		t.Fatal(err)
	}
	r.at(10 * 365 * day)
	r.expire(key)
	a := r.reserved(group{reservation: reservation{key, r.rule(key, ""), 1, -1}, members: make([]int, 1)})[0]
	if a.tokens != 10 {
		t.Errorf("after 10 years a key with a lane has %d tokens, want 10", a.tokens)
	}
	mend := r.shard(key)
	table := []any{key, "cost", 0, 2, 5} // corrects what its events cost
	if _, err := mend.run(mendScript, append([]string{mend.epochKey, mend.dueKey}, mend.laneKeys(nil, key)...), table); err != nil {
		t.Fatal(err)
	}
	r.at(20 * 365 * day)
	r.expire(key)
	if a := r.reserved(group{reservation: reservation{key, r.rule(key, ""), 1, -1}, members: make([]int, 1)})[0]; a.tokens != 20 {
		t.Errorf("after 20 years, and mended after 10, it has %d tokens, want 20", a.tokens)
	}
}

// A limit that would have to be remembered for longer than its state is kept is refused where it is written.
func TestLimitThatCannotBeRememberedIsRefused(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"1/365d burst 101", "1/d burst 40000", "1/365d burst 101 window", "10/s, 1/30d burst 1300"} {
		if l, err := limiter.ParseLimits(text); err == nil {
			t.Errorf("%s is read as %v", text, l)
		}
	}
}

// The end of a lane lets its key go, but not what is known of limits that don't rule at that time.
func TestLaneThatEndsLeavesWhatOtherLimitsRemember(t *testing.T) {
	t.Parallel()
	r := newRig(t, "10/20d")
	slow := *r.rule("k", "")
	if a := r.ask("k", 11, 0); a.granted != 10 {
		t.Fatalf("%d went at first, want 10", a.granted)
	}
	quick := *r.worker("two", "100/s window").rule("k", "") // one of its own kind would take its state over
	quick.ruling = slow.ruling
	lane := func(key string, seq uint64) {
		t.Helper()
		if _, err := r.Park(t.Context(), pipeline.ParkRequest{Key: key, Entry: pipeline.Entry{BodyID: pipeline.BodyID{Seq: seq}, Order: seq, Cost: 5}}); err != nil {
			t.Fatal(err)
		}
		if r.hash(key)["extra"] == "" {
			t.Fatal("the price of what waits isn't kept")
		}
		l := leaseOf(t, r.Store, key, 0, 10)
		if len(l.Events) != 1 {
			t.Fatalf("leased %+v", l)
		}
		if _, err := r.Settle(t.Context(), pipeline.SettleRequest{
			Key: key, Token: l.Token, Release: true, Events: []pipeline.Settlement{done(l.Events[0])},
		}); err != nil {
			t.Fatal(err)
		}
	}
	r.setRule(&quick)
	r.at(1_000_000)
	lane("k", 1)
	lane("new", 2)
	r.at(2 * day)
	r.expire("k")
	r.setRule(&slow)
	if a := r.ask("k", 10, 0); a.granted != 1 {
		t.Errorf("%d go after 2 days, want 1: all was spent", a.granted)
	}
	if ttl := r.rdb.PTTL(t.Context(), r.shard("new").hashKey("new")).Val(); ttl > time.Hour {
		t.Errorf("a key that only the quick limit knows is kept for %s after its lane", ttl)
	}
}
