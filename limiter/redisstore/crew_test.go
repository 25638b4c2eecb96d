package redisstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"sluice/integration/testenv"
	"sluice/limiter"
	"sluice/pipeline"
)

// crew are n workers on one Redis, by its own clock, whose leases last so long.
func (r *rig) crew(n int, lease time.Duration) []*Store {
	r.t.Helper()
	crew := make([]*Store, n)
	for i := range crew {
		crew[i] = r.worker(fmt.Sprint("worker", i), "100/s burst 100")
		crew[i].now, crew[i].workLease = 0, lease
	}
	return crew
}

// slowBacklog is one hot key's events, many more than leases last for when each takes 4 ms to read, and a few of each other shard.
func (r *rig) slowBacklog() (lease time.Duration, events int) {
	lease, hot := time.Second, 500
	if testenv.Soak() {
		lease, hot = workLease, 3000
	}
	for i := range 64 {
		r.bodies.store(fmt.Sprint("quiet", i), 1)
	}
	r.bodies.store("hot", hot)
	r.bodies.pause = func() { time.Sleep(4 * time.Millisecond) }
	return lease, hot + 64
}

// each lets all of the crew do the same at the same time.
func (r *rig) each(crew []*Store, do func(*Store) error) {
	r.t.Helper()
	var all sync.WaitGroup
	for _, s := range crew {
		all.Go(func() {
			if err := do(s); err != nil {
				r.t.Error(err)
			}
		})
	}
	all.Wait()
}

// placed is how many events have a place in a lane.
func (r *rig) placed() (n int) {
	r.t.Helper()
	keys := map[string]bool{}
	for _, ev := range r.bodies.events {
		if !keys[ev.Key] {
			keys[ev.Key] = true
			n += len(r.zset("lane", ev.Key))
		}
	}
	return n
}

// A hot key's backlog takes longer to read than a lease lasts, and nothing is written to the other shards meanwhile.
func TestThreeWorkersRebuildOnceHoweverSlowlyTheBodiesAreRead(t *testing.T) {
	r := newRig(t, "100/s burst 100")
	lease, events := r.slowBacklog()
	crew := r.crew(3, lease)
	r.rdb.FlushAll(t.Context())
	began := time.Now()
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	r.each(crew, func(s *Store) error {
		for _, sh := range s.shards {
			sh.lose(sh.epoch)
		}
		return s.Start(ctx)
	})
	t.Logf("%d events at 4 ms each: all three workers go on after %s", events, time.Since(began).Round(time.Millisecond))
	if n := r.bodies.read.Load(); n != int64(events) {
		t.Errorf("%d bodies were read, want each of %d once", n, events)
	}
	rebuilds := 0.0
	for _, s := range crew {
		if !s.Opened() {
			t.Error("a worker started without the state")
		}
		rebuilds += testutil.ToFloat64(s.metrics.rebuilds)
	}
	if rebuilds != 1 {
		t.Errorf("%v rebuilds, want 1", rebuilds)
	}
	if n := r.placed(); n != events {
		t.Errorf("%d events have a place, want %d", n, events)
	}
}

func TestThreeWorkersVerifyOnceHoweverSlowlyTheBodiesAreRead(t *testing.T) {
	r := newRig(t, "100/s burst 100")
	lease, events := r.slowBacklog()
	crew := r.crew(3, lease)
	last := uint64(events)
	r.each(crew, func(s *Store) error {
		for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
			if err := s.verify(t.Context(), last); err != nil {
				return err
			}
			if slices.Min(r.marks(s)) == last {
				return nil
			}
		}
		return errors.New("not verified within a minute")
	})
	if n := r.bodies.read.Load(); n != int64(events) {
		t.Errorf("%d bodies were read, want each of %d once", n, events)
	}
	if n := r.placed(); n != events {
		t.Errorf("%d events have a place, want %d", n, events)
	}
}

// marks are up to where each shard is verified.
func (r *rig) marks(s *Store) []uint64 {
	marks := make([]uint64, limiter.Shards)
	for i, mark := range s.verified(r.t.Context()) {
		marks[i], _ = mark.Uint64()
	}
	return marks
}

