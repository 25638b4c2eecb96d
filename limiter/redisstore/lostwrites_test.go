package redisstore

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"sluice/pipeline"
)

func (s *Store) toldLosses() float64 {
	return testutil.ToFloat64(s.metrics.errors.WithLabelValues("lost_writes"))
}

// A failover to a replica that lacked the last call of the shard, as one that lacked many.
func TestFailoverThatLostAnyCallsIsToldOnce(t *testing.T) {
	t.Parallel()
	for _, lost := range []int64{1, 5, 63, 200} {
		r := newRig(t, "1000000/s burst 1000")
		var said lines
		r.opt.Log = said.logger()
		for range 300 {
			r.ask("k", 1, 0)
		}
		r.rdb.HIncrBy(t.Context(), r.shard("k").epochKey, "n", -lost)
		for range 300 {
			r.ask("k", 1, 0)
		}
		if n := r.toldLosses(); n != 1 || strings.Count(said.String(), "has lost writes") != 1 {
			t.Errorf("%d calls lost: told %v times:\n%s", lost, n, &said)
		}
		if !r.shard("k").suspect.Load() {
			t.Errorf("%d calls lost: the index isn't verified anew", lost)
		}
	}
}

// Calls of all kinds overtake one another on their way to Redis and back.
func TestCallsThatOvertakeOneAnotherAreNoLoss(t *testing.T) {
	t.Parallel()
	r := newRig(t, "1000000/s")
	r.now = 0
	key := func(i int) string { return fmt.Sprint("k", i) }
	var all sync.WaitGroup
	for i := range 8 {
		for _, call := range []func() error{
			func() error { _, err := r.Reserve(t.Context(), key(i), "", 1, 0); return err },
			func() error { _, err := r.Reserve(t.Context(), key(i), "", 1, -1); return err },
			func() error {
				_, err := r.Park(t.Context(), pipeline.ParkRequest{Key: key(i), Entry: pipeline.Entry{BodyID: pipeline.BodyID{Seq: 1}, Order: 1, Cost: 1}})
				return err
			},
			func() error {
				_, err := r.Lease(t.Context(), pipeline.LeaseRequest{Key: key(i), Max: 1, Horizon: time.Second})
				return err
			},
			func() error {
				_, err := r.Forget(t.Context(), key(i), pipeline.Entry{BodyID: pipeline.BodyID{Seq: 9}})
				return err
			},
		} {
			all.Go(func() {
				for range 100 {
					if err := call(); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
	}
	all.Wait()
	if n := r.toldLosses(); n != 0 {
		t.Errorf("%v losses were told of", n)
	}
}

// An answer of the epoch before must not be taken for one of this.
func TestLateAnswerOfALostEpochIsNoLoss(t *testing.T) {
	t.Parallel()
	r := newRig(t, "10/s")
	sh := r.shard("k")
	was, _, calls := sh.inEpoch()
	sh.mu.Lock()
	sh.epoch, sh.calls = "new", 0
	sh.mu.Unlock()
	sh.seen(was, calls, 500)
	sh.seen("new", 0, 2)
	if n := r.toldLosses(); n != 0 {
		t.Errorf("%v losses were told of", n)
	}
	if _, _, calls := sh.inEpoch(); calls != 2 {
		t.Errorf("%d calls are known of the new epoch, want 2", calls)
	}
}
