package redisstore

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"sluice/limiter"
	"sluice/pipeline"
)

// wideOrders are sequences of streams that a double doesn't hold exactly: a stream that mirrors another or was restored may have them.
var wideOrders = map[string]uint64{
	"around 2^53": 1<<53 - 10, "Unix time in ns": 1_764_460_800_000_000_001, "around 2^63": 1<<63 - 10, "the last there are": 1<<64 - 30,
}

// wideEntry is one of 20 events from an order on: some were tried, some cost more, some have a name. Their bodies, too, lie
// behind each other in another order and with large sequences.
func wideEntry(first uint64, i int) pipeline.Entry {
	e := pipeline.Entry{BodyID: pipeline.BodyID{Created: 7, Seq: 1<<60 + uint64(7*i%20)}, Order: first + uint64(i), Cost: 1}
	switch i % 5 {
	case 1:
		e.Cost = 2
	case 2:
		e.Attempt, e.First = 1, time.UnixMilli(start/1000)
	case 3:
		e.Collapse = fmt.Sprint("name ", i)
	}
	return e
}

func (r *rig) parkEntry(e pipeline.Entry) pipeline.LaneInfo {
	r.t.Helper()
	info, err := r.Park(r.t.Context(), pipeline.ParkRequest{Key: "k", Entry: e})
	if err != nil {
		r.t.Fatal(err)
	}
	return info
}

func (r *rig) empty(key string) {
	r.t.Helper()
	for _, set := range []string{"lane", "busy", "retry"} {
		if left := r.zset(set, key); len(left) > 0 {
			r.t.Errorf("%s holds %v", set, left)
		}
	}
}

func TestLaneLeavesInSourceOrderHoweverLargeItsSequences(t *testing.T) {
	for name, first := range wideOrders {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, "1000/s burst 1000")
			for _, i := range rand.Perm(20) {
				r.parkEntry(wideEntry(first, i))
				r.parkEntry(wideEntry(first, i)) // again, since the reply was lost
			}
			st, err := r.Standing(t.Context(), "k", "")
			if err != nil || st.First != wideEntry(first, 0) || st.Waiting != 20 {
				t.Errorf("the first of %d is %+v, %v", st.Waiting, st.First, err)
			}
			for round := range 2 { // the odd ones go back in the first
				l := leaseOf(t, r.Store, "k", 0, 100)
				req := pipeline.SettleRequest{Key: "k", Token: l.Token, Release: true}
				for at, e := range l.Events {
					i := at
					if round > 0 {
						i = 2*at + 1
					}
					if want := wideEntry(first, i); e.Entry != want {
						t.Errorf("event %d of round %d is %+v, want %+v", at, round, e.Entry, want)
					}
					s := done(e)
					if round == 0 && i%2 == 1 {
						s.Fate, s.Now = pipeline.Back, e.Entry
					}
					req.Events = append(req.Events, s)
				}
				if len(l.Events) != 20-10*round {
					t.Errorf("leased %d events in round %d", len(l.Events), round)
				}
				if info, err := r.Settle(t.Context(), req); err != nil || info.Waiting != int64(10-10*round) {
					t.Errorf("settled: %+v, %v", info, err)
				}
			}
			r.empty("k")
		})
	}
}

func TestOrderedLeaseComparesLargePlacesExactly(t *testing.T) {
	for name, first := range wideOrders {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, "1000/s burst 1000")
			for _, i := range rand.Perm(20) {
				r.parkEntry(wideEntry(first, i))
			}
			l := r.leaseUpTo(r.Store, 0, first+3, 0)
			if len(l.Events) != 4 || l.Events[3].Order != first+3 || l.Barred != first+4 {
				t.Errorf("up to %d leased %d events, barred %d", first+3, len(l.Events), l.Barred)
			}
			if l = r.leaseUpTo(r.Store, l.Token, first+3, first+4); len(l.Events) != 1 || l.Events[0].Order != first+4 || l.Barred != first+5 {
				t.Errorf("with one that needn't wait leased %+v, barred %d", l.Events, l.Barred)
			}
		})
	}
}

