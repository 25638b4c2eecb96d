package redisstore

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/redis/go-redis/v9"

	"sluice/limiter"
	"sluice/pipeline"
)

func (b *bodies) Last(context.Context) (uint64, error) { return uint64(len(b.events)), nil }

func (b *bodies) Has(_ context.Context, key string, seq uint64) (bool, error) {
	return seq <= uint64(len(b.events)) && b.events[seq-1].Key == key, nil
}

// store stores n bodies of key and returns their sequences. Their places in the source are 1000 further.
func (b *bodies) store(key string, n int) (seqs []uint64) {
	for range n {
		seq := uint64(len(b.events) + 1)
		b.events = append(b.events, &pipeline.Event{Key: key, Source: pipeline.SourceID{Stream: "EVENTS", Created: 1, Seq: 1000 + seq}})
		seqs = append(seqs, seq)
	}
	return seqs
}

// index parks stored bodies.
func (r *rig) index(key string, seqs ...uint64) {
	r.t.Helper()
	for _, seq := range seqs {
		_, err := r.Park(r.t.Context(), pipeline.ParkRequest{Key: key, Entry: pipeline.Entry{BodyID: pipeline.BodyID{Seq: seq}, Order: 1000 + seq, Cost: 1}})
		if err != nil {
			r.t.Fatal(err)
		}
	}
}

func verified(t *testing.T, s *Store, last uint64) {
	t.Helper()
	if err := s.verify(t.Context(), last); err != nil {
		t.Fatal(err)
	}
}

