package redisstore

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"sluice/limiter"
	"sluice/pipeline"
)

func settle(t *testing.T, s *Store, r pipeline.SettleRequest) (pipeline.LaneInfo, error) {
	t.Helper()
	return s.Settle(t.Context(), r)
}

func done(e pipeline.Leased) pipeline.Settlement {
	return pipeline.Settlement{Was: e.Entry, Fate: pipeline.Done}
}

// zset is one of the sets of a key, by its name in Redis.
func (r *rig) zset(name, key string) []string {
	return r.rdb.ZRange(r.t.Context(), name+":"+r.shard(key).tag+":"+limiter.EncodeKey(key), 0, -1).Val()
}

func (r *rig) dueAt(key string) (int64, bool) {
	score, err := r.rdb.ZScore(r.t.Context(), r.shard(key).dueKey, limiter.EncodeKey(key)).Result()
	return int64(score) - start, err == nil
}

func TestLaneLeavesInSourceOrderHoweverItWasParked(t *testing.T) {
	r := newRig(t, "100/s burst 100")
	r.park("k", 5, 3, 9, 1, 7, 3) // the third twice: parking is idempotent
	l := leaseOf(t, r.Store, "k", 0, 10)
	if got, want := seqs(l), []uint64{1, 3, 5, 7, 9}; !slices.Equal(got, want) {
		t.Errorf("leased %v, want %v", got, want)
	}
	if l.Waiting != 0 {
		t.Errorf("%d wait after all were leased", l.Waiting)
	}
}

func TestLeaseBooksOnlySlotsWithinTheHorizon(t *testing.T) {
	r := newRig(t, "10/s burst 2")
	for i := range uint64(30) {
		r.park("k", i+1)
	}
	l := leaseOf(t, r.Store, "k", 0, 100)
	if len(l.Events) != 12 {
		t.Fatalf("leased %d, want the burst and a second's worth, 12", len(l.Events))
	}
	for i, e := range l.Events {
		want := time.Duration(max(0, i-1)) * 100 * time.Millisecond
		if got := e.At.Sub(l.Events[0].At); got != want {
			t.Errorf("slot %d is %s after the first, want %s", i, got, want)
		}
	}
	if want := 1100*time.Millisecond - lead; l.Next != want {
		t.Errorf("next look in %s, want %s, as long before the first slot that isn't booked", l.Next, want)
	}
	r.at(1_000_000)
	if n := len(leaseOf(t, r.Store, "k", l.Token, 100).Events); n != 10 {
		t.Errorf("leased %d a second later, want 10", n)
	}
}

func TestParkedLaneFallsDueBeforeItsSlot(t *testing.T) {
	r := newRig(t, "1/s burst 1")
	r.ask("k", 1, 0)
	r.park("k", 1)
	due := (time.Second - lead).Microseconds()
	if at, _ := r.dueAt("k"); at != due {
		t.Errorf("due at %d us, want %d", at, due)
	}
	claim := func(s *Store, now int64) []string {
		s.now = start + now
		for _, sh := range s.shards {
			sh.look = time.Time{}
		}
		keys, _, err := s.Claim(t.Context(), 100)
		if err != nil {
			t.Fatal(err)
		}
		return keys
	}
	if keys := claim(r.Store, due-1); len(keys) != 0 {
		t.Errorf("claimed %v too early", keys)
	}
	if keys := claim(r.Store, due); !slices.Equal(keys, []string{"k"}) {
		t.Errorf("claimed %v, want k", keys)
	}
	if keys := claim(r.worker("two", "1/s burst 1"), due+1); len(keys) != 0 {
		t.Errorf("claimed twice: %v", keys)
	}
	if keys := claim(r.Store, due+1_000_000); !slices.Equal(keys, []string{"k"}) {
		t.Errorf("a claim that nothing came of: claimed %v a second later, want k", keys)
	}
}