// A worker that is asked to stop doesn't let the others wait until its lease ends.
func TestStoppedWorkerLeavesTheIndexToAnotherAtOnce(t *testing.T) {
	for _, what := range []string{"rebuild", "verify"} {
		t.Run(what, func(t *testing.T) {
			r := newRig(t, "100/s burst 100")
			crew := r.crew(2, workLease)
			r.bodies.store("k", 50)
			if what == "rebuild" {
				r.rdb.FlushAll(t.Context())
			}
			ctx, stop := context.WithCancel(t.Context())
			r.bodies.pause = func() {
				if r.bodies.read.Load() == 25 {
					stop()
				}
			}
			do := func(ctx context.Context, s *Store) error {
				if what == "rebuild" {
					return s.Open(ctx)
				}
				return s.verify(ctx, 50)
			}
			if err := do(ctx, crew[0]); !errors.Is(err, context.Canceled) {
				t.Fatalf("the worker that was stopped: %v", err)
			}
			if err := do(t.Context(), crew[1]); err != nil {
				t.Fatal(err)
			}
			if n := len(r.zset("lane", "k")); n != 50 {
				t.Errorf("%d events have a place, want 50", n)
			}
		})
	}
}

// Each reading of the stream costs all of it.
func TestWhoHasTheFirstShardRebuildsTheOthersToo(t *testing.T) {
	r := newRig(t, "100/s burst 100")
	two := r.worker("two", "100/s burst 100")
	r.bodies.store("k", 10)
	r.rdb.FlushAll(t.Context())
	b, err := two.shards[0].build(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer b.leave()
	if err := r.Open(t.Context()); !errors.Is(err, errTaken) {
		t.Errorf("beside another's build: %v, want %v", err, errTaken)
	}
	if n := r.bodies.read.Load(); n > 0 {
		t.Errorf("%d bodies were read", n)
	}
	if err := two.Open(t.Context()); err != nil {
		t.Errorf("who has the first one: %v", err)
	}
}

// What is left to read may take minutes.
func TestWorkerThatHasLostAllShardsReadsNoFurther(t *testing.T) {
	r := newRig(t, "100/s burst 100")
	s := r.crew(1, 400*time.Millisecond)[0]
	r.bodies.store("k", 2000)
	r.rdb.FlushAll(t.Context())
	r.bodies.pause = func() {
		if time.Sleep(4 * time.Millisecond); r.bodies.read.Load() != 10 {
			return
		}
		for _, sh := range s.shards {
			r.rdb.HSet(t.Context(), sh.epochKey, "token", "x", "holder", "x", "building", "x")
		}
	}
	if err := s.Open(t.Context()); !errors.Is(err, errTaken) {
		t.Errorf("the rebuild ends with %v, want %v", err, errTaken)
	}
	if n := r.bodies.read.Load(); n > 1000 {
		t.Errorf("%d of 2000 bodies were read", n)
	}
}

// Only this worker doesn't hear NATS, as far as it knows.
func TestWorkerThatReadsNothingLeavesTheIndexToAnother(t *testing.T) {
	r := newRig(t, "100/s burst 100")
	crew := r.crew(2, time.Second)
	r.bodies.store("k", 20)
	r.rdb.FlushAll(t.Context())
	deaf := deafBodies{r.bodies}
	crew[0].opt.Bodies = deaf
	heard := make(chan error, 1)
	ctx, stop := context.WithTimeout(t.Context(), 30*time.Second)
	defer stop()
	go func() { heard <- crew[0].Open(ctx) }()
	for r.rdb.HGet(t.Context(), r.shards[0].epochKey, "holder").Val() != "worker0" {
		time.Sleep(time.Millisecond)
	}
	if err := crew[1].Start(ctx); err != nil {
		t.Fatal(err)
	}
	if err := <-heard; err == nil || errors.Is(err, errTaken) || ctx.Err() != nil {
		t.Errorf("the worker that reads nothing: %v, want why it left", err)
	}
	if n := len(r.zset("lane", "k")); n != 20 {
		t.Errorf("%d events have a place, want 20", n)
	}
}

// deafBodies is a stream that never says anything.
type deafBodies struct{ *bodies }

func (deafBodies) Each(ctx context.Context, _ func(*pipeline.Event, uint64) error) error {
	<-ctx.Done()
	return ctx.Err()
}
