package redisstore

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"sluice/limiter"
	"sluice/pipeline"
)

// Two keys of one shard get the same events, one key all at once, the other one by one: their lanes are the same.
func TestEventsParkedTogetherStandAsIfParkedOneByOne(t *testing.T) {
	t.Parallel()
	r := newRig(t, "10/s burst 20")
	rnd := rand.New(rand.NewPCG(8, 1))
	sh := r.shards[3]
	keys := keysOf(sh, 400)
	for round := 0; len(keys) > 1; round++ {
		together, single := keys[0], keys[1]
		keys = keys[2:]
		var batch []pipeline.ParkRequest
		order := uint64(100 + rnd.IntN(5))
		for range 1 + rnd.IntN(12) {
			p := pipeline.ParkRequest{Entry: pipeline.Entry{BodyID: pipeline.BodyID{Seq: order}, Order: order, Cost: 1}, Counted: rnd.IntN(2) == 0}
			switch rnd.IntN(8) {
			case 0:
				p.Entry.Cost = 1 + rnd.Int64N(5)
			case 1:
				p.After = time.Duration(rnd.IntN(5)) * time.Second
			case 2:
				p.Entry.Collapse = []string{"here", "there"}[rnd.IntN(2)]
			case 3:
				p.Sleep, p.Failure = time.Second, "503"
			case 4:
				p.Entry.Attempt, p.Entry.First = 1, time.Unix(1764460000, 0)
			}
			batch = append(batch, p)
			order += uint64(rnd.IntN(3)) // the same event again, at times
		}
		for _, key := range []string{together, single} {
			r.rdb.HSet(t.Context(), sh.hashKey(key), "opened", start+2_000_000, "opening", 1+len(batch)/2, "openingExtra", 3)
			r.rdb.ZAdd(t.Context(), sh.keys(nil, key)[2], redis.Z{Score: float64(batch[0].Entry.Order), Member: member(batch[0].Entry)})
		}
		park := func(key string, batch []pipeline.ParkRequest) (infos []pipeline.LaneInfo) {
			of := make([]pipeline.ParkRequest, len(batch))
			for i, p := range batch {
				of[i], of[i].Key = p, key
			}
			infos, err := each(sh.bundle.runPark(of))
			if err != nil {
				t.Fatal(err)
			}
			return infos
		}
		all := park(together, batch)
		var last pipeline.LaneInfo
		var dropped [2]string
		for i, p := range batch {
			last = park(single, []pipeline.ParkRequest{p})[0]
			dropped[0] += fmt.Sprint(all[i].Collapsed)
			dropped[1] += fmt.Sprint(last.Collapsed)
		}
		stored := func(key string) string {
			names, hash := sh.laneKeys(nil, key), r.hash(key)
			delete(hash, "exp") // one by one it was set while events were still expected
			return fmt.Sprint(hash, r.rdb.ZRangeWithScores(t.Context(), names[1], 0, -1).Val(),
				r.rdb.ZRangeWithScores(t.Context(), names[2], 0, -1).Val(), r.rdb.ZRangeWithScores(t.Context(), names[3], 0, -1).Val(),
				r.rdb.HGetAll(t.Context(), names[4]).Val())
		}
		due := func(key string) float64 { return r.rdb.ZScore(t.Context(), sh.dueKey, limiter.EncodeKey(key)).Val() }
		if due(together) > due(single) { // sooner is well: a receiver that is away may be learnt of later in the call
			t.Fatalf("round %d: %+v\ntogether the lane is due at %.0f, one by one at %.0f", round, batch, due(together), due(single))
		}
		if a, b := stored(together), stored(single); a != b {
			t.Fatalf("round %d: %+v\ntogether: %s\none by one: %s", round, batch, a, b)
		}
		if len(parkings(batch)) == 1 && (all[len(all)-1].Waiting != last.Waiting || all[0].Extra != last.Extra) {
			t.Fatalf("round %d: %+v\ntogether: %+v\none by one, at last: %+v", round, batch, all[0], last)
		}
	}
}

func TestEventsOfAKeyShareAnEntryUnlessTheySayMoreOfIt(t *testing.T) {
	t.Parallel()
	got := parkings([]pipeline.ParkRequest{
		{Key: "a"}, {Key: "b"}, {Key: "a", After: time.Second}, {Key: "a", Sleep: time.Second}, {Key: "a", Tier: "gold"},
		{Key: "a", Failure: "503"}, {Key: "a", Entry: pipeline.Entry{Collapse: "x"}}, {Key: "a"},
	})
	var events [][]int
	for _, p := range got {
		events = append(events, p.events)
	}
	if want := "[[0 2 7] [1] [3] [4] [5] [6]]"; fmt.Sprint(events) != want {
		t.Errorf("the entries are %v, want %s", events, want)
	}
}

func TestParkTellsWhatATokenAddsToTheWait(t *testing.T) {
	t.Parallel()
	for limit, want := range map[string]time.Duration{
		"10/s burst 20": 100 * time.Millisecond, "6/min burst 1": 10 * time.Second, "100/s, 6/min": 10 * time.Second, "unlimited": 0,
	} {
		r := newRig(t, limit)
		info, err := r.Park(t.Context(), pipeline.ParkRequest{Key: "k", Entry: pipeline.Entry{BodyID: pipeline.BodyID{Seq: 1}, Order: 1, Cost: 3}})
		if err != nil || info.Each != want || info.Extra != 2 {
			t.Errorf("%s: each %s, extra %d, %v, want %s, 2", limit, info.Each, info.Extra, err, want)
		}
	}
}
