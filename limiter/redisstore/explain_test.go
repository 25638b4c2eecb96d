package redisstore

import (
	"errors"
	"reflect"
	"testing"
	"time"

	"sluice/limiter"
	"sluice/pipeline"
)

// standing asks how a key stands, and checks that nothing was written over it.
func (r *rig) standing(key, tier string) Standing {
	r.t.Helper()
	before := r.dump()
	st, err := r.Standing(r.t.Context(), key, tier)
	if err != nil {
		r.t.Fatal(err)
	}
	if after := r.dump(); !reflect.DeepEqual(before, after) {
		r.t.Errorf("it has changed\n%v\nto\n%v", before, after)
	}
	return st
}

func TestStandingInKnownSituations(t *testing.T) {
	failed := pipeline.Entry{BodyID: pipeline.BodyID{Created: 7, Seq: 1}, Order: 1, Cost: 1, Attempt: 3, First: time.UnixMilli(start / 1000)}
	give := func(r *rig, n int64) {
		r.t.Helper()
		if a := r.ask("k", n, 0); a.granted != n {
			r.t.Fatalf("%d go, want %d", a.granted, n)
		}
	}
	for _, c := range []struct {
		name string
		do   func(r *rig)
		want Standing
	}{
		{"unknown", func(*rig) {}, Standing{Limits: []LimitLevel{{Tokens: 20}}, Taken: -time.Microsecond}},
		{"just delivered", func(r *rig) {
			give(r, 1)
			r.at(50_000)
		}, Standing{Known: true, Limits: []LimitLevel{{Tokens: 19}}, Taken: 50 * time.Millisecond}},
		{"throttled", func(r *rig) {
			give(r, 20)
			r.park("k", 1, 2, 3)
			r.at(30_000)
		}, Standing{
			Known: true, Waiting: 3, First: pipeline.Entry{BodyID: pipeline.BodyID{Created: 7, Seq: 1}, Order: 1, Cost: 1}, Limits: []LimitLevel{{Wait: 70 * time.Millisecond}},
			Wait: 70 * time.Millisecond, Taken: 30 * time.Millisecond, Overdue: 30 * time.Millisecond,
		}},
		{"about to wait", func(r *rig) {
			give(r, 20)
			if d, err := r.Reserve(r.t.Context(), "k", "", 1, 0); err != nil || d.Verdict != limiter.Park {
				r.t.Fatalf("%+v, %v", d, err)
			}
		}, Standing{Known: true, Arriving: 1, Limits: []LimitLevel{{Wait: 100 * time.Millisecond}}, Wait: 100 * time.Millisecond}},
		{"cooling down", func(r *rig) {
			_, _ = r.Park(r.t.Context(), pipeline.ParkRequest{Key: "k", Entry: failed, Sleep: 12 * time.Second, Failure: "status 429"})
			r.at(2_000_000)
		}, Standing{
			Known: true, Waiting: 1, First: failed, Limits: []LimitLevel{{Tokens: 20}}, Taken: -time.Microsecond, Closed: 10 * time.Second, Fails: 1,
			Failure: "status 429", Due: 10 * time.Second, Overdue: -time.Microsecond,
		}},
		{"head failing", func(r *rig) {
			r.park("k", 2)
			_, _ = r.Park(r.t.Context(), pipeline.ParkRequest{Key: "k", Entry: failed, After: 9 * time.Second, Failure: "status 500"})
		}, Standing{
			Known: true, Waiting: 2, Retrying: 1, First: failed, Retry: 9 * time.Second, Limits: []LimitLevel{{Tokens: 20}},
			Taken: -time.Microsecond, Failure: "status 500",
		}},
		{"leased by a live worker", func(r *rig) {
			r.park("k", 1, 2, 3)
			leaseOf(r.t, r.Store, "k", 0, 2)
			r.at(1_000_000)
		}, Standing{
			Known: true, Waiting: 1, Leased: 2, First: pipeline.Entry{BodyID: pipeline.BodyID{Created: 7, Seq: 1}, Order: 1, Cost: 1}, Limits: []LimitLevel{{Tokens: 20}},
			Taken: time.Second, Holder: "one", Held: 4 * time.Second, Due: 4 * time.Second, Overdue: -time.Microsecond,
		}},
		{"left by a dead worker", func(r *rig) {
			r.park("k", 1)
			leaseOf(r.t, r.Store, "k", 0, 1)
			r.at(7_000_000)
		}, Standing{
			Known: true, Leased: 1, First: pipeline.Entry{BodyID: pipeline.BodyID{Created: 7, Seq: 1}, Order: 1, Cost: 1}, Limits: []LimitLevel{{Tokens: 20}}, Taken: 7 * time.Second,
			Overdue: 2 * time.Second,
		}},
		{"damaged", func(r *rig) {
			r.rdb.HSet(r.t.Context(), r.shard("k").keys(nil, "k")[0], "tokens", "many")
		}, Standing{Known: true, Damaged: true}},
		{"no lane", func(r *rig) {
			r.rdb.Set(r.t.Context(), r.shard("k").keys(nil, "k")[1], "x", 0)
		}, Standing{Known: true, Damaged: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, "10/s burst 20")
			c.do(r)
			got := r.standing("k", "")
			if got.Ruling == nil || got.Ruling.Source != limiter.SourceDefault {
				t.Errorf("ruled by %+v", got.Ruling)
			}
			got.Ruling = nil
			if c.want.Waiting+c.want.Leased == 0 && !c.want.Damaged {
				c.want.Due, c.want.Overdue = -time.Microsecond, -time.Microsecond
			}
			if c.want.Overdue == 0 && c.want.Due == 0 && !c.want.Damaged {
				c.want.Due = -time.Microsecond
			} else if c.want.Overdue > 0 {
				c.want.Due = -time.Microsecond
			}
			if !reflect.DeepEqual(got, c.want) {
				t.Errorf("\ngot  %+v\nwant %+v", got, c.want)
			}
		})
	}
}

