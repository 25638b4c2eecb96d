package redisstore

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"sluice/limiter"
	"sluice/pipeline"
)

// parkCosts parks events of k in a tier that cost so much, as the first, second and so on of the source.
func (r *rig) parkCosts(tier string, costs ...int64) {
	r.t.Helper()
	for i, cost := range costs {
		seq := uint64(i + 1)
		_, err := r.Park(r.t.Context(), pipeline.ParkRequest{
			Key: "k", Tier: tier, Entry: pipeline.Entry{BodyID: pipeline.BodyID{Seq: seq}, Order: seq, Cost: cost},
		})
		if err != nil {
			r.t.Fatal(err)
		}
	}
}

// costly writes a lease's events, "!" before those that cost too much.
func costly(l pipeline.Lease) string {
	var all []string
	for _, e := range l.Events {
		sign := ""
		if e.Costly {
			sign = "!"
		}
		if e.Useless {
			sign = "?"
		}
		all = append(all, fmt.Sprint(sign, e.Seq))
	}
	return strings.Join(all, " ")
}

func TestWaitingEventThatCostsMoreThanALimitHoldsTakesNoTokens(t *testing.T) {
	for limits, want := range map[string]string{
		"1/h burst 3":        "!1 2 !3",   // 4 finds one token too few
		"100/s burst 3":      "!1 2 !3 4", // the tokens of a fifth would be there within the second
		"100/s burst 9":      "1 2 3 4",
		"100/s burst 9, 4/h": "!1 2", // the smallest burst counts
		"100/s, 3/d sliding": "!1 2 !3",
		"100/s leaky":        "!1 !2 !3 !4",
		"3/min window":       "!1 2 !3",
		"unlimited":          "1 2 3 4",
	} {
		t.Run(limits, func(t *testing.T) {
			r, rules := newLimitedRig(t, "0")
			r.parkCosts("", 5, 3, 4, 2)
			rules.setAll(limits)
			l := leaseOf(t, r.Store, "k", 0, 10)
			got := costly(l)
			if got != want {
				t.Errorf("leased %s, want %s", got, want)
			}
		})
	}
}

func TestLaneIsDueAtOnceForAnEventThatCostsTooMuch(t *testing.T) {
	r, rules := newLimitedRig(t, "1/h burst 5")
	r.ask("k", 5, 0)
	r.parkCosts("", 1, 5)
	rules.setAll("1/h burst 1")
	r.at(int64(2 * time.Hour / time.Microsecond))
	l := leaseOf(t, r.Store, "k", 0, 1)
	if got := costly(l); got != "1" || l.Next != 0 {
		t.Fatalf("leased %s, the next look in %s, want the first and at once", got, l.Next)
	}
	l = leaseOf(t, r.Store, "k", l.Token, 10)
	if got := costly(l); got != "!2" {
		t.Errorf("leased %s, want the second for its dead letter", got)
	}
}

func TestCostIsComparedWithTheLimitsOfTheLanesTier(t *testing.T) {
	r, limits := newLimitedRig(t, "100/s burst 9")
	limits.setTier("small", "100/s burst 2")
	r.parkCosts("small", 5, 2, 1)
	if got := costly(leaseOf(t, r.Store, "k", 0, 10)); got != "!1 2 3" {
		t.Errorf("leased %s, want the first marked", got)
	}
	r.opt.Tiers = false
	if got := costly(leaseOf(t, r.Store, "k", 0, 10)); got != "1 2 3" {
		t.Errorf("where tiers don't count: leased %s, want none marked", got)
	}
}

// An event that was tried, and waits for its own time, is no exception; one whose time is over is dropped as such.
func TestEventsThatCostTooMuchAreMarkedWhereverTheyWait(t *testing.T) {
	r := newRig(t, "100/s burst 2")
	over := time.UnixMilli(start/1000 - 1)
	for _, p := range []pipeline.ParkRequest{
		{Entry: pipeline.Entry{BodyID: pipeline.BodyID{Seq: 1}, Order: 1, Cost: 5, Attempt: 1, First: over}, After: time.Second},
		{Entry: pipeline.Entry{BodyID: pipeline.BodyID{Seq: 2}, Order: 2, Cost: 5, Expires: over}},
		{Entry: pipeline.Entry{BodyID: pipeline.BodyID{Seq: 3}, Order: 3, Cost: 5}},
	} {
		p.Key = "k"
		if _, err := r.Park(t.Context(), p); err != nil {
			t.Fatal(err)
		}
	}
	r.at(1_000_000)
	l := leaseOf(t, r.Store, "k", 0, 10)
	if got := costly(l); got != "!1 ?2 !3" {
		t.Errorf("leased %s, want the first and the third marked", got)
	}
	if h := r.hash("k"); h["tokens"] != "" {
		t.Errorf("tokens were taken: %v", h)
	}
	info, err := settle(t, r.Store, pipeline.SettleRequest{Key: "k", Token: l.Token, Release: true,
		Events: slices.Collect(func(yield func(pipeline.Settlement) bool) {
			for _, e := range l.Events {
				if !yield(done(e)) {
					return
				}
			}
		})})
	if err != nil || info.Waiting != 0 || info.Next >= 0 {
		t.Errorf("settled: %+v, %v", info, err)
	}
}

