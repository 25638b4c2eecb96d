package redisstore

import (
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"sluice/limiter"
	"sluice/pipeline"
)

// shortPatience is that of tests in which nothing else happens.
const shortPatience = time.Millisecond

func (r *rig) inspect() Inspection {
	r.t.Helper()
	in, err := r.Inspect(r.t.Context(), shortPatience)
	if err != nil {
		r.t.Fatal(err)
	}
	return in
}

func kinds(in Inspection) (all []FindingKind) {
	for _, f := range in.Findings {
		all = append(all, f.Kind)
	}
	return all
}

func TestEveryKindOfFindingIsToldAndMended(t *testing.T) {
	hour := int64(time.Hour / time.Microsecond)
	for _, c := range []struct {
		kind   FindingKind
		more   []FindingKind // beside it
		spoil  func(r *rig, sh *shard, keys []string)
		places []string // of k in lane and busy when it is mended; nil: as ever
	}{
		{kind: NoPlace, spoil: func(r *rig, sh *shard, keys []string) { r.rdb.ZRem(r.t.Context(), keys[1], "4") }},
		{kind: NoBody, spoil: func(r *rig, sh *shard, keys []string) {
			_, err := r.Park(r.t.Context(), pipeline.ParkRequest{
				Key: "k", Entry: pipeline.Entry{BodyID: pipeline.BodyID{Seq: 77}, Order: 1077, Cost: 1, Collapse: "position"},
			})
			if err != nil {
				r.t.Fatal(err)
			}
		}},
		{kind: WrongLane, spoil: func(r *rig, sh *shard, keys []string) {
			r.rdb.ZAdd(r.t.Context(), keys[1], redis.Z{Member: "6", Score: 1006})
		}},
		{kind: WrongOrder, spoil: func(r *rig, sh *shard, keys []string) {
			r.rdb.ZAdd(r.t.Context(), keys[1], redis.Z{Member: "5", Score: 1})
		}},
		{kind: Twice, spoil: func(r *rig, sh *shard, keys []string) {
			r.rdb.ZAdd(r.t.Context(), keys[1], redis.Z{Member: "1", Score: 1001})
		}},
		{kind: Unreadable, spoil: func(r *rig, sh *shard, keys []string) {
			r.rdb.ZAdd(r.t.Context(), keys[2], redis.Z{Member: "x,1", Score: 1})
		}},
		{kind: DeadLease, spoil: func(r *rig, sh *shard, keys []string) {
			r.rdb.HSet(r.t.Context(), keys[0], "until", start-hour)
		}, places: []string{"1", "2", "3", "4", "5"}},
		{kind: NotDue, spoil: func(r *rig, sh *shard, keys []string) { r.rdb.Del(r.t.Context(), sh.dueKey) }},
		{kind: WrongCost, spoil: func(r *rig, sh *shard, keys []string) {
			r.rdb.HSet(r.t.Context(), keys[0], "extra", "7")
		}},
		{kind: DamagedBucket, spoil: func(r *rig, sh *shard, keys []string) {
			r.rdb.HSet(r.t.Context(), keys[0], "extra", "x")
		}},
		{kind: DamagedBucket, spoil: func(r *rig, sh *shard, keys []string) {
			r.rdb.HSet(r.t.Context(), keys[0], "tokens", "many")
		}},
		{kind: DamagedBucket, spoil: func(r *rig, sh *shard, keys []string) {
			r.rdb.HSet(r.t.Context(), keys[0], "sliding/1d:slice", "7")
		}},
		{kind: DamagedBucket, more: []FindingKind{DeadLease}, spoil: func(r *rig, sh *shard, keys []string) {
			r.rdb.Set(r.t.Context(), keys[0], "x", 0)
		}, places: []string{"1", "2", "3", "4", "5"}},
		{kind: DamagedLane, spoil: func(r *rig, sh *shard, keys []string) { r.rdb.Set(r.t.Context(), keys[1], "x", 0) }},
		{kind: NoIndex, spoil: func(r *rig, sh *shard, keys []string) { r.rdb.HDel(r.t.Context(), sh.epochKey, "id") }},
	} {
		t.Run(string(c.kind), func(t *testing.T) {
			r := newRig(t, "100/s burst 2")
			r.index("k", r.bodies.store("k", 5)...)
			other := "other" // of another shard
			if limiter.Shard(other) == limiter.Shard("k") {
				t.Fatal("choose another key")
			}
			r.index(other, r.bodies.store(other, 3)...)
			leaseOf(t, r.Store, "k", 0, 2)
			if in := r.inspect(); len(in.Findings) > 0 || in.Bodies != 8 || in.Places != 8 || in.Lanes != 2 {
				t.Fatalf("before anything is wrong: %+v", in)
			}
			sh := r.shard("k")
			c.spoil(r, sh, sh.keys(nil, "k"))
			in := r.inspect()
			got, want := kinds(in), append([]FindingKind{c.kind}, c.more...)
			slices.Sort(got)
			slices.Sort(want)
			if !slices.Equal(got, want) {
				t.Fatalf("found %+v, want %v", in.Findings, want)
			}
			for range 3 {
				if in = r.inspect(); len(in.Findings) == 0 {
					break
				}
				if err := r.Mend(t.Context(), in.Findings); err != nil {
					t.Fatal(err)
				}
			}
			if len(in.Findings) > 0 {
				t.Errorf("left: %+v", in.Findings)
			}
			places := slices.Concat(r.zset("busy", "k"), r.zset("lane", "k"))
			if want := []string{"1", "2", "3", "4", "5"}; !slices.Equal(places, want) {
				t.Errorf("places %v, want %v", places, want)
			}
			if c.places != nil && len(r.zset("busy", "k")) > 0 {
				t.Error("the dead lease still holds events")
			}
			if names := r.rdb.Exists(t.Context(), sh.laneKeys(nil, "k")[4]).Val(); names > 0 {
				t.Error("a name is left for which other events would be dropped")
			}
			if _, ok := r.dueAt("k"); !ok {
				t.Error("the lane isn't due")
			}
		})
	}
}

