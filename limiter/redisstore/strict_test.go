package redisstore

import (
	"slices"
	"testing"
	"time"

	"sluice/pipeline"
)

// leaseUpTo is a new lease, or more of the one with that token, of what may go in source order.
func (r *rig) leaseUpTo(s *Store, token int64, upTo, stray uint64) pipeline.Lease {
	r.t.Helper()
	l, err := s.Lease(r.t.Context(), pipeline.LeaseRequest{
		Key: "k", Token: token, Max: 10, Horizon: time.Second, Ordered: true, UpTo: upTo, Stray: stray})
	if err != nil {
		r.t.Fatal(err)
	}
	return l
}

func TestLeasedEventsOfAKeyAreCountedOverAllWorkers(t *testing.T) {
	r := newRig(t, "100/s burst 100")
	two := r.worker("two", "100/s burst 100")
	r.opt.KeyConcurrency, two.opt.KeyConcurrency = 3, 3
	r.park("k", 1, 2, 3, 4, 5, 6)
	l := leaseOf(t, r.Store, "k", 0, 10)
	if got := seqs(l); !slices.Equal(got, []uint64{1, 2, 3}) {
		t.Fatalf("leased %v, want three", got)
	}
	if left := time.Until(l.Until); left > leaseTime || left < leaseTime-time.Second {
		t.Errorf("the lease lasts %s more, want %s", left, leaseTime)
	}
	if more := leaseOf(t, r.Store, "k", l.Token, 10); len(more.Events) != 0 || more.Token != l.Token {
		t.Fatalf("leased %v beside them", seqs(more))
	}
	_, err := settle(t, r.Store, pipeline.SettleRequest{Key: "k", Token: l.Token, Events: []pipeline.Settlement{done(l.Events[1])}})
	if err != nil {
		t.Fatal(err)
	}
	if more := leaseOf(t, r.Store, "k", l.Token, 10); !slices.Equal(seqs(more), []uint64{4}) {
		t.Fatalf("leased %v when one of three was settled, want one more", seqs(more))
	}
	// The first worker dies: what it had counts no more, and comes first.
	two.now = start + leaseTime.Microseconds()
	if got := seqs(leaseOf(t, two, "k", 0, 10)); !slices.Equal(got, []uint64{1, 3, 4}) {
		t.Errorf("the next worker leased %v, want the three that were not settled", got)
	}
}

func TestOrderedLeaseEndsBeforeWhatIsNotSettledInTheSource(t *testing.T) {
	for _, tt := range []struct {
		name        string
		upTo, stray uint64
		want        []uint64
		barred      uint64
	}{
		{"nothing settled", 0, 0, nil, 2},
		{"below the first", 1, 0, nil, 2},
		{"the first", 2, 0, []uint64{2}, 5},
		{"between", 4, 0, []uint64{2}, 5},
		{"all", 9, 0, []uint64{2, 5, 9}, 0},
		{"a stray one", 0, 2, []uint64{2}, 5},
		{"a stray one behind another", 0, 5, nil, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, "100/s burst 100")
			r.park("k", 9, 2, 5)
			l := r.leaseUpTo(r.Store, 0, tt.upTo, tt.stray)
			if !slices.Equal(seqs(l), tt.want) || l.Barred != tt.barred || (l.Token != 0) != (len(tt.want) > 0) {
				t.Errorf("leased %v, barred by %d, want %v and %d", seqs(l), l.Barred, tt.want, tt.barred)
			}
			if at, ok := r.dueAt("k"); len(tt.want) == 0 && (!ok || at != 1_000_000) {
				t.Errorf("the barred lane is due at %d us, want a second later", at)
			}
		})
	}
}
