package redisstore

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"sluice/pipeline"
)

// parkCosts parks events of k in a tier that cost so much, as the first, second and so on of the source.
func (r *rig) parkCosts(tier string, costs ...int64) {
	r.t.Helper()
	for i, cost := range costs {
		seq := uint64(i + 1)
		_, err := r.Park(r.t.Context(), pipeline.ParkRequest{
			Key: "k", Tier: tier, Entry: pipeline.Entry{Seq: seq, Order: seq, Cost: cost},
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
		{Entry: pipeline.Entry{Seq: 1, Order: 1, Cost: 5, Attempt: 1, First: over}, After: time.Second},
		{Entry: pipeline.Entry{Seq: 2, Order: 2, Cost: 5, Expires: over}},
		{Entry: pipeline.Entry{Seq: 3, Order: 3, Cost: 5}},
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
