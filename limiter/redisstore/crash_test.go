package redisstore

import (
	"errors"
	"slices"
	"testing"
	"time"

	"sluice/pipeline"
)

// A park that is repeated while its event is leased, since its reply or the ack was lost, leaves it to the holder.
func TestLeasedEventIsIndexedNoSecondTime(t *testing.T) {
	r := newRig(t, "100/s burst 100")
	for _, e := range []pipeline.Entry{
		{BodyID: pipeline.BodyID{Created: 7, Seq: 1}, Order: 1, Cost: 1},
		{BodyID: pipeline.BodyID{Created: 7, Seq: 1}, Order: 1, Cost: 5, Collapse: "position"},
		{BodyID: pipeline.BodyID{Created: 7, Seq: 1}, Order: 1, Cost: 1, Attempt: 2, First: time.UnixMilli(start / 1000)},
	} {
		p := pipeline.ParkRequest{Key: "k", Entry: e}
		park := func() pipeline.LaneInfo {
			info, err := r.Park(t.Context(), p)
			if err != nil {
				t.Fatal(err)
			}
			return info
		}
		park()
		l := leaseOf(t, r.Store, "k", 0, 10)
		if len(l.Events) != 1 || l.Events[0].Entry != e {
			t.Fatalf("leased %+v, want %+v", l.Events, e)
		}
		if info := park(); info.Waiting != 0 || info.Next >= 0 {
			t.Errorf("parked once more: %+v, want nothing that waits", info)
		}
		r.checkCosts("parked while it was leased")
		r.settleAll(l)
	}
}

// Redis has lost all while a worker was pushing: what the worker says of its lease concerns nobody, and the event, whose body
// is still there, is leased anew.
func TestLateHolderOfALostIndexIsRefused(t *testing.T) {
	r := newRig(t, "100/s burst 100")
	r.index("k", r.bodies.store("k", 2)...)
	l := leaseOf(t, r.Store, "k", 0, 10)
	req := pipeline.SettleRequest{Key: "k", Token: l.Token, Release: true,
		Events: []pipeline.Settlement{done(l.Events[0]), done(l.Events[1])}}
	r.rdb.FlushAll(t.Context())
	if _, err := settle(t, r.Store, req); !errors.Is(err, ErrEpoch) {
		t.Errorf("without an index: %v, want %v", err, ErrEpoch)
	}
	if err := r.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := settle(t, r.Store, req); !errors.Is(err, pipeline.ErrFenced) {
		t.Errorf("under the new index: %v, want %v", err, pipeline.ErrFenced)
	}
	r.at(10_000_000)
	again := leaseOf(t, r.Store, "k", 0, 10)
	if got := seqs(again); !slices.Equal(got, []uint64{1, 2}) || again.Token == l.Token {
		t.Errorf("leased %v under the token %d, the lost one was %d; want both under a newer one", got, again.Token, l.Token)
	}
	if _, err := settle(t, r.Store, req); !errors.Is(err, pipeline.ErrFenced) {
		t.Errorf("while another lease holds the events: %v, want %v", err, pipeline.ErrFenced)
	}
}
