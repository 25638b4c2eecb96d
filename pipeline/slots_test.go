package pipeline

import (
	"context"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestDueEventsTakeSlotsBeforeNewOnesAndEachInTurn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSlots(1)
		if err := s.acquire(t.Context(), false); err != nil {
			t.Fatal(err)
		}
		var order []string
		wait := func(name string, due bool) {
			go func() {
				if err := s.acquire(t.Context(), due); err != nil {
					t.Error(err)
				}
				order = append(order, name)
				s.release()
			}()
			synctest.Wait()
		}
		wait("new 1", false)
		wait("new 2", false)
		if s.crowded() {
			t.Error("crowded although nothing that is due waits")
		}
		wait("due 1", true)
		wait("due 2", true)
		if !s.crowded() {
			t.Error("not crowded although events that are due wait")
		}
		s.release()
		synctest.Wait()
		if want := []string{"due 1", "due 2", "new 1", "new 2"}; !slices.Equal(order, want) {
			t.Errorf("slots were given to %v, want %v", order, want)
		}
		if s.free != 1 {
			t.Errorf("%d slots are free at rest, want 1", s.free)
		}
	})
}

func TestWaitingForASlotEndsWithItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSlots(1)
		_ = s.acquire(t.Context(), false)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begin := time.Now()
		if err := s.acquire(ctx, true); err == nil || time.Since(begin) != time.Second {
			t.Errorf("acquire = %v after %s, want an error after 1s", err, time.Since(begin))
		}
		s.release()
		if err := s.acquire(ctx, true); err == nil {
			t.Error("a free slot was given although the context had ended")
		}
		if s.free != 1 || s.crowded() {
			t.Errorf("%d slots are free, crowded: %t; want 1, false", s.free, s.crowded())
		}
	})
}

func TestNoSlotIsTakenAfterItsContextEnded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSlots(1)
		refused := 0
		for range 200 {
			_ = s.acquire(t.Context(), false)
			ctx, cancel := context.WithCancel(t.Context())
			go func() {
				if s.acquire(ctx, true) != nil {
					refused++
					return
				}
				s.release()
			}()
			synctest.Wait()
			s.release() // its turn comes, and the stop before it has noticed
			cancel()
			synctest.Wait()
		}
		if refused == 0 || s.free != 1 {
			t.Errorf("%d of 200 refused, %d slots free at rest; want some, and 1", refused, s.free)
		}
	})
}

// A turn that comes at the moment its context ends goes to whoever is next, and is never lost.
func TestSlotsAreNeverLostNorGivenTwice(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		n := int(seed%5) + 1
		s := newSlots(n)
		var taken, most atomic.Int64
		var all sync.WaitGroup
		for g := range uint64(40) {
			all.Go(func() {
				r := rand.New(rand.NewPCG(seed, g))
				for range 50 {
					ctx, cancel := context.WithCancel(context.Background())
					if r.IntN(3) > 0 {
						go func() { runtime.Gosched(); cancel() }()
					}
					if s.acquire(ctx, r.IntN(2) == 0) == nil {
						now := taken.Add(1)
						for old := most.Load(); now > old && !most.CompareAndSwap(old, now); old = most.Load() {
						}
						runtime.Gosched()
						taken.Add(-1)
						s.release()
					}
					cancel()
				}
			})
		}
		all.Wait()
		if most.Load() > int64(n) || s.free != n || len(s.due)+len(s.fresh) != 0 {
			t.Errorf("seed %d: %d of %d slots taken at once; at rest %d free, %d waiting",
				seed, most.Load(), n, s.free, len(s.due)+len(s.fresh))
		}
	}
}
