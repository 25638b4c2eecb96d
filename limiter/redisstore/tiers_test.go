package redisstore

import (
	"testing"
	"time"

	"sluice/limiter"
	"sluice/pipeline"
)

// parkIn parks events of key that name a tier.
func (r *rig) parkIn(tier, key string, seqs ...uint64) {
	r.t.Helper()
	for _, seq := range seqs {
		_, err := r.Park(r.t.Context(), pipeline.ParkRequest{
			Key: key, Tier: tier, Entry: pipeline.Entry{BodyID: pipeline.BodyID{Seq: seq}, Order: seq, Cost: 1},
		})
		if err != nil {
			r.t.Fatal(err)
		}
	}
}

// goesBy checks the tier of a lane, and how many of its events that lets go.
func (r *rig) goesBy(key, tier string, events int) pipeline.Lease {
	r.t.Helper()
	l := leaseOf(r.t, r.Store, key, 0, 100)
	if l.Tier != tier || len(l.Events) != events {
		r.t.Errorf("%s: %d events of the tier %q, want %d of %q", key, len(l.Events), l.Tier, events, tier)
	}
	return l
}

func TestEventsAreDecidedOnByTheirTier(t *testing.T) {
	r, limits := newLimitedRig(t, "1/h")
	limits.setTier("pro", "5/h")
	for tier, want := range map[string]int{"pro": 5, "unknown": 1, "": 1} {
		count := 0
		for range 8 {
			if d, err := r.Reserve(t.Context(), "of "+tier, tier, 1, 0); err == nil && d.Verdict == limiter.Go {
				count++
			}
		}
		if count != want {
			t.Errorf("%q: %d go, want %d", tier, count, want)
		}
	}
	r.opt.Tiers = false
	if d, err := r.Reserve(t.Context(), "other", "pro", 5, 0); err != nil || d.Verdict != limiter.Never {
		t.Errorf("where tiers don't count: %+v, %v", d, err)
	}
}

func TestLaneGoesByTheTierOfItsNewestEvent(t *testing.T) {
	r, limits := newLimitedRig(t, "1/h")
	limits.setTier("pro", "3/h")
	limits.setTier("big", "7/h")
	many := []uint64{1, 2, 3, 4, 5, 6, 7, 8, 9}
	r.parkIn("pro", "k", many...)
	if got := r.hash("k")["class"]; got != "pro" {
		t.Errorf("class %q", got)
	}
	l := r.goesBy("k", "pro", 3)

	r.parkIn("big", "k", 10)
	l, err := r.Lease(t.Context(), pipeline.LeaseRequest{Key: "k", Tier: l.Tier, Token: l.Token, Max: 100, Horizon: time.Second})
	if err != nil || l.Tier != "big" || l.Token == 0 || len(l.Events) != 0 { // the state of one an hour is one state
		t.Errorf("after an event of another tier: %+v, %v", l, err)
	}
	r.parkIn("", "k", 11)
	if l, err = r.Lease(t.Context(), pipeline.LeaseRequest{Key: "k", Tier: l.Tier, Token: l.Token, Max: 100, Horizon: time.Second}); err != nil || l.Tier != "" {
		t.Errorf("after an event of no tier: %+v, %v", l, err)
	}
	limits.set("k", "11/h burst 11, 2/d") // the key's own, whatever the tier
	r.parkIn("pro", "own", many...)
	limits.set("own", "2/d")
	r.goesBy("own", "pro", 2)
}

// Who settles by a tier that the lane no longer is of can't tell when it is due.
func TestLaneWhoseTierChangedWhileItWasLeasedIsDueAtOnce(t *testing.T) {
	r, limits := newLimitedRig(t, "1/h")
	limits.setTier("pro", "100/s")
	r.parkIn("", "k", 1, 2, 3)
	l := r.goesBy("k", "", 1)
	r.parkIn("pro", "k", 4)
	info, err := settle(t, r.Store, pipeline.SettleRequest{
		Key: "k", Tier: l.Tier, Token: l.Token, Events: []pipeline.Settlement{done(l.Events[0])}, Release: true,
	})
	if at, ok := r.dueAt("k"); err != nil || info.Next != 0 || !ok || at != 0 {
		t.Errorf("the next look is in %s, due at %d, %t, %v; want now", info.Next, at, ok, err)
	}
	r.goesBy("k", "pro", 3)
}