func TestLaneIsLeasedByOneWorkerAtATime(t *testing.T) {
	r := newRig(t, "100/s burst 100")
	r.park("k", 1, 2, 3)
	two := r.worker("two", "100/s burst 100")
	l := leaseOf(t, r.Store, "k", 0, 2)
	if got := leaseOf(t, two, "k", 0, 2); got.Token != 0 || len(got.Events) != 0 {
		t.Fatalf("a second worker got %+v while the first holds the lane", got)
	}
	// The first one dies. When its lease is over the second takes everything, in order.
	two.now = start + leaseTime.Microseconds()
	got := leaseOf(t, two, "k", 0, 10)
	if want := []uint64{1, 2, 3}; !slices.Equal(seqs(got), want) {
		t.Fatalf("after the lease ended: %v, want %v", seqs(got), want)
	}
	// The first one comes back to life: whatever it says is refused.
	r.at(leaseTime.Microseconds() + 1)
	if _, err := settle(t, r.Store, pipeline.SettleRequest{Key: "k", Token: l.Token, Events: []pipeline.Settlement{done(l.Events[0])}}); !errors.Is(err, pipeline.ErrFenced) {
		t.Errorf("settling under a lost lease: %v, want %v", err, pipeline.ErrFenced)
	}
	if got := leaseOf(t, r.Store, "k", l.Token, 10); got.Token != 0 {
		t.Errorf("a lost lease was renewed: %+v", got)
	}
	if n := len(r.zset("busy", "k")); n != 3 {
		t.Errorf("%d events leased, want all 3 untouched", n)
	}
}

func TestHolderThatLostItsTokenTakesTheLaneOverFromItself(t *testing.T) {
	r := newRig(t, "100/s burst 100")
	r.park("k", 1, 2)
	first := leaseOf(t, r.Store, "k", 0, 10)
	second := leaseOf(t, r.Store, "k", 0, 10)
	if !slices.Equal(seqs(second), []uint64{1, 2}) || second.Token <= first.Token {
		t.Errorf("got %v under token %d after %d, want both again under a newer one", seqs(second), second.Token, first.Token)
	}
}

func TestRenewalKeepsTheLeaseWithoutBooking(t *testing.T) {
	r := newRig(t, "100/s burst 100")
	r.park("k", 1, 2)
	l := leaseOf(t, r.Store, "k", 0, 1)
	r.at(4_000_000)
	if got := leaseOf(t, r.Store, "k", l.Token, 0); got.Token != l.Token || len(got.Events) != 0 {
		t.Fatalf("renewal: %+v", got)
	}
	two := r.worker("two", "100/s burst 100")
	two.now = start + 8_999_999
	if got := leaseOf(t, two, "k", 0, 1); got.Token != 0 {
		t.Errorf("taken by another within 5 s of the renewal")
	}
}

func TestSettledLaneClosesAndLeavesNothingBehind(t *testing.T) {
	r := newRig(t, "100/s burst 100")
	r.park("k", 1, 2)
	l := leaseOf(t, r.Store, "k", 0, 10)
	req := pipeline.SettleRequest{Key: "k", Token: l.Token, Release: true, Healthy: true,
		Events: []pipeline.Settlement{done(l.Events[0]), done(l.Events[1])}}
	info, err := settle(t, r.Store, req)
	if err != nil || info.Waiting != 0 || info.Next >= 0 {
		t.Fatalf("settled: %+v, %v, want nothing waiting and no further look", info, err)
	}
	if keys := r.rdb.Keys(t.Context(), "*:{"+limiter.Tag(limiter.Shard("k"))+"}:k").Val(); !slices.Equal(keys, []string{"ratelimit:" + r.shard("k").tag + ":k"}) {
		t.Errorf("left behind: %v", keys)
	}
	if _, ok := r.dueAt("k"); ok {
		t.Error("the lane is still due")
	}
	if _, leased := r.hash("k")["token"]; leased {
		t.Errorf("still leased: %v", r.hash("k"))
	}
	if _, err := settle(t, r.Store, req); !errors.Is(err, pipeline.ErrFenced) {
		t.Errorf("settling again after the release: %v", err)
	}
}

