package redisstore

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"sluice/pipeline"
)

// named is an event of k: its sequence is its place in the source.
func named(seq uint64, name string) pipeline.Entry {
	return pipeline.Entry{BodyID: pipeline.BodyID{Seq: seq}, Order: seq, Cost: 1, Collapse: name}
}

// parkNamed parks an event and returns the sequence of the one that is to be dropped, 0 if none is. If forgets, that is
// forgotten.
func (r *rig) parkNamed(e pipeline.Entry, after time.Duration, forgets bool) uint64 {
	r.t.Helper()
	info, err := r.Park(r.t.Context(), pipeline.ParkRequest{Key: "k", Entry: e, After: after})
	if err != nil {
		r.t.Fatal(err)
	}
	if info.Collapsed == nil {
		return 0
	}
	if forgets {
		if was, err := r.Forget(r.t.Context(), "k", *info.Collapsed); err != nil || !was {
			r.t.Fatalf("event %d is to be dropped, but forgetting it says %v, %v", info.Collapsed.Seq, was, err)
		}
	}
	return info.Collapsed.Seq
}

// told writes the events of a lease: "-" before those that are to be dropped.
func told(l pipeline.Lease) string {
	var all []string
	for _, e := range l.Events {
		sign := ""
		if e.Useless != e.Collapsed {
			sign = "?"
		} else if e.Useless {
			sign = "-"
		}
		all = append(all, fmt.Sprint(sign, e.Seq))
	}
	return strings.Join(all, " ")
}

// settleAll ends all events of a lease, which is all that waits.
func (r *rig) settleAll(l pipeline.Lease) {
	r.t.Helper()
	req := pipeline.SettleRequest{Key: "k", Token: l.Token, Release: true}
	for _, e := range l.Events {
		req.Events = append(req.Events, done(e))
	}
	if info, err := r.Settle(r.t.Context(), req); err != nil || info.Waiting != 0 {
		r.t.Errorf("settled: %+v, %v", info, err)
	}
	for _, set := range []string{"lane", "busy", "retry"} {
		if left := r.zset(set, "k"); len(left) > 0 {
			r.t.Errorf("%s holds %v", set, left)
		}
	}
	if left := r.rdb.HGetAll(r.t.Context(), "collapse:"+r.shard("k").tag+":k").Val(); len(left) > 0 {
		r.t.Errorf("names are left: %v", left)
	}
}

func TestOfOneNameOnlyTheNewestWaits(t *testing.T) {
	type event struct {
		seq  uint64
		name string
	}
	for what, tt := range map[string]struct {
		park    []event
		dropped []uint64 // by each park
		left    string   // without those
		lease   string   // when nobody forgot them
	}{
		"one":          {[]event{{1, "a"}}, []uint64{0}, "1", "1"},
		"newer ones":   {[]event{{1, "a"}, {2, "a"}, {3, "a"}}, []uint64{0, 1, 2}, "3", "-1 -2 3"},
		"no name":      {[]event{{1, ""}, {2, ""}, {3, "a"}}, []uint64{0, 0, 0}, "1 2 3", "1 2 3"},
		"two names":    {[]event{{1, "a"}, {2, "b"}, {3, "a"}, {4, ""}, {5, "b"}}, []uint64{0, 0, 1, 0, 2}, "3 4 5", "-1 -2 3 4 5"},
		"a late one":   {[]event{{4, "a"}, {9, "a"}, {5, "a"}}, []uint64{0, 4, 5}, "9", "-4 -5 9"},
		"repeated":     {[]event{{1, "a"}, {2, "a"}, {2, "a"}}, []uint64{0, 1, 0}, "2", "-1 2"},
		"late again":   {[]event{{1, "a"}, {2, "a"}, {1, "a"}}, []uint64{0, 1, 1}, "2", "-1 2"},
		"odd names":    {[]event{{1, "!a,1"}, {2, "a"}, {3, "!a"}, {4, "!a,1"}}, []uint64{0, 0, 0, 1}, "2 3 4", "-1 2 3 4"},
		"a long name":  {[]event{{1, strings.Repeat("\xff", 256)}, {2, strings.Repeat("\xff", 256)}}, []uint64{0, 1}, "2", "-1 2"},
		"far numbers":  {[]event{{8, "a"}, {1<<52 - 1, "a"}, {1 << 52, "a"}}, []uint64{0, 8, 1<<52 - 1}, fmt.Sprint(1 << 52), fmt.Sprint("-", 1<<52-1, " -8 ", 1<<52)},
		"in no order":  {[]event{{3, "a"}, {2, "b"}, {1, "a"}, {5, "b"}, {4, "a"}}, []uint64{0, 0, 1, 2, 3}, "4 5", "-1 -2 -3 4 5"},
		"older behind": {[]event{{7, "a"}, {6, ""}, {3, "a"}}, []uint64{0, 0, 3}, "6 7", "-3 6 7"},
	} {
		for _, forgets := range []bool{true, false} {
			t.Run(fmt.Sprint(what, ", forgotten: ", forgets), func(t *testing.T) {
				r := newRig(t, "100/s burst 100")
				var got []uint64
				for _, e := range tt.park {
					got = append(got, r.parkNamed(named(e.seq, e.name), 0, forgets))
				}
				if !slices.Equal(got, tt.dropped) {
					t.Errorf("to be dropped, by each park: %v, want %v", got, tt.dropped)
				}
				l, want := leaseOf(t, r.Store, "k", 0, 100), tt.left
				if !forgets {
					want = tt.lease
				}
				if told(l) != want {
					t.Errorf("leased %s, want %s", told(l), want)
				}
				r.settleAll(l)
			})
		}
	}
}

