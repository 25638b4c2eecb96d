package redisstore

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"sluice/pipeline"
)

// lane makes a lane of n events whose bucket is empty at the start of the test's clock.
func (r *rig) lane(key string, n int) {
	r.t.Helper()
	r.ask(key, 1000, 0)
	for i := range n {
		r.park(key, uint64(i+1))
	}
}

func (r *rig) backlog(want Backlog) {
	r.t.Helper()
	got, err := r.Backlog()
	if err != nil {
		r.t.Fatal(err)
	}
	if got != want {
		r.t.Errorf("backlog %+v, want %+v", got, want)
	}
}

func TestThrottledEventsAreNotEligible(t *testing.T) {
	r := newRig(t, "1/s burst 1")
	r.backlog(Backlog{})
	for i := range 40 {
		r.lane(fmt.Sprint("k", i), 100)
	}
	r.backlog(Backlog{Lanes: 40}) // their next tokens come in a second
	r.at(1_100_000)
	r.backlog(Backlog{Lanes: 40}) // due, and a worker may be about to take them
}

func TestEligibleIsWhatTheTokensOfUntakenLanesPayFor(t *testing.T) {
	r := newRig(t, "10/s burst 20")
	r.lane("long", 100)
	r.lane("short", 3)
	r.lane("leased", 100)
	r.lane("away", 100)
	r.lane("probe", 100)
	r.lane("damaged", 100)
	r.at(1_000_000)
	leaseOf(t, r.Store, "leased", 0, 1)
	r.rdb.HSet(t.Context(), r.shard("away").keys(nil, "away")[0], "closedUntil", start+60_000_000)
	r.rdb.HSet(t.Context(), r.shard("probe").keys(nil, "probe")[0], "fails", 1)
	r.rdb.HSet(t.Context(), r.shard("damaged").keys(nil, "damaged")[0], "tokens", "x")
	r.at(1_500_000)
	r.backlog(Backlog{Lanes: 6, Eligible: 15 + 3 + 1, Overdue: 1500*time.Millisecond - lead})
}

func TestEligibleCountsEventsOfTheirOwnTimeOnlyWhenThatHasCome(t *testing.T) {
	r := newRig(t, "10/s burst 20")
	for i, after := range []time.Duration{time.Second, time.Hour} {
		_, err := r.Park(t.Context(), pipeline.ParkRequest{
			Key: "k", Entry: pipeline.Entry{BodyID: pipeline.BodyID{Seq: uint64(i + 1)}, Order: uint64(i + 1), Attempt: 1, Cost: 1}, After: after,
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	r.at(900_000)
	r.backlog(Backlog{Lanes: 1})
	r.at(2_000_000)
	r.backlog(Backlog{Lanes: 1, Eligible: 1, Overdue: time.Second - lead})
}

func TestPausedLimitHasNoEligibleEvents(t *testing.T) {
	r := newRig(t, "10/s burst 20")
	r.lane("k", 10)
	paused := r.worker("two", "0")
	paused.now = start + 5_000_000
	if got, err := paused.Backlog(); err != nil || got.Eligible != 0 || got.Lanes != 1 {
		t.Errorf("%+v, %v, want nothing eligible", got, err)
	}
	free := r.worker("three", "unlimited")
	free.now = start + 5_000_000
	if got, err := free.Backlog(); err != nil || got.Eligible != 10 {
		t.Errorf("%+v, %v, want all eligible without limits", got, err)
	}
}

// Where more lanes are untaken than are looked into, the rest is taken to be like these.
func TestEligibleOfManyUntakenLanesIsEstimated(t *testing.T) {
	r := newRig(t, "10/s burst 20")
	const lanes = 3000
	for i := range lanes {
		key := fmt.Sprint("k", i)
		sh := r.shard(key)
		r.rdb.ZAdd(t.Context(), sh.keys(nil, key)[1], redis.Z{Member: "1"})
		r.rdb.ZAdd(t.Context(), sh.dueKey, redis.Z{Member: key, Score: float64(start + int64(i))})
	}
	r.at(10_000_000)
	r.backlog(Backlog{Lanes: lanes, Eligible: lanes, Overdue: 10*time.Second - lead})
	v, err := r.shards[0].measure(nil, nil, untakenSample)
	if err != nil || len(v[3].([]any)) != untakenSample {
		t.Errorf("%v, %v, want %d lanes to look into", v, err, untakenSample)
	}
}

func TestEligibleGoesByTheLimitsOfTheLanesTier(t *testing.T) {
	r, limits := newLimitedRig(t, "1/h")
	limits.setTier("pro", "5/h")
	r.parkIn("pro", "k", 1, 2, 3, 4, 5, 6, 7, 8, 9)
	r.park("plain", 1, 2, 3)
	r.at(1_000_000)
	r.backlog(Backlog{Lanes: 2, Eligible: 5 + 1, Overdue: time.Second - lead})
}