func TestRetriedEventComesBackAtItsOwnTimeWhileTheLaneGoesOn(t *testing.T) {
	r := newRig(t, "100/s burst 100")
	r.park("k", 1, 2, 3)
	l := leaseOf(t, r.Store, "k", 0, 1)
	again := l.Events[0].Entry
	again.Attempt, again.First = 1, time.UnixMilli(start/1000)
	for range 2 { // idempotent
		_, err := settle(t, r.Store, pipeline.SettleRequest{Key: "k", Token: l.Token, Healthy: true, Events: []pipeline.Settlement{
			{Was: l.Events[0].Entry, Now: again, Fate: pipeline.Back, After: 2 * time.Second}}})
		if err != nil {
			t.Fatal(err)
		}
	}
	got := leaseOf(t, r.Store, "k", l.Token, 10)
	if want := []uint64{2, 3}; !slices.Equal(seqs(got), want) {
		t.Fatalf("leased %v, want %v", seqs(got), want)
	}
	info, err := settle(t, r.Store, pipeline.SettleRequest{Key: "k", Token: l.Token, Release: true,
		Events: []pipeline.Settlement{done(got.Events[0]), done(got.Events[1])}})
	if err != nil || info.Waiting != 1 || info.Next != 2*time.Second {
		t.Fatalf("settled: %+v, %v, want one waiting, due in 2s", info, err)
	}
	r.at(2_000_000)
	got = leaseOf(t, r.Store, "k", 0, 10)
	if len(got.Events) != 1 || got.Events[0].Entry != again {
		t.Errorf("after its delay: %+v, want %+v", got.Events, again)
	}
}

func TestExpiredEventTakesNoTokensAndItsSlotGoesToTheNext(t *testing.T) {
	r := newRig(t, "1/s burst 1")
	over := time.UnixMilli(start/1000 + 500)
	for seq := range uint64(4) {
		e := pipeline.Entry{BodyID: pipeline.BodyID{Seq: seq + 1}, Order: seq + 1, Cost: 1}
		if seq < 2 {
			e.Expires = over
		}
		if _, err := r.Park(t.Context(), pipeline.ParkRequest{Key: "k", Entry: e}); err != nil {
			t.Fatal(err)
		}
	}
	r.at(500_000)
	l := leaseOf(t, r.Store, "k", 0, 10)
	if got, want := seqs(l), []uint64{1, 2, 3, 4}; !slices.Equal(got, want) {
		t.Fatalf("leased %v, want %v", got, want)
	}
	for i, e := range l.Events {
		if e.Useless != (i < 2) {
			t.Errorf("event %d: %+v", i+1, e)
		}
	}
	if wait := l.Events[3].At.Sub(l.Events[2].At); wait != time.Second {
		t.Errorf("the second slot is %s after the first, want 1s: the expired ones have none", wait)
	}
}

func TestNewEventWakesALaneWhoseRetryIsFarAway(t *testing.T) {
	r := newRig(t, "100/s burst 100")
	_, err := r.Park(t.Context(), pipeline.ParkRequest{Key: "k", After: 30 * time.Second,
		Entry: pipeline.Entry{BodyID: pipeline.BodyID{Seq: 1}, Order: 1, Cost: 1, Attempt: 1, First: time.UnixMilli(1)}})
	if err != nil {
		t.Fatal(err)
	}
	if at, _ := r.dueAt("k"); at != 30_000_000 {
		t.Fatalf("due at %d, want 30 s", at)
	}
	r.park("k", 2)
	if at, _ := r.dueAt("k"); at != 0 {
		t.Errorf("due at %d after a new event was parked, want now", at)
	}
}

