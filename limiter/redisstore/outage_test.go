package redisstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"sluice/integration/testenv"
	"sluice/limiter"
	"sluice/pipeline"
)

// crew is a fleet in this process, whose members know of each other at once.
type crew struct {
	mu   sync.Mutex
	away map[string]bool
}

func (c *crew) member(id string) Fleet {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.away[id] = false
	return sailor{c, id}
}

type sailor struct {
	*crew
	id string
}

func (m sailor) Tell(away bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.crew.away[m.id] = away
}

func (m sailor) Workers() (ids []string, away int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, a := range m.crew.away {
		ids = append(ids, id)
		away += bit(a)
	}
	return ids, away
}

// guarded is a lane stream for workers at the same time.
type guarded struct {
	*bodies
	mu *sync.Mutex
}

func (g guarded) Mark(ctx context.Context) (bool, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.bodies.Mark(ctx)
}

// staff is three workers whose events take tokens of one key, from Redis or from their shares, and are pushed at their time.
type staff struct {
	t        *testing.T
	ctx      context.Context
	crew     *crew
	bodies   guarded
	granted  passages
	passed   passages
	working  sync.WaitGroup
	stricken *stricken
}

func (st *staff) start(s *stricken) {
	st.t.Helper()
	st.stricken = s
	st.crew = &crew{away: map[string]bool{}}
	st.bodies = guarded{&bodies{created: 7}, &sync.Mutex{}}
	for i := range 3 {
		st.worker(fmt.Sprint("worker", i))
	}
}

func (st *staff) worker(id string) {
	st.t.Helper()
	limits, err := limiter.ParseLimits(faultLimit)
	if err != nil {
		st.t.Fatal(err)
	}
	rdb := st.stricken.address(st.t).client()
	st.t.Cleanup(func() { _ = rdb.Close() })
	store, err := New(rdb, Options{Name: "sluice", Worker: id, Limits: limiter.Fixed(limits), Bodies: st.bodies, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		st.t.Fatal(err)
	}
	if err := store.Start(st.ctx); err != nil {
		st.t.Fatal(err)
	}
	f := NewFallback(store, FallbackOptions{Policy: Local, Fleet: st.crew.member(id), Pause: func() {}, Resume: func() {}})
	st.working.Go(func() { store.Run(st.ctx) })
	st.working.Go(func() { f.Run(st.ctx) })
	st.working.Go(func() { // looks for due lanes, as the page does
		for st.ctx.Err() == nil {
			_, next, _ := f.Claim(st.ctx, 100)
			time.Sleep(min(next, 100*time.Millisecond))
		}
	})
	for range 4 {
		st.working.Go(func() {
			for st.ctx.Err() == nil {
				st.push(f, rdb)
			}
		})
	}
}

// push lets one event pass as the page does. What is parked is dropped, and the key opened again.
func (st *staff) push(f *Fallback, rdb redis.UniversalClient) {
	d, err := f.Reserve(st.ctx, "hot", "", 1, time.Second)
	away, isAway := errors.AsType[*pipeline.Away](err)
	switch {
	case isAway:
		select {
		case <-away.Changed:
		case <-time.After(100 * time.Millisecond):
		case <-st.ctx.Done():
		}
	case err != nil:
		time.Sleep(5 * time.Millisecond)
	case d.Verdict == limiter.Park:
		if d.Counted {
			rdb.HDel(st.ctx, f.store.(*Store).shard("hot").keys(nil, "hot")[0], "opened", "opening")
		}
		time.Sleep(5 * time.Millisecond)
	default:
		st.granted.note(d.At)
		time.Sleep(time.Until(d.At))
		if now := time.Now(); now.Before(d.Stale) {
			st.passed.note(now)
		}
	}
}

// Three workers share the limit by Redis, and while it is away by shares of it: together they pass no more than the limit
// allows, and from soon after the begin and the end of whatever befalls Redis nearly all of it.
func TestFaultsOfRedisUnderThreeWorkers(t *testing.T) {
	const looks, recovery = time.Second, time.Second
	eachFault(t, func(t *testing.T, f fault) {
		ctx, stop := context.WithCancel(t.Context())
		st := &staff{t: t, ctx: ctx}
		noticed := cmp.Or(f.noticed, time.Second)
		begun, ended := f.strike(t, st.start, noticed+looks, recovery+looks)
		stop()
		st.working.Wait()

		if x := testenv.BoundExcess(st.passed.times, faultRate, faultBurst, 100*time.Millisecond); x > float64(f.extra) {
			t.Errorf("%.1f passed beyond the limit, at most %d may", x, f.extra)
		}
		used := func(from time.Time) float64 {
			n, _ := st.granted.between(from, from.Add(looks))
			return 100 * float64(n) / (faultRate * looks.Seconds())
		}
		during, after := used(begun.Add(noticed)), used(ended.Add(recovery))
		_, first := st.granted.between(ended, time.Now())
		t.Logf("used %.0f %% of the limit during the fault, %.0f %% after, the first %s after its end", during, after,
			first.Sub(ended).Round(time.Millisecond))
		if !f.failover && during < 80 {
			t.Errorf("used %.0f %% of the limit while it lasted", during)
		}
		if after < 80 || first.IsZero() || first.Sub(ended) > recovery {
			t.Errorf("used %.0f %% of the limit after it, the first passed %s after its end", after, first.Sub(ended))
		}
	})
}