func TestCollapsedEventsTakeNoTokens(t *testing.T) {
	r := newRig(t, "1/s burst 1")
	for seq := range uint64(5) {
		r.parkNamed(named(seq+1, "a"), 0, false)
	}
	r.parkNamed(named(6, ""), 0, false)
	l := leaseOf(t, r.Store, "k", 0, 100)
	if told(l) != "-1 -2 -3 -4 5 6" || l.Events[5].At.Sub(l.Events[4].At) != time.Second {
		t.Errorf("leased %s, %+v; want a slot for the fifth and one a second later", told(l), l.Events)
	}
}

func TestEventThatIsTriedAgainIsCollapsed(t *testing.T) {
	r := newRig(t, "100/s burst 100")
	tried := named(1, "a")
	tried.Attempt, tried.First = 2, time.UnixMilli(start/1000)
	r.parkNamed(tried, time.Hour, false)
	if got := r.parkNamed(named(2, "a"), 0, false); got != 1 {
		t.Errorf("to be dropped: %d, want the one that waits for its own time", got)
	}
	l := leaseOf(t, r.Store, "k", 0, 100)
	if told(l) != "-1 2" || l.Events[0].Attempt != 2 {
		t.Errorf("leased %s, want the first to be dropped at once", told(l))
	}
	r.settleAll(l)
}

func TestLeasedEventIsNotCollapsedUntilItComesBack(t *testing.T) {
	for _, back := range []bool{true, false} {
		t.Run(fmt.Sprint("comes back: ", back), func(t *testing.T) {
			r := newRig(t, "100/s burst 100")
			r.parkNamed(named(1, "a"), 0, false)
			first := leaseOf(t, r.Store, "k", 0, 100)
			if got := r.parkNamed(named(2, "a"), 0, false); got != 0 {
				t.Errorf("to be dropped: %d, though it is leased", got)
			}
			s := done(first.Events[0])
			want := "2"
			if back {
				s.Fate, s.Now, s.After = pipeline.Back, s.Was, time.Hour
				s.Now.Attempt = 1
				want = "-1 2"
			}
			if _, err := settle(t, r.Store, pipeline.SettleRequest{Key: "k", Token: first.Token, Events: []pipeline.Settlement{s}}); err != nil {
				t.Fatal(err)
			}
			l := leaseOf(t, r.Store, "k", first.Token, 100)
			if told(l) != want {
				t.Errorf("leased %s, want %s", told(l), want)
			}
			r.settleAll(l)
		})
	}
}

// What was handed out to be dropped stays so, whatever becomes of the newer event meanwhile.
func TestCollapsedEventOfADeadWorkerIsNeverPushed(t *testing.T) {
	r := newRig(t, "100/s burst 100")
	r.parkNamed(named(1, "a"), 0, false)
	r.parkNamed(named(2, "a"), 0, false)
	l := leaseOf(t, r.Store, "k", 0, 100)
	if _, err := settle(t, r.Store, pipeline.SettleRequest{Key: "k", Token: l.Token, Events: []pipeline.Settlement{done(l.Events[1])}}); err != nil {
		t.Fatal(err)
	}
	two := r.worker("two", "100/s burst 100")
	two.now = start + leaseTime.Microseconds()
	if l := leaseOf(t, two, "k", 0, 100); told(l) != "-1" {
		t.Errorf("leased %s, want the first, to be dropped", told(l))
	}
}

func TestForgetTakesOnlyWhatIsToBeDropped(t *testing.T) {
	r := newRig(t, "100/s burst 100")
	e := named(1, "a")
	r.parkNamed(e, time.Hour, false)
	if was, err := r.Forget(t.Context(), "k", e); err != nil || was {
		t.Errorf("forgot an event that waits: %v, %v", was, err)
	}
	e.Collapsed = true
	if was, err := r.Forget(t.Context(), "k", e); err != nil || was {
		t.Errorf("forgot an event that isn't to be dropped: %v, %v", was, err)
	}
	if left := r.zset("retry", "k"); len(left) != 1 {
		t.Errorf("%v waits, want the event", left)
	}
}

// After a rebuild nobody knows which event is the newest of its name; the next one shows, and none of them is lost.
func TestRebuiltLaneCollapsesWhenANewerEventComes(t *testing.T) {
	r := newRig(t, "100/s burst 100")
	for seq := range uint64(3) {
		r.bodies.events = append(r.bodies.events, &pipeline.Event{
			Key: "k", Header: pipeline.Header{"Sluice-Collapse": {"a"}}, Source: pipeline.SourceID{Seq: seq + 1}})
	}
	r.rdb.FlushAll(t.Context())
	for r.Open(t.Context()) != nil {
	}
	r.at(10_000_000)
	if l := leaseOf(t, r.Store, "k", 0, 1); told(l) != "1" {
		t.Errorf("leased %s, want the first: what isn't known to be superseded is delivered", told(l))
	}
	r.parkNamed(named(9, "0-a"), 0, false)
	l := leaseOf(t, r.Store, "k", 0, 100)
	if told(l) != "-1 -2 -3 9" {
		t.Errorf("leased %s, want all but the newest to be dropped", told(l))
	}
	r.settleAll(l)
}
