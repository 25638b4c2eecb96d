package redisstore

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"sluice/pipeline"
)

// dump is all that is stored, and when it expires.
func (r *rig) dump() map[string]string {
	r.t.Helper()
	all := map[string]string{}
	for _, key := range r.rdb.Keys(r.t.Context(), "*").Val() {
		all[key] = fmt.Sprintf("%q until %s", r.rdb.Dump(r.t.Context(), key).Val(), r.rdb.PExpireTime(r.t.Context(), key).Val())
	}
	return all
}

func (r *rig) levels(keys ...string) []Level {
	r.t.Helper()
	subjects := make([]Subject, len(keys))
	for i, key := range keys {
		subjects[i].Key = key
	}
	levels, err := r.Levels(r.t.Context(), subjects)
	if err != nil {
		r.t.Fatal(err)
	}
	return levels
}

func TestLevelsTellWhatKeysHaveLeftAndWhatWaits(t *testing.T) {
	r := newRig(t, "10/s burst 20, 100/d sliding")
	r.ask("busy", 15, 0)
	r.ask("indebted", 25, int64(time.Second/time.Microsecond))
	r.park("waiting", 1, 2, 3)
	leaseOf(t, r.Store, "waiting", 0, 2)
	r.park("asleep", 4)
	l := leaseOf(t, r.Store, "asleep", 0, 1)
	if _, err := settle(t, r.Store, pipeline.SettleRequest{Key: "asleep", Token: l.Token, Sleep: time.Minute}); err != nil {
		t.Fatal(err)
	}
	r.rdb.HSet(t.Context(), r.shard("damaged").keys(nil, "damaged")[0], "tokens", "many")
	r.at(200_000)
	before := r.dump()
	tests := []struct {
		key     string
		tokens  []int64
		waiting int64
		cooling time.Duration
		damaged bool
	}{
		{key: "new", tokens: []int64{20, 100}},
		{key: "busy", tokens: []int64{7, 85}},
		{key: "indebted", tokens: []int64{-3, 75}},
		{key: "waiting", tokens: []int64{20, 98}, waiting: 3},
		{key: "asleep", tokens: []int64{20, 99}, waiting: 1, cooling: time.Minute - 200*time.Millisecond},
		{key: "damaged", damaged: true},
		{key: "\xff :\n", tokens: []int64{20, 100}},
	}
	var keys []string
	for _, test := range tests {
		keys = append(keys, test.key)
	}
	for i, got := range r.levels(keys...) {
		want := tests[i]
		if !slices.Equal(got.Tokens, want.tokens) || got.Waiting != want.waiting || got.Cooling != want.cooling || got.Damaged != want.damaged {
			t.Errorf("%q: %+v, want %+v", want.key, got, want)
		}
		if len(got.Limits) != 2 {
			t.Errorf("%q: it has the limits %v", want.key, got.Limits)
		}
	}
	if !maps.Equal(before, r.dump()) {
		t.Error("looking changed something")
	}
	if left, counted := (Level{Tokens: []int64{7, -2, 3}}).Left(); left != -2 || !counted {
		t.Errorf("the fewest tokens are %d, %v", left, counted)
	}
}

func TestLevelsOfManyKeysComeInTheirOrder(t *testing.T) {
	r := newRig(t, "100/s burst 100")
	var keys []string
	for i := range 16 * (maxKeys + 20) { // more than a call takes of each shard
		keys = append(keys, fmt.Sprint("k", i))
	}
	taken := map[int]int64{0: 10, 1000: 20, len(keys) - 1: 30}
	for i, n := range taken {
		r.ask(keys[i], n, 0)
	}
	for i, level := range r.levels(keys...) {
		if left, _ := level.Left(); left != 100-taken[i] {
			t.Fatalf("%s has %d left, want %d", keys[i], left, 100-taken[i])
		}
	}
}

func TestLevelsGoByEachKeysOwnLimits(t *testing.T) {
	r, limits := newLimitedRig(t, "10/s burst 20")
	limits.set("own", "5/m")
	limits.setTier("gold", "100/s burst 300")
	keys := keysOfShard(r, 1)
	levels, err := r.Levels(t.Context(), []Subject{{Key: keys[0]}, {Key: keys[0], Tier: "gold"}, {Key: "own", Tier: "gold"}})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []struct {
		left   int64
		limits string
	}{{20, "10/s burst 20"}, {300, "100/s burst 300"}, {5, "5/m"}} {
		if left, _ := levels[i].Left(); left != want.left || levels[i].Limits.String() != want.limits {
			t.Errorf("%+v, want %d left of %s", levels[i], want.left, want.limits)
		}
	}
}

func TestKeysWithoutCountedLimitsHaveNoLevel(t *testing.T) {
	for _, limit := range []string{"0", "unlimited"} {
		r := newRig(t, limit)
		r.park("k", 1)
		level := r.levels("k")[0]
		if _, counted := level.Left(); counted || level.Waiting != 1 || level.Damaged {
			t.Errorf("%s: %+v, want 1 waiting and no tokens", limit, level)
		}
	}
}

func TestLevelsAreNotToldOfAnotherState(t *testing.T) {
	r := newRig(t, "10/s")
	r.rdb.FlushAll(t.Context())
	if _, err := r.Levels(t.Context(), []Subject{{Key: "k"}}); !errors.Is(err, ErrEpoch) {
		t.Errorf("of a Redis that lost its data: %v", err)
	}
}

// Reading works where writing doesn't, and says nothing about it.
func TestLevelsNeitherOpenNorCloseTheBreaker(t *testing.T) {
	t.Parallel()
	r := newRig(t, "10/s")
	r.server.Kill()
	for range breakAfter {
		if _, err := r.Levels(t.Context(), []Subject{{Key: "k"}}); err == nil {
			t.Error("it answers without Redis")
		}
	}
	if !r.reachable() {
		t.Error("looking opened the breaker")
	}
	for range breakAfter {
		_, _ = r.breaker.Execute(func() ([]any, error) { return nil, errAway })
	}
	if _, err := r.Levels(t.Context(), []Subject{{Key: "k"}}); !errors.Is(err, errAway) {
		t.Errorf("while Redis is known to be away: %v", err)
	}
}
