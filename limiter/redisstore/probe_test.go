package redisstore

import (
	"slices"
	"testing"
	"time"

	"sluice/pipeline"
)

// An event that gets no answer has a time of its own, and while its receiver seems to fail, one that wasn't tried yet is leased before it.
func TestProbeIsAnEventThatWasNotTriedYetIfThereIsAny(t *testing.T) {
	t.Parallel()
	r := newRig(t, "1000/s burst 100")
	r.at(0)
	r.park("k", 1, 2, 3)
	settle := func(l pipeline.Lease, healthy bool) {
		t.Helper()
		e := l.Events[0].Entry
		again := e
		again.Attempt++
		s := pipeline.Settlement{Was: e, Now: again, Fate: pipeline.Back, After: time.Millisecond}
		if healthy {
			s = pipeline.Settlement{Was: e}
		}
		q := pipeline.SettleRequest{Key: "k", Token: l.Token, Events: []pipeline.Settlement{s}, Release: true, Healthy: healthy}
		if !healthy {
			q.Sleep = 10 * time.Millisecond
		}
		if _, err := r.Settle(t.Context(), q); err != nil {
			t.Fatal(err)
		}
	}
	lease := func(at, want int64, most, fails int) pipeline.Lease {
		t.Helper()
		r.at(at * 1000)
		l := leaseOf(t, r.Store, "k", 0, most)
		if got := seqs(l); !slices.Equal(got, []uint64{uint64(want)}) || l.Fails != fails {
			t.Fatalf("after %d ms: leased %v after %d failures, want %d after %d", at, got, l.Fails, want, fails)
		}
		return l
	}
	settle(lease(0, 1, 1, 0), false)
	settle(lease(100, 2, 9, 1), false) // though the first is due
	settle(lease(200, 3, 9, 2), true)
	l := leaseOf(t, r.Store, "k", 0, 9)
	if got := seqs(l); !slices.Equal(got, []uint64{1, 2}) || l.Fails != 0 {
		t.Errorf("when the receiver has answered %v are leased after %d failures, want both that were tried", got, l.Fails)
	}
	settle(pipeline.Lease{Token: l.Token, Events: l.Events[1:]}, true)
	settle(lease(300, 1, 9, 0), false)
	lease(400, 1, 9, 1) // alone it is the probe
}