func TestFailingReceiverIsProbedByOneEvent(t *testing.T) {
	r := newRig(t, "100/s burst 100")
	r.park("k", 1, 2, 3, 4)
	l := leaseOf(t, r.Store, "k", 0, 4)
	var back []pipeline.Settlement
	for i, e := range l.Events {
		s := pipeline.Settlement{Was: e.Entry, Now: e.Entry, Fate: pipeline.Back}
		if i == 0 {
			s.Now.Attempt, s.Now.First = 1, time.UnixMilli(start/1000)
		}
		back = append(back, s)
	}
	info, err := settle(t, r.Store, pipeline.SettleRequest{Key: "k", Token: l.Token, Release: true, Sleep: 3 * time.Second, Events: back})
	if err != nil || info.Waiting != 4 || info.Next != 3*time.Second {
		t.Fatalf("settled: %+v, %v", info, err)
	}
	r.at(2_999_999)
	if got := leaseOf(t, r.Store, "k", 0, 10); len(got.Events) != 0 {
		t.Fatalf("leased %v while the receiver is away", seqs(got))
	}
	if d, err := r.Reserve(t.Context(), "k", "", 1, 0); err != nil || d.Reason != limiter.Cooling {
		t.Errorf("a new event: %+v, %v, want it parked as cooling", d, err)
	}
	r.at(3_000_000)
	probe := leaseOf(t, r.Store, "k", 0, 10)
	if len(probe.Events) != 1 || probe.Events[0].Seq != 1 || probe.Events[0].Attempt != 1 {
		t.Fatalf("leased %+v, want the first event alone, on its second attempt", probe.Events)
	}
	if more := leaseOf(t, r.Store, "k", probe.Token, 10); len(more.Events) != 0 {
		t.Fatalf("leased %v beside the probe", seqs(more))
	}
	if _, err := settle(t, r.Store, pipeline.SettleRequest{Key: "k", Token: probe.Token, Healthy: true, Events: []pipeline.Settlement{done(probe.Events[0])}}); err != nil {
		t.Fatal(err)
	}
	if got := leaseOf(t, r.Store, "k", probe.Token, 10); !slices.Equal(seqs(got), []uint64{2, 3, 4}) {
		t.Errorf("after the probe went well: %v, want the rest", seqs(got))
	}
}

func TestFailureIsKeptUntilNoEventWaitsForAnotherAttempt(t *testing.T) {
	r := newRig(t, "100/s burst 100")
	want := func(when, text string) {
		t.Helper()
		if got := r.hash("k")["failure"]; got != text {
			t.Errorf("%s: the failure is %q, want %q", when, got, text)
		}
	}
	e := pipeline.Entry{BodyID: pipeline.BodyID{Seq: 1}, Order: 1, Cost: 1, Attempt: 1}
	if _, err := r.Park(t.Context(), pipeline.ParkRequest{Key: "k", Entry: e, After: 3 * time.Hour, Failure: "status 500"}); err != nil {
		t.Fatal(err)
	}
	want("parked after an attempt", "status 500")
	if ttl := r.rdb.PTTL(t.Context(), r.shard("k").keys(nil, "k")[0]).Val(); ttl < 3*time.Hour {
		t.Errorf("it is kept for %s, want until the next attempt", ttl)
	}
	r.park("k", 2)
	settled := func(l pipeline.Lease, req pipeline.SettleRequest, s pipeline.Settlement) {
		t.Helper()
		req.Key, req.Token, req.Events = "k", l.Token, []pipeline.Settlement{s}
		if _, err := settle(t, r.Store, req); err != nil {
			t.Fatal(err)
		}
	}
	l := leaseOf(t, r.Store, "k", 0, 1)
	settled(l, pipeline.SettleRequest{Healthy: true}, done(l.Events[0]))
	want("another event was delivered", "status 500")
	r.at(3 * time.Hour.Microseconds())
	l = leaseOf(t, r.Store, "k", 0, 1)
	settled(l, pipeline.SettleRequest{Sleep: time.Second, Failure: "status 503"}, pipeline.Settlement{Was: l.Events[0].Entry, Now: e, Fate: pipeline.Back})
	want("failed again", "status 503")
	r.at(3*time.Hour.Microseconds() + 1_000_000)
	l = leaseOf(t, r.Store, "k", l.Token, 1)
	settled(l, pipeline.SettleRequest{Healthy: true, Release: true}, done(l.Events[0]))
	want("delivered", "")
}