func TestStoredEventsWithoutAPlaceGetOneAndTheOthersKeepTheirs(t *testing.T) {
	r := newRig(t, "100/s burst 3")
	seqs := r.bodies.store("k", 10)
	r.index("k", slices.Concat(seqs[:4], seqs[5:7])...)
	lease := leaseOf(t, r.Store, "k", 0, 3) // 1, 2 and 3 are leased, 4 6 7 wait
	_, err := settle(t, r.Store, pipeline.SettleRequest{Key: "k", Token: lease.Token, Events: []pipeline.Settlement{{
		Was: lease.Events[0].Entry, Fate: pipeline.Back, After: time.Hour,
		Now: pipeline.Entry{BodyID: pipeline.BodyID{Seq: 1}, Order: 1001, Attempt: 1, Cost: 1, First: time.UnixMilli(1)},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	r.bodies.events[8].Header = pipeline.Header{"Sluice-Cost": {"2"}}

	verified(t, r.Store, 9) // the 10th is too young
	if got, want := r.zset("lane", "k"), []string{"4", "5", "6", "7", "8", "9,0,2,0,1009,0"}; !slices.Equal(got, want) {
		t.Errorf("in the lane: %v, want %v", got, want)
	}
	if got, want := r.zset("busy", "k"), []string{"2", "3"}; !slices.Equal(got, want) {
		t.Errorf("leased: %v, want %v", got, want)
	}
	if got := r.zset("retry", "k"); len(got) != 1 {
		t.Errorf("waiting for another attempt: %v, want the one", got)
	}
	if at, ok := r.dueAt("k"); !ok || at > 0 {
		t.Errorf("the key is due at %d, %t, want now", at, ok)
	}
	if n := testutil.ToFloat64(r.metrics.orphans); n != 3 {
		t.Errorf("%v orphans were counted, want 3", n)
	}
}

// A receiver that fails for hours: the events of one key that wait for another attempt are many, and verifying its newest ones must
// not stop Redis for all others.
func TestKeyWithManyRetriesIsVerifiedInShortCalls(t *testing.T) {
	r := newRig(t, "100/s burst 3")
	const many = 150_000
	seqs := r.bodies.store("k", 10)
	retry := r.shard("k").keys(nil, "k")[3]
	set := make([]redis.Z, 0, many)
	for i := range many {
		set = append(set, redis.Z{Score: float64(start + int64(i/5000)), Member: fmt.Sprintf("%d,3,1,0,%d,1", 100+i, 1100+i)})
	}
	for part := range slices.Chunk(set, 10_000) {
		r.rdb.ZAdd(t.Context(), retry, part...)
	}
	r.index("k", seqs[:2]...)
	for i, at := range []int64{0, 7, many} { // the 3rd to the 5th
		seq := seqs[2+i]
		r.rdb.ZAdd(t.Context(), retry, redis.Z{Score: float64(start + at), Member: fmt.Sprintf("%d,1,1,0,%d,1", seq, 1000+seq)})
	}
	v := &verification{work: &work{shard: r.shard("k"), ctx: t.Context()}}
	var events []stored
	for _, seq := range seqs[:9] {
		events = append(events, stored{"k", "", storedEntry(r.bodies.events[seq-1], seq)})
	}
	missing, unsure, err := v.call(events, false, asBefore, false)
	if want := []int64{2, 3, 4, 5, 6, 7, 8}; len(missing) > 0 || !slices.Equal(unsure, want) || err != nil {
		t.Errorf("one call knows %v and not %v, %v: want it to read none of so many, and not to know %v", missing, unsure, err, want)
	}

	verified(t, r.Store, 9)
	if got, want := r.zset("lane", "k"), []string{"1", "2", "6", "7", "8", "9"}; !slices.Equal(got, want) {
		t.Errorf("in the lane: %v, want those that had no place besides: %v", got, want)
	}
	if n := r.rdb.ZCard(t.Context(), retry).Val(); n != many+3 {
		t.Errorf("%d wait for another attempt, want %d", n, many+3)
	}
}

func TestEventIsVerifiedOnceByOneOfTheWorkers(t *testing.T) {
	r := newRig(t, "100/s burst 3")
	two := r.worker("two", "100/s burst 3")
	for i := range 600 {
		r.bodies.store(fmt.Sprint("k", i%50), 1)
	}
	last := uint64(len(r.bodies.events))
	verified(t, r.Store, last)
	if n := testutil.ToFloat64(r.metrics.orphans); n != 600 {
		t.Errorf("%v orphans were counted, want 600", n)
	}
	for seq := range last {
		r.bodies.events[seq] = nil // whoever reads one again panics
	}
	verified(t, two, last)
	verified(t, r.Store, last)
}

func TestVerificationIsLeftToTheWorkerThatIsAboutIt(t *testing.T) {
	r := newRig(t, "100/s burst 3")
	two := r.worker("two", "100/s burst 3")
	r.bodies.store("k", 1)
	v, err := r.shards[0].verify(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	verified(t, two, 1)
	if got := r.zset("lane", "k"); len(got) != 0 {
		t.Errorf("in the lane: %v, although another worker verifies", got)
	}
	v.die()
	two.now = start + (workLease + time.Millisecond).Microseconds()
	verified(t, two, 1)
	if got := r.zset("lane", "k"); len(got) != 1 {
		t.Errorf("in the lane: %v, want the event", got)
	}
}

func TestLostWritesLetTheShardBeVerifiedFromTheStart(t *testing.T) {
	r := newRig(t, "100/s burst 3")
	seqs := r.bodies.store("k", 3)
	r.index("k", seqs...)
	for range 100 {
		r.ask("k", 1, -1) // calls that are counted
		r.index("k", 3)
	}
	verified(t, r.Store, 3)
	sh := r.shard("k")
	r.rdb.HSet(t.Context(), sh.epochKey, "n", "1") // the replica that took over had seen less
	r.rdb.ZRem(t.Context(), sh.keys(nil, "k")[1], "2")
	verified(t, r.Store, 3)
	if got := r.zset("lane", "k"); len(got) != 2 {
		t.Fatalf("in the lane: %v, although nobody could have noticed yet", got)
	}
	r.index("k", 3)
	verified(t, r.Store, 3)
	if got := r.zset("lane", "k"); len(got) != 3 {
		t.Errorf("in the lane: %v, want all three", got)
	}
}

// Redis came back with what it had saved last, a few calls before it went: too few to tell by their number from calls that overtook
// one another.
func TestEventWhosePlaceWentWithTheLastWritesGetsOneThoughNothingElseIsStored(t *testing.T) {
	r := newRig(t, "100/s burst 3")
	seqs := r.bodies.store("k", 3)
	r.index("k", seqs[:2]...)
	verified(t, r.Store, 2)
	sh := r.shard("k")
	saved := r.rdb.HGetAll(t.Context(), sh.epochKey).Val()
	r.index("k", seqs[2])
	verified(t, r.Store, 3)
	r.rdb.HSet(t.Context(), sh.epochKey, saved)
	r.rdb.ZRem(t.Context(), sh.keys(nil, "k")[1], "3")
	verified(t, r.Store, 3)
	if got := r.zset("lane", "k"); len(got) != 3 {
		t.Errorf("in the lane: %v, want all three", got)
	}
}

// The body goes before the place: an event whose place went while it was verified isn't an orphan.
func TestEventSettledWhileItIsVerifiedGetsNoPlace(t *testing.T) {
	r := newRig(t, "100/s burst 3")
	r.bodies.store("k", 1)
	v, err := r.shard("k").verify(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	defer v.leave()
	if err := v.add(r.bodies.events[0], 1); err != nil {
		t.Fatal(err)
	}
	r.bodies.events[0] = &pipeline.Event{} // gone
	if err := v.finish(); err != nil {
		t.Fatal(err)
	}
	if got := r.zset("lane", "k"); len(got) != 0 {
		t.Errorf("in the lane: %v, want nothing", got)
	}
}

func TestRebuiltShardIsVerifiedFromTheStartOfTheNewStream(t *testing.T) {
	r := newRig(t, "100/s burst 3")
	r.bodies.store("k", 5)
	verified(t, r.Store, 5)
	r.bodies.created++ // the lane stream was made anew
	r.bodies.events = nil
	two := r.worker("two", "100/s burst 3")
	other := "other" // of the same shard
	for i := 0; limiter.Shard(other) != limiter.Shard("k"); i++ {
		other = fmt.Sprint("other", i)
	}
	r.bodies.store(other, 2)
	verified(t, two, 2)
	if got := r.zset("lane", other); len(got) != 2 {
		t.Errorf("in the lane: %v, want those of the new stream", got)
	}
}

// The loop itself, on the clock of the machine.
func TestRunVerifiesWhatHasReachedTheAge(t *testing.T) {
	r := newRig(t, "100/s burst 3")
	r.opt.VerifyAge = 100 * time.Millisecond
	r.bodies.store("k", 1)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); r.Run(ctx) }()
	defer func() { stop(); <-ended }()
	for deadline := time.Now().Add(5 * time.Second); len(r.zset("lane", "k")) == 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the event got no place")
		}
	}
}
