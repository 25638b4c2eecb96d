package redisstore

import (
	"testing"
	"time"

	"sluice/pipeline"
)

func TestEventInItsLaneIsKnownByItsPlaceInTheSource(t *testing.T) {
	t.Parallel()
	r := newRig(t, "10/s burst 1")
	r.at(0)
	holds := func(key string, order uint64) bool {
		t.Helper()
		may, err := r.Holds(t.Context(), key, order)
		if err != nil {
			t.Fatal(err)
		}
		return may
	}
	// Behind 2^53 neighbours have one score.
	const wide = 1<<53 + 2
	for i, order := range []uint64{5, 6, wide, wide + 2} {
		body := pipeline.BodyID{Seq: uint64(i + 1)}
		if _, err := r.Park(t.Context(), pipeline.ParkRequest{Key: "k", Entry: pipeline.Entry{BodyID: body, Order: order, Cost: 1}}); err != nil {
			t.Fatal(err)
		}
	}
	tried := pipeline.Entry{BodyID: pipeline.BodyID{Seq: 9}, Order: 4, Cost: 1, Attempt: 1}
	if _, err := r.Park(t.Context(), pipeline.ParkRequest{Key: "k", Entry: tried, After: time.Hour}); err != nil {
		t.Fatal(err)
	}
	leaseOf(t, r.Store, "k", 0, 1) // the first is busy now
	for order, want := range map[uint64]bool{
		3: false, 4: true, 5: true, 6: true, 7: false, wide - 1: false, wide: true, wide + 1: false, wide + 2: true,
	} {
		if holds("k", order) != want {
			t.Errorf("order %d: %t, want %t", order, !want, want)
		}
	}
	if holds("other", 5) {
		t.Error("another key has it, too")
	}
	// What can't be read may hold it.
	r.rdb.Set(t.Context(), r.shard("k").keys(nil, "k")[2], "x", 0)
	if !holds("k", 7) {
		t.Error("an event is sure not to be where nobody can look")
	}
}