func TestPausedKeyLeasesNothingAndIsNotForgotten(t *testing.T) {
	r := newRig(t, "0")
	r.park("k", 1)
	if got := leaseOf(t, r.Store, "k", 0, 10); len(got.Events) != 0 || got.Waiting != 1 {
		t.Fatalf("leased %+v of a paused key", got)
	}
	if at, ok := r.dueAt("k"); !ok || at != 60_000_000 {
		t.Errorf("due at %d, %v, want within the minute", at, ok)
	}
}

func TestDamagedBucketKeepsItsLane(t *testing.T) {
	r := newRig(t, "10/s")
	r.rdb.Set(t.Context(), r.shard("k").keys(nil, "k")[0], "x", 0)
	r.park("k", 1)
	if got := leaseOf(t, r.Store, "k", 0, 10); got.Token != 0 {
		t.Fatalf("leased %+v of a damaged key", got)
	}
	r.rdb.Del(t.Context(), r.shard("k").keys(nil, "k")[0])
	if got := leaseOf(t, r.Store, "k", 0, 10); !slices.Equal(seqs(got), []uint64{1}) {
		t.Errorf("mended: leased %v, want 1", seqs(got))
	}
}

func TestKeysOfAnyBytesStayApart(t *testing.T) {
	r := newRig(t, "10/s burst 100")
	r.now = 0
	names := []string{"a.b", "a", "*", ">", " ", "\t", "🙂", "{x}", "a:b", "%", "\x00\xff", "k,1"}
	for i, k := range names {
		r.park(k, uint64(i+1))
	}
	for _, sh := range r.shards {
		sh.look = time.Time{}
	}
	claimed, _, err := r.Claim(t.Context(), 1000)
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(claimed)
	want := slices.Clone(names)
	slices.Sort(want)
	if !slices.Equal(claimed, want) {
		t.Errorf("claimed %q, want %q", claimed, want)
	}
	for i, k := range names {
		if got := seqs(leaseOf(t, r.Store, k, 0, 10)); !slices.Equal(got, []uint64{uint64(i + 1)}) {
			t.Errorf("lane of %q holds %v", k, got)
		}
	}
}

func TestEveryCallIsRefusedUnderAnotherEpochAndWritesNothing(t *testing.T) {
	r := newRig(t, "10/s")
	r.rdb.FlushAll(t.Context())
	ctx := t.Context()
	for name, call := range map[string]func() error{
		"reserve": func() error { _, err := r.Reserve(ctx, "k", "", 1, 0); return err },
		"park":    func() error { _, err := r.Park(ctx, pipeline.ParkRequest{Key: "k"}); return err },
		"lease":   func() error { _, err := r.Lease(ctx, pipeline.LeaseRequest{Key: "k"}); return err },
		"settle":  func() error { _, err := r.Settle(ctx, pipeline.SettleRequest{Key: "k"}); return err },
		"claim":   func() error { _, _, err := r.Claim(ctx, 16); return err },
	} {
		if err := call(); !errors.Is(err, ErrEpoch) {
			t.Errorf("%s: %v, want %v", name, err, ErrEpoch)
		}
	}
	if n := r.rdb.DBSize(ctx).Val(); n != 0 {
		t.Errorf("%d keys were written", n)
	}
}