// checkCosts compares what is noted of k with what waits.
func (r *rig) checkCosts(when string) {
	r.t.Helper()
	want := int64(0)
	for _, m := range slices.Concat(r.zset("lane", "k"), r.zset("retry", "k")) {
		e, err := parseMember(m, "0")
		if err != nil {
			r.t.Fatal(err)
		}
		if !e.Collapsed {
			want += e.Cost - 1
		}
	}
	noted, is := r.hash("k")["extra"]
	if got, _ := strconv.ParseInt(noted, 10, 64); got != want || is != (want > 0) {
		r.t.Fatalf("%s: %q is noted beyond one token for each event, want %d; it is missing where that is 0", when, noted, want)
	}
}

// Whatever becomes of the events of a lane, and however often it is said, what they cost stays what is noted.
func TestCostsOfALaneAreNotedExactly(t *testing.T) {
	t.Parallel()
	for seed := range uint64(6) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := newRig(t, "1/s burst 20")
			rng := rand.New(rand.NewPCG(seed, 7))
			var lease pipeline.Lease
			now := int64(0)
			for step := range 300 {
				now += rng.Int64N(1_000_000)
				r.at(now)
				what := costStep(r, rng, uint64(step+1), &lease)
				r.checkCosts(fmt.Sprintf("step %d, %s", step, what))
			}
		})
	}
}

// costStep does something with the lane of k and says what.
func costStep(r *rig, rng *rand.Rand, seq uint64, lease *pipeline.Lease) string {
	t := r.t
	t.Helper()
	ctx := t.Context()
	switch n := rng.IntN(10); {
	case n < 4:
		p := pipeline.ParkRequest{Key: "k", Entry: pipeline.Entry{BodyID: pipeline.BodyID{Seq: seq}, Order: seq, Cost: 1 + rng.Int64N(3)*4}}
		if rng.IntN(3) == 0 {
			p.Entry.Collapse = "position"
		}
		if rng.IntN(4) == 0 {
			p.After = time.Duration(rng.IntN(5_000)) * time.Millisecond
		}
		var info pipeline.LaneInfo
		for range 2 {
			var err error
			if info, err = r.Park(ctx, p); err != nil {
				t.Fatal(err)
			}
		}
		if info.Collapsed != nil && rng.IntN(2) == 0 {
			if _, err := r.Forget(ctx, "k", *info.Collapsed); err != nil {
				t.Fatal(err)
			}
		}
		return "parked"
	case n < 7:
		*lease = leaseOf(t, r.Store, "k", 0, 5) // what the last one held is taken back
		return "leased"
	case n < 9:
		req := pipeline.SettleRequest{Key: "k", Token: lease.Token, Release: rng.IntN(2) == 0}
		for _, e := range lease.Events {
			s := done(e)
			if rng.IntN(3) == 0 {
				s.Fate, s.Now = pipeline.Back, e.Entry
				s.Now.Attempt, s.Now.First = s.Now.Attempt+1, time.UnixMilli(r.now/1000)
				s.After = time.Duration(rng.IntN(2)) * time.Second
			}
			req.Events = append(req.Events, s)
		}
		for range 2 {
			if _, err := r.Settle(ctx, req); err != nil && !errors.Is(err, pipeline.ErrFenced) {
				t.Fatal(err)
			}
		}
		return "settled"
	default:
		if _, err := r.Reserve(ctx, "k", "", 3, time.Second); err != nil {
			t.Fatal(err)
		}
		return "reserved"
	}
}