func TestOfOneNameTheNewestIsKnownHoweverLargeItsPlace(t *testing.T) {
	r := newRig(t, "1000/s burst 1000")
	const first = 1<<53 + 1
	entry := func(i uint64) pipeline.Entry {
		return pipeline.Entry{BodyID: pipeline.BodyID{Created: 7, Seq: 10 - i}, Order: first + i, Cost: 1, Collapse: "position"}
	}
	for _, i := range []uint64{1, 0, 2} { // the one in the middle is the older, and then the last before
		info := r.parkEntry(entry(i))
		if i == 1 {
			continue
		}
		want := entry(i / 2)
		if want.Collapsed = true; info.Collapsed == nil || *info.Collapsed != want {
			t.Fatalf("after event %d: %+v is to be dropped, want %+v", i, info.Collapsed, want)
		}
		if was, err := r.Forget(t.Context(), "k", want); !was || err != nil {
			t.Errorf("forget: %t, %v", was, err)
		}
	}
	l := leaseOf(t, r.Store, "k", 0, 10)
	if len(l.Events) != 1 || l.Events[0].Entry != entry(2) {
		t.Errorf("leased %+v, want the newest", l.Events)
	}
}

func TestPurgeDeletesEventsWithLargePlaces(t *testing.T) {
	r := newRig(t, "1000/s burst 1000")
	first := wideOrders["Unix time in ns"]
	for i := range 20 {
		r.parkEntry(wideEntry(first, i))
	}
	var gone removal
	if n, err := r.Purge(t.Context(), "k", gone.remove); n != 20 || err != nil {
		t.Errorf("purged %d, %v", n, err)
	}
	r.empty("k")
}

// What versions stored whose members didn't begin with such an order: its score is rounded, and the sequence alone says nothing.
func (r *rig) parkAsBefore(e pipeline.Entry) {
	r.t.Helper()
	m := strconv.FormatUint(e.Seq, 10)
	if e.Cost > 1 || e.Attempt > 0 || e.Collapse != "" {
		m = member(e)[2*digits:]
		m = strconv.FormatUint(e.Seq, 10) + m
	}
	keys := r.shard("k").laneKeys(nil, "k")
	r.rdb.ZAdd(r.t.Context(), keys[1], redis.Z{Member: m, Score: float64(e.Order)})
	r.rdb.ZAdd(r.t.Context(), r.shard("k").dueKey, redis.Z{Member: "k", Score: float64(start)})
}

func TestLaneWithRoundedPlacesOfAnOlderVersionIsDrained(t *testing.T) {
	r := newRig(t, "1000/s burst 1000")
	first := wideOrders["Unix time in ns"]
	want := map[uint64]bool{}
	for i := range 20 {
		e := wideEntry(first, i)
		r.parkAsBefore(e)
		want[e.Seq] = true
	}
	l := leaseOf(t, r.Store, "k", 0, 100)
	for _, seq := range seqs(l) {
		delete(want, seq)
	}
	if len(l.Events) != 20 || len(want) > 0 {
		t.Errorf("leased %d events, without %v", len(l.Events), want)
	}
	if _, err := r.Settle(t.Context(), settleAll("k", l)); err != nil {
		t.Fatal(err)
	}
	r.empty("k")
}

func TestRoundedPlacesAreFoundAndMended(t *testing.T) {
	r := newRig(t, "1000/s burst 1000")
	first := wideOrders["Unix time in ns"]
	seqs := r.bodies.store("k", 20)
	for i, seq := range seqs {
		r.bodies.events[seq-1].Source.Seq = first + uint64((i+7)%20)
		r.parkAsBefore(pipeline.Entry{BodyID: pipeline.BodyID{Seq: seq}, Order: first + uint64((i+7)%20), Cost: 1})
	}
	in := r.inspect()
	if len(in.Findings) != 20 || in.Findings[0].Kind != WrongOrder {
		t.Fatalf("found %+v, want 20 places in no order", in.Findings)
	}
	if err := r.Mend(t.Context(), in.Findings); err != nil {
		t.Fatal(err)
	}
	if in := r.inspect(); len(in.Findings) > 0 {
		t.Errorf("left: %+v", in.Findings)
	}
	for i, e := range leaseOf(t, r.Store, "k", 0, 100).Events {
		if e.Order != first+uint64(i) {
			t.Errorf("event %d is in place %d, want %d", i, e.Order, first+uint64(i))
		}
	}
}