func TestIndexIsRebuiltFromTheBodies(t *testing.T) {
	r := newRig(t, "100/s burst 100")
	for i := range 1000 {
		r.bodies.events = append(r.bodies.events, &pipeline.Event{
			Key: fmt.Sprintf("k%d", i%10), Cost: 1, Source: pipeline.SourceID{Seq: uint64(5000 - i)}})
	}
	r.rdb.FlushAll(t.Context())
	two := r.worker("two", "100/s burst 100") // rebuilds
	if err := r.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	two.now = start + 10_000_000
	total := 0
	for i := range 10 {
		l := leaseOf(t, two, fmt.Sprintf("k%d", i), 0, 1000)
		total += len(l.Events)
		if !slices.IsSortedFunc(l.Events, func(a, b pipeline.Leased) int { return int(a.Order) - int(b.Order) }) {
			t.Errorf("k%d isn't in source order", i)
		}
	}
	if total != 1000 {
		t.Errorf("%d events found again, want 1000", total)
	}
}

func TestSecondLossDuringARebuildStartsItOver(t *testing.T) {
	r := newRig(t, "100/s burst 1000")
	for i := range 600 {
		r.bodies.events = append(r.bodies.events, &pipeline.Event{Key: "k", Cost: 1, Source: pipeline.SourceID{Seq: uint64(i + 1)}})
	}
	n := 0
	r.bodies.pause = func() {
		if n++; n == 400 {
			r.rdb.FlushAll(t.Context())
		}
	}
	r.rdb.FlushAll(t.Context())
	if err := r.Open(t.Context()); err == nil {
		t.Fatal("a rebuild over a second loss succeeded")
	}
	if err := r.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := len(r.zset("lane", "k")); got != 600 {
		t.Errorf("%d indexed, want 600", got)
	}
}

func TestStateOfAnotherFormatIsLeftAlone(t *testing.T) {
	r := newRig(t, "10/s")
	r.rdb.HSet(t.Context(), r.shards[3].epochKey, "format", "2")
	if err := r.Start(t.Context()); !errors.Is(err, ErrFormat) {
		t.Errorf("started with %v, want %v", err, ErrFormat)
	}
}

func TestFirstStartIsFreshForAllWorkers(t *testing.T) {
	r := newRig(t, "10/s burst 20")
	two := r.worker("two", "10/s burst 20")
	for i, s := range []*Store{r.Store, two} {
		key := fmt.Sprintf("k%d", i)
		for range 20 {
			if d, err := s.Reserve(t.Context(), key, "", 1, 0); err != nil || d.Verdict != limiter.Go {
				t.Fatalf("%+v, %v: a bucket isn't full at the very first start", d, err)
			}
		}
	}
}

func FuzzMemberRoundTrip(f *testing.F) {
	f.Add(uint64(1), uint64(2), 0, int64(1), int64(0), "", false)
	f.Add(uint64(1)<<52, uint64(7), 3, int64(9), int64(1_764_460_800_123), "", false)
	f.Add(uint64(7), uint64(1)<<53, 0, int64(1), int64(0), "", false)
	f.Add(^uint64(0), ^uint64(0), 3, int64(9), int64(1_764_460_800_123), "x", true)
	f.Add(uint64(1)<<52, uint64(7), 3, int64(9), int64(1_764_460_800_123), "!a,b 🙂", false)
	f.Add(uint64(1), uint64(2), 0, int64(1), int64(0), "!", true)
	f.Fuzz(func(t *testing.T, seq, order uint64, attempt int, cost, first int64, name string, collapsed bool) {
		e := pipeline.Entry{BodyID: pipeline.BodyID{Seq: seq}, Order: order, Attempt: min(max(0, attempt), exact), Cost: min(max(1, cost), exact)}
		if e.Attempt > 0 && first > 0 && first < 1<<50 {
			e.First = time.UnixMilli(first)
		}
		if len(name) > 0 && len(name) <= limiter.MaxKey {
			e.Collapse, e.Collapsed = name, collapsed
		}
		got, err := parseMember(member(e), strconv.FormatUint(order, 10))
		if err != nil || got != e {
			t.Errorf("%+v became %q and then %+v, %v", e, member(e), got, err)
		}
	})
}