func TestLongestWaitCountsWhatTheEventsAheadCost(t *testing.T) {
	r := newRig(t, "1/s burst 5")
	args := r.rule("", "").args
	args[len(args)-1] = 10 // tokens in ten seconds
	ask := func(key string, cost int64) limiter.Verdict {
		d, err := r.Reserve(t.Context(), key, "", cost, 0)
		if err != nil {
			t.Fatal(err)
		}
		if late := d.Wait > 10*time.Second; late != (d.Verdict == limiter.Overflow) {
			t.Errorf("verdict %d of an event that would wait %s", d.Verdict, d.Wait)
		}
		return d.Verdict
	}
	want := func(key, when string, cost int64, verdict limiter.Verdict) {
		t.Helper()
		if got := ask(key, cost); got != verdict {
			t.Errorf("%s, an event that costs %d: verdict %d, want %d", when, cost, got, verdict)
		}
	}
	seq := uint64(0)
	park := func(key string, cost int64, counted bool) {
		t.Helper()
		seq++
		if _, err := r.Park(t.Context(), pipeline.ParkRequest{
			Key: key, Counted: counted, Entry: pipeline.Entry{BodyID: pipeline.BodyID{Seq: seq}, Order: seq, Cost: cost},
		}); err != nil {
			t.Fatal(err)
		}
	}

	// Those that are still on their way count as those that wait.
	for _, parks := range []bool{false, true} {
		key := fmt.Sprint("parked ", parks)
		want(key, "with a full bucket", 5, limiter.Go)
		for _, cost := range []int64{5, 1} {
			want(key, "with 10 s of room", cost, limiter.Park)
			if parks {
				park(key, cost, true)
			}
		}
		want(key, "behind 6 tokens", 5, limiter.Overflow)
		for _, cost := range []int64{1, 1, 1, 1} {
			want(key, "behind 6 to 9 tokens", cost, limiter.Park)
			if parks {
				park(key, cost, true)
			}
		}
		want(key, "behind 10 tokens", 1, limiter.Overflow)
		if h := r.hash(key); parks && (h["opening"] != "0" || h["openingExtra"] != "0") {
			t.Errorf("all have come: %v", h)
		}
	}

	// What is leased has its tokens and is no longer ahead, what comes back is.
	r.at(5_000_000)
	key := "parked true"
	l := leaseOf(t, r.Store, key, 0, 1)
	if len(l.Events) != 1 || l.Events[0].Cost != 5 {
		t.Fatalf("leased %+v", l.Events)
	}
	want(key, "behind 5 tokens", 5, limiter.Park)
	park(key, 5, true)
	want(key, "behind 10 tokens", 1, limiter.Overflow)
	if _, err := settle(t, r.Store, pipeline.SettleRequest{Key: key, Token: l.Token, Release: true}); err != nil {
		t.Fatal(err)
	}
	r.at(10_000_000) // five tokens more
	want(key, "with 5 tokens, behind 15", 1, limiter.Overflow)
}

func TestRebuiltAndVerifiedLanesKnowTheirCosts(t *testing.T) {
	r := newRig(t, "1/s burst 20")
	for i, seq := range r.bodies.store("k", 4) {
		r.bodies.events[seq-1].Header = pipeline.Header{"Sluice-Cost": {fmt.Sprint(1 + 3*i)}}
	}
	verified(t, r.Store, 2)
	r.checkCosts("two had no place")
	r.rdb.FlushAll(t.Context())
	if err := r.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.checkCosts("rebuilt")
	if got := r.hash("k")["extra"]; got != "18" {
		t.Errorf("%q noted, want 18", got)
	}
	if ttl := r.rdb.PTTL(t.Context(), r.shard("k").keys(nil, "k")[0]).Val(); ttl < 89*24*time.Hour {
		t.Errorf("the key expires in %s although events wait", ttl)
	}
	r.bodies.created++ // of another stream, none of whose events waits
	r.bodies.events = nil
	if err := r.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.checkCosts("dropped")
}

func TestCostsAreKeptForAsLongAsEventsWait(t *testing.T) {
	r := newRig(t, "100/s burst 20")
	ttl := func() time.Duration { return r.rdb.PTTL(t.Context(), r.shard("k").keys(nil, "k")[0]).Val() }
	r.parkCosts("", 5, 1)
	if ttl() < 89*24*time.Hour {
		t.Errorf("the key expires in %s although an event of 5 tokens waits", ttl())
	}
	l := leaseOf(t, r.Store, "k", 0, 2)
	_, err := settle(t, r.Store, pipeline.SettleRequest{Key: "k", Token: l.Token, Release: true,
		Events: []pipeline.Settlement{done(l.Events[0]), done(l.Events[1])}})
	if err != nil || ttl() > 2*time.Minute {
		t.Errorf("nothing waits: the key expires in %s, %v", ttl(), err)
	}
}

// A note that has gone wrong, by whatever, ends with the lane.
func TestWrongNoteOfCostsEndsWithTheLane(t *testing.T) {
	r := newRig(t, "100/s burst 20")
	r.parkCosts("", 5)
	r.rdb.HSet(t.Context(), r.shard("k").keys(nil, "k")[0], "extra", "1000")
	l := leaseOf(t, r.Store, "k", 0, 2)
	_, err := settle(t, r.Store, pipeline.SettleRequest{Key: "k", Token: l.Token, Release: true,
		Events: []pipeline.Settlement{done(l.Events[0])}})
	if err != nil {
		t.Fatal(err)
	}
	r.checkCosts("closed")
}