// asked counts how often limits are asked for.
type asked struct {
	limiter.Resolver
	times int
}

func (a *asked) Resolve(key, tier string) *limiter.Ruling {
	a.times++
	return a.Resolver.Resolve(key, tier)
}

// So whoever mends needn't know by which limits the workers go.
func TestLookingAndMendingAskForNoLimits(t *testing.T) {
	r := newRig(t, "100/s burst 2")
	r.index("k", r.bodies.store("k", 5)...)
	leaseOf(t, r.Store, "k", 0, 2)
	keys := r.shard("k").laneKeys(nil, "k")
	r.rdb.ZRem(t.Context(), keys[1], "4")
	r.rdb.HSet(t.Context(), keys[0], "tokens", "many", "until", "1")
	r.rdb.HDel(t.Context(), r.shards[1].epochKey, "id")
	limits := &asked{Resolver: limiter.Fixed(nil)}
	r.rules.resolver = limits
	r.rules.last.Store(nil)
	r.rules.recent = nil
	for range 4 {
		if err := r.Mend(t.Context(), r.inspect().Findings); err != nil {
			t.Fatal(err)
		}
	}
	if in := r.inspect(); len(in.Findings) > 0 || limits.times > 0 {
		t.Errorf("left: %+v; limits were asked for %d times, want never", in.Findings, limits.times)
	}
}

func TestWhatALiveLeaseHoldsIsLeftToItsHolder(t *testing.T) {
	r := newRig(t, "100/s burst 2")
	r.index("k", r.bodies.store("k", 3)...)
	l := leaseOf(t, r.Store, "k", 0, 2)
	r.bodies.events[0].Key = "gone" // the holder has deleted the body and is about to settle
	in := r.inspect()
	if !slices.Equal(kinds(in), []FindingKind{WrongLane, NoPlace}) && !slices.Equal(kinds(in), []FindingKind{NoPlace, WrongLane}) {
		t.Fatalf("found %+v", in.Findings)
	}
	if err := r.Mend(t.Context(), in.Findings); err != nil {
		t.Fatal(err)
	}
	if got := r.zset("busy", "k"); !slices.Equal(got, []string{"1", "2"}) {
		t.Errorf("leased: %v, want both events as before", got)
	}
	if info, err := settle(t, r.Store, pipeline.SettleRequest{
		Key: "k", Token: l.Token, Events: []pipeline.Settlement{{Was: l.Events[0].Entry}},
	}); err != nil || info.Waiting != 1 {
		t.Errorf("settling: %+v, %v", info, err)
	}
}

// An event that is parked, pushed or settled while the index is looked at only seems to be wrong.
func TestOnlyWhatStaysWrongIsTold(t *testing.T) {
	r := newRig(t, "100/s burst 2")
	seqs := r.bodies.store("k", 4)
	r.index("k", seqs[:2]...)
	in, err := r.newInspector(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	r.index("k", r.bodies.store("k", 1)...) // stored after the look at the bodies
	suspects, err := in.all(t.Context())
	if err != nil || len(suspects) != 3 {
		t.Fatalf("suspects %+v, %v", suspects, err)
	}
	r.index("k", seqs[2])            // parked meanwhile
	r.bodies.events[3].Key = "other" // settled meanwhile
	found, err := in.confirm(t.Context(), suspects)
	if err != nil || len(found) != 0 {
		t.Errorf("found %+v, %v", found, err)
	}
}