func TestTierIsKeptForAsLongAsEventsWait(t *testing.T) {
	r, limits := newLimitedRig(t, "1/h")
	limits.setTier("pro", "10/s")
	key := r.shard("k").keys(nil, "k")[0]
	ttl := func() time.Duration { return r.rdb.PTTL(t.Context(), key).Val() }
	r.parkIn("pro", "k", 1, 2)
	if ttl() < 89*24*time.Hour {
		t.Errorf("the key expires in %s although events wait", ttl())
	}
	if _, err := r.Reserve(t.Context(), "k", "pro", 1, 0); err != nil { // parked: it writes, and knows nothing of classes
		t.Fatal(err)
	}
	if ttl() < 89*24*time.Hour {
		t.Errorf("the key expires in %s after another event came", ttl())
	}
	l := r.goesBy("k", "pro", 2)
	_, err := settle(t, r.Store, pipeline.SettleRequest{Key: "k", Tier: "pro", Token: l.Token, Release: true,
		Events: []pipeline.Settlement{done(l.Events[0]), done(l.Events[1])}})
	if err != nil || r.hash("k")["class"] != "" || ttl() > 2*time.Minute {
		t.Errorf("nothing waits: class %q, expires in %s, %v", r.hash("k")["class"], ttl(), err)
	}
	if h := r.hash("k"); h["tokens"] != "8" {
		t.Errorf("%v, want the tokens kept", h)
	}

	r.parkIn("pro", "k", 3)
	l = r.goesBy("k", "pro", 1)
	_, err = settle(t, r.Store, pipeline.SettleRequest{Key: "k", Tier: "pro", Token: l.Token,
		Events: []pipeline.Settlement{done(l.Events[0])}})
	if l := leaseOf(t, r.Store, "k", l.Token, 1); err != nil || l.Token != 0 || r.hash("k")["class"] != "" || ttl() > 2*time.Minute {
		t.Errorf("leased once more: class %q, expires in %s, %+v, %v", r.hash("k")["class"], ttl(), l, err)
	}
}

func TestTiersThatNoLongerCountRuleNoLane(t *testing.T) {
	r, limits := newLimitedRig(t, "2/h")
	limits.setTier("pro", "5/h")
	r.parkIn("pro", "k", 1, 2, 3, 4, 5, 6)
	r.opt.Tiers = false
	if l := leaseOf(t, r.Store, "k", 0, 10); len(l.Events) != 2 {
		t.Errorf("%d leased, want those that the limits of all let go", len(l.Events))
	}
}

func TestRebuiltLanesGoByTheTierOfTheirNewestEvent(t *testing.T) {
	r, limits := newLimitedRig(t, "1/h")
	limits.setTier("pro", "100/s")
	limits.setTier("big", "50/s")
	pro, big := pipeline.Header{"sluice-tier": {"pro"}}, pipeline.Header{"Sluice-Tier": {"big"}}
	for _, ev := range []struct {
		key    string
		header pipeline.Header
	}{{"pro", big}, {"pro", pro}, {"none", nil}, {"late", nil}, {"late", big}, {"damaged", pro}} {
		seq := r.bodies.store(ev.key, 1)[0]
		r.bodies.events[seq-1].Header = ev.header
	}
	r.rdb.FlushAll(t.Context())
	r.rdb.Set(t.Context(), r.shard("damaged").keys(nil, "damaged")[0], "x", 0)
	if err := r.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.at(5_000_000) // what was lost has accrued again
	r.goesBy("pro", "pro", 2)
	r.goesBy("late", "big", 2)
	r.goesBy("none", "", 0)
	if _, err := r.Lease(t.Context(), pipeline.LeaseRequest{Key: "damaged", Max: 1, Horizon: time.Second}); err != nil {
		t.Error(err)
	}
}

func TestEventWithoutAPlaceBringsItsTier(t *testing.T) {
	r, limits := newLimitedRig(t, "1/h")
	limits.setTier("pro", "100/s burst 9")
	for _, key := range []string{"lost", "other"} {
		seq := r.bodies.store(key, 1)[0]
		r.bodies.events[seq-1].Header = pipeline.Header{"Sluice-Tier": {"pro"}}
	}
	limits.setTier("big", "100/s burst 9")
	r.parkIn("big", "other", 77)
	verified(t, r.Store, 2)
	r.goesBy("lost", "pro", 1)
	r.goesBy("other", "big", 2) // it knows a newer one
}