func TestScoreThatIsNoPlaceIsFound(t *testing.T) {
	r := newRig(t, "1000/s burst 1000")
	r.index("k", r.bodies.store("k", 3)...)
	r.rdb.ZAdd(t.Context(), r.shard("k").keys(nil, "k")[1], redis.Z{Member: "2", Score: 1002.5})
	if in := r.inspect(); !slices.Equal(kinds(in), []FindingKind{WrongOrder}) {
		t.Errorf("found %+v: no worker can lease that lane", in.Findings)
	}
}

func TestEventsWithLargePlacesAreRebuiltAndVerified(t *testing.T) {
	r := newRig(t, "1000/s burst 1000")
	first := wideOrders["around 2^63"]
	for i, seq := range r.bodies.store("k", 20) {
		r.bodies.events[seq-1].Source.Seq = first + uint64(i)
	}
	if err := r.verify(t.Context(), 20); err != nil {
		t.Fatal(err)
	}
	if n := len(r.zset("lane", "k")); n != 20 {
		t.Errorf("%d of 20 events got a place", n)
	}
	was := r.zset("lane", "k")
	r.shard("k").suspect.Store(true)
	if err := r.verify(t.Context(), 20); err != nil || !slices.Equal(r.zset("lane", "k"), was) {
		t.Errorf("verified again, %v, the lane is %v, want %v", err, r.zset("lane", "k"), was)
	}
	r.rdb.FlushAll(t.Context())
	if err := r.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := r.zset("lane", "k"); !slices.Equal(got, was) {
		t.Errorf("rebuilt, the lane is %v, want %v", got, was)
	}
	// The lane stream's own sequences, too, may be so large.
	const last = 1<<63 + 9_007
	sh := r.shards[limiter.Shard("k")]
	v, err := sh.verify(t.Context(), last)
	if err != nil {
		t.Fatal(err)
	}
	if err := v.finish(); err != nil {
		t.Fatal(err)
	}
	if v, err = sh.verify(t.Context(), last); err != nil || v.verified != last {
		t.Errorf("verified up to %d, %v, want %d", v.verified, err, uint64(last))
	}
	v.leave()
}

// What a script refuses has to be found by who looks for what is wrong, and what it leases has to be understood.
func TestScriptsAndTheStoreReadTheSameMembers(t *testing.T) {
	r := newRig(t, "1/s burst 1")
	ask := redis.NewScript(baseLua + commonLua + waitingLua + "return readable(ARGV[1], ARGV[2]) and 1 or 0")
	wide := member(pipeline.Entry{BodyID: pipeline.BodyID{Seq: 17}, Order: 1<<53 + 1, Cost: 1})
	for _, m := range []string{
		"17", "", "x", "-1", "1.5", "1e3", "9007199254740993", "18446744073709551615", "18446744073709551616", "000000000000000000000017",
		"17,0,1,0,7,0", "17,0,1,0,9007199254740993,0", "17,0,1,0,18446744073709551616,0", "17,0,9007199254740993,0,7,0", "17,0,x,0,7,0",
		"17,0,1", "17,", "17,0,1,0,,0", wide, wide[:2*digits], "1" + wide, wide[1:], "9" + wide[1:], wide + ",bm8", "x" + wide[1:],
		strings.Replace(wide, ",9007199254740993,", ",9007199254740995,", 1),
	} {
		_, err := parseMember(m, "0")
		if can, callErr := ask.Run(t.Context(), r.rdb, nil, m, "7").Int(); callErr != nil || (can == 1) != (err == nil) {
			t.Errorf("%q: the scripts say %d, %v, the store says %v", m, can, callErr, err)
		}
	}
}