func TestPausedAndUnlimitedKeysHaveNoLevels(t *testing.T) {
	for limit, wait := range map[string]time.Duration{"0": -time.Microsecond, "unlimited": 0} {
		r := newRig(t, limit)
		r.park("k", 1)
		if st := r.standing("k", ""); st.Waiting != 1 || len(st.Limits) != 0 || st.Wait != wait {
			t.Errorf("%s: %+v", limit, st)
		}
	}
}

// What is told of the next event is what the scripts then do, to the microsecond.
func TestToldWaitIsWhenTheNextEventGoes(t *testing.T) {
	for _, limit := range []string{"10/s burst 3", "3/s leaky", "4/s window", "20/s sliding", "7/s burst 2, 30/m sliding"} {
		r := newRig(t, limit)
		r.at(1_234_567)
		gone := int64(0)
		for n := int64(1); n > 0; gone += n {
			n = r.ask("k", 1, 0).granted
		}
		st := r.standing("k", "")
		if gone == 0 || st.Wait <= 0 || len(st.Limits) != len(st.Ruling.Limits) {
			t.Errorf("%s: after %d events %+v", limit, gone, st)
			continue
		}
		r.at(1_234_567 + st.Wait.Microseconds() - 1)
		if a := r.ask("k", 1, 0); a.granted != 0 {
			t.Errorf("%s: an event goes before the %s told", limit, st.Wait)
		}
		r.at(1_234_567 + st.Wait.Microseconds())
		if got := r.standing("k", ""); got.Wait != 0 || got.Limits[0].Tokens < 1 {
			t.Errorf("%s: when it can go it is told %+v", limit, got)
		}
		if a := r.ask("k", 1, 0); a.granted != 1 {
			t.Errorf("%s: no event goes after the %s told", limit, st.Wait)
		}
	}
}

func TestStandingGoesByTheTierOfWhatWaits(t *testing.T) {
	r, limits := newLimitedRig(t, "1/h")
	limits.setTier("pro", "3/h")
	limits.setTier("big", "7/h")
	tokens := func(tier, want string, n int64) {
		t.Helper()
		st := r.standing("k", tier)
		if st.Tier != want || len(st.Limits) != 1 || st.Limits[0].Tokens != n {
			t.Errorf("asked for %q: %+v, want %d tokens of the tier %q", tier, st, n, want)
		}
	}
	tokens("big", "big", 7)
	r.parkIn("pro", "k", 1)
	tokens("big", "pro", 3)
	tokens("", "pro", 3)
}

func TestStandingWithoutStateIsAnError(t *testing.T) {
	r := newRig(t, "1/s")
	r.rdb.FlushAll(t.Context())
	if _, err := r.Standing(t.Context(), "k", ""); !errors.Is(err, ErrEpoch) {
		t.Errorf("it says %v", err)
	}
}
