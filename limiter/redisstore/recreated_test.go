package redisstore

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"sluice/limiter"
	"sluice/pipeline"
)

// What the old stream's index held has no bodies any more; what was spent is spent.
func TestIndexOfARecreatedLaneStreamHoldsItsBodiesOnlyAndBucketsStay(t *testing.T) {
	r := newRig(t, "100/s burst 3")
	for n, i := 0, 0; n < 300; i++ { // more than one call drops, all of one shard
		if key := fmt.Sprint("k", i); limiter.Shard(key) == limiter.Shard("k") {
			r.park(key, uint64(i+1))
			n++
		}
	}
	r.park("k", 1, 2, 3, 4, 5, 6)
	lease := leaseOf(t, r.Store, "k", 0, 2)
	_, err := settle(t, r.Store, pipeline.SettleRequest{Key: "k", Token: lease.Token, Events: []pipeline.Settlement{{
		Was: lease.Events[0].Entry, Fate: pipeline.Back, After: time.Hour, Now: lease.Events[0].Entry,
	}}})
	if err != nil {
		t.Fatal(err)
	}
	named := pipeline.Entry{BodyID: pipeline.BodyID{Seq: 20}, Order: 20, Cost: 1, Collapse: "position"}
	if _, err := r.Park(t.Context(), pipeline.ParkRequest{Key: "k", Entry: named}); err != nil {
		t.Fatal(err)
	}
	since := r.rdb.HGet(t.Context(), r.shard("k").epochKey, "since").Val()

	r.bodies.created++
	r.bodies.marked, r.bodies.events = false, nil
	r.bodies.store("k", 2)
	two := r.worker("two", "100/s burst 3")
	if got, want := r.zset("lane", "k"), []string{"1", "2"}; !slices.Equal(got, want) {
		t.Errorf("in the lane: %v, want %v", got, want)
	}
	if busy, retry := r.zset("busy", "k"), r.zset("retry", "k"); len(busy)+len(retry) > 0 {
		t.Errorf("leased: %v, waiting for another attempt: %v, want none", busy, retry)
	}
	if names := r.rdb.Exists(t.Context(), r.shard("k").laneKeys(nil, "k")[4]).Val(); names > 0 {
		t.Error("a name of the old stream is left, for which newer events would be dropped")
	}
	if due := r.rdb.ZRange(t.Context(), r.shard("k").dueKey, 0, -1).Val(); !slices.Equal(due, []string{"k"}) {
		t.Errorf("%d lanes are due, want that of k", len(due))
	}
	if h := r.hash("k"); h["tokens"] != "1" {
		t.Errorf("the bucket holds %q, want the 1 that it held", h["tokens"])
	}
	if got := r.rdb.HGet(t.Context(), r.shard("k").epochKey, "since").Val(); got != since {
		t.Errorf("buckets are said to be lost since %s, want %s", got, since)
	}
	if d, err := two.Reserve(t.Context(), "idle", "", 3, 0); err != nil || d.Verdict != limiter.Go {
		t.Errorf("a key that had spent nothing: %+v, %v", d, err)
	}
	if _, err := r.Park(t.Context(), pipeline.ParkRequest{Key: "k", Entry: pipeline.Entry{BodyID: pipeline.BodyID{Seq: 9}, Order: 9, Cost: 1}}); !errors.Is(err, ErrEpoch) {
		t.Errorf("a worker that knows the old stream only: %v, want that its state is gone", err)
	}
}

// Lanes that a worker couldn't drop, because it died over it, are dropped by the next one.
func TestDroppingTheOldIndexGoesOnAfterACrash(t *testing.T) {
	r := newRig(t, "100/s burst 3")
	r.park("k", 1, 2)
	r.bodies.created++
	b, err := r.shard("k").build(t.Context())
	if err != nil || !b.adopts {
		t.Fatal(b, err)
	}
	b.die()
	r.at(11_000_000)
	if err := r.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := r.zset("lane", "k"); len(got) != 0 {
		t.Errorf("in the lane: %v, want nothing", got)
	}
}

func TestStateIsForgottenWhenItBelongsToAnotherLaneStream(t *testing.T) {
	r := newRig(t, "100/s burst 3")
	r.follow(r.bodies.Created())
	if !r.Opened() {
		t.Fatal("the state was forgotten although the stream is the same")
	}
	r.follow(r.bodies.Created() + 1)
	if r.Opened() || len(r.lost) != 1 {
		t.Error("the state wasn't forgotten, or nobody opens it anew")
	}
}
