package redisstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/sony/gobreaker/v2"

	"sluice/integration/testenv"
	"sluice/limiter"
	"sluice/pipeline"
)

// motion is a Cluster whose slots move while clients with no more than the least rights work.
type motion struct {
	t       *testing.T
	cluster *testenv.ClusterServers
	shards  []int // whose slots move
	ends    chan struct{}
	halfway atomic.Int64 // moves that have been halfway
	failed  atomic.Int64 // calls
}

func newMotion(t *testing.T) *motion {
	t.Helper()
	return &motion{t: t, cluster: testenv.RedisCluster(t, include(t)...), shards: []int{0, 5, 11}, ends: make(chan struct{})}
}

func (m *motion) client() redis.UniversalClient {
	rdb := asSluice(clusterAt(m.cluster.URL())(m.t)).client()
	m.t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

func (m *motion) slot(shard int) int {
	return int(m.cluster.Nodes()[0].Client().ClusterKeySlot(m.t.Context(), "{"+limiter.Tag(shard)+"}").Val())
}

// move moves the slots, each so often, and stays halfway for a time that few calls and for one that none outlasts.
func (m *motion) move(rounds int) {
	defer close(m.ends)
	for round := range rounds {
		for i, shard := range m.shards {
			slot := m.slot(shard)
			m.cluster.Move(slot, (m.cluster.Owner(slot)+1)%3, func() {
				m.halfway.Add(1)
				time.Sleep([]time.Duration{20 * time.Millisecond, 100 * time.Millisecond, 4 * movePatience}[(round+i)%3])
			})
		}
	}
}

func (m *motion) over() bool {
	select {
	case <-m.ends:
		return true
	default:
		return false
	}
}

// insist repeats a call as the page does, and says which error is no reason to.
func (m *motion) insist(call func() error) {
	for {
		err := call()
		switch {
		case err == nil:
			return
		case !moving(err):
			m.t.Errorf("a call fails for another reason than that its slot moves: %v", err)
			return
		}
		m.failed.Add(1)
		time.Sleep(5 * time.Millisecond)
	}
}

// A trial that meets a moving slot says nothing of the others: it neither ends the outage nor keeps the next trial from being made.
func TestMovingSlotNeitherOpensNorClosesTheBreaker(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(make(chan struct{}, 1))
		answer := func(err error) error {
			_, err = b.Execute(func() ([]any, error) { return nil, err })
			return err
		}
		moves := errors.New("ERR Script attempted to access a non local key in a cluster node")
		for range 2 * breakAfter {
			_ = answer(moves)
		}
		if b.State() != gobreaker.StateClosed {
			t.Fatalf("after moves: %v", b.State())
		}
		for range breakAfter {
			_ = answer(context.DeadlineExceeded)
		}
		time.Sleep(trialEvery + time.Millisecond)
		for range 3 {
			if err := answer(moves); !moving(err) || b.State() != gobreaker.StateHalfOpen {
				t.Errorf("a trial that meets one: %v, then %v", err, b.State())
			}
		}
		if err := answer(nil); err != nil || b.State() != gobreaker.StateClosed {
			t.Errorf("a trial that succeeds: %v, then %v", err, b.State())
		}
	})
}

// While slots move, calls for them may have to be repeated, but none fails for good or for another reason, Redis isn't taken for
// away, no key for damaged, and nothing passes beyond the limit.
func TestLimitsHoldWhileSlotsMoveUnderLoad(t *testing.T) {
	t.Parallel()
	const rate, burst = 40, 10
	m := newMotion(t)
	passed := map[string]*passages{}
	var asking sync.WaitGroup
	var limiters []*Limiter
	limits, err := limiter.ParseLimits(fmt.Sprintf("%d/s burst %d", rate, burst))
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		l, err := NewLimiter(m.client(), limits, LimiterOptions{Name: "sluice"}) // as the rights have it
		if err != nil {
			t.Fatal(err)
		}
		limiters = append(limiters, l)
		for _, shard := range append(m.shards, 1) {
			key := keyOf(shard)
			if passed[key] == nil {
				passed[key] = &passages{}
			}
			mine := passed[key]
			asking.Go(func() {
				for i := 0; !m.over(); i++ {
					var d limiter.Decision
					m.insist(func() (err error) {
						d, err = l.Reserve(t.Context(), key, 1, 0)
						return err
					})
					switch {
					case d.Verdict == limiter.Go:
						mine.note(d.At)
					case d.Reason != limiter.Throttled:
						t.Errorf("%q: %+v", key, d)
					}
					m.insist(func() error { // keys that come once
						_, err := l.Reserve(t.Context(), keyOf2(shard, i), 1, 0)
						return err
					})
					time.Sleep(2 * time.Millisecond)
				}
			})
		}
	}
	begin := time.Now()
	m.move(2)
	asking.Wait()
	took := time.Since(begin)

	for key, p := range passed {
		if x := testenv.BoundExcess(p.times, rate, burst, 100*time.Millisecond); x > 0 {
			t.Errorf("%q: %.1f passed beyond the limit", key, x)
		}
		if least := int(rate*took.Seconds()) / 3; len(p.times) < least {
			t.Errorf("%q: %d passed in %s, want at least %d", key, len(p.times), took, least)
		}
	}
	for _, l := range limiters {
		if l.store.Trouble() != nil || l.store.toldLosses() > 0 {
			t.Error("a move is taken for an outage or a loss")
		}
	}
	t.Logf("%d moves in %s, %d calls were repeated", m.halfway.Load(), took.Round(time.Millisecond), m.failed.Load())
}

// keyOf2 is one of many keys of a shard.
func keyOf2(shard, i int) string {
	for n := i * 1000; ; n++ {
		if key := fmt.Sprintf("once%d", n); limiter.Shard(key) == shard {
			return key
		}
	}
}

// Lanes whose slots move are parked in, leased and settled: each event leaves once, in order and within the limit.
func TestLanesGoOnWhileTheirSlotsMoveUnderLoad(t *testing.T) {
	t.Parallel()
	const rate, burst, events = 20, 5, 50
	m := newMotion(t)
	limits, err := limiter.ParseLimits(fmt.Sprintf("%d/s burst %d", rate, burst))
	if err != nil {
		t.Fatal(err)
	}
	var said lines
	s, err := New(m.client(), Options{
		Name: "sluice", Worker: "one", Limits: limiter.Fixed(limits), Bodies: &bodies{created: 7}, Log: slog.New(slog.NewTextHandler(&said, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var working sync.WaitGroup
	for _, shard := range append(m.shards, 1) {
		l := &laneUnderMotion{motion: m, s: s, key: keyOf(shard)}
		working.Go(func() { l.fill(events) })
		working.Go(func() {
			l.drain(ctx, events)
			want := make([]uint64, events)
			for i := range want {
				want[i] = uint64(i + 1)
			}
			if !slices.Equal(l.left, want) {
				t.Errorf("%q: %d events left, as %v, want each of %d once and in order", l.key, len(l.left), l.left, events)
			}
			if x := testenv.BoundExcess(l.at.times, rate, burst, 100*time.Millisecond); x > 0 {
				t.Errorf("%q: %.1f left beyond the limit", l.key, x)
			}
		})
	}
	m.move(2)
	working.Wait()
	if s.toldLosses() > 0 || !s.reachable() || s.Trouble() != nil || said.String() != "" {
		t.Errorf("a move is taken for something else:\n%s", &said)
	}
	t.Logf("%d moves, %d calls were repeated", m.halfway.Load(), m.failed.Load())
}

type laneUnderMotion struct {
	*motion
	s    *Store
	key  string
	left []uint64
	at   passages
}

// fill parks events, some of which replace nothing under a name of their own.
func (l *laneUnderMotion) fill(events int) {
	for i := range events {
		e := pipeline.Entry{BodyID: pipeline.BodyID{Seq: uint64(i + 1)}, Order: uint64(i + 1), Cost: 1}
		if i%5 == 0 {
			e.Collapse = fmt.Sprint("name", i)
		}
		l.insist(func() error {
			_, err := l.s.Park(l.t.Context(), pipeline.ParkRequest{Key: l.key, Entry: e})
			return err
		})
	}
}

// drain lets so many events leave.
func (l *laneUnderMotion) drain(ctx context.Context, events int) {
	var token int64
	for len(l.left) < events && ctx.Err() == nil {
		var lease pipeline.Lease
		l.insist(func() (err error) {
			lease, err = l.s.Lease(ctx, pipeline.LeaseRequest{Key: l.key, Token: token, Max: 4, Horizon: time.Second})
			return err
		})
		token = lease.Token
		if len(lease.Events) == 0 {
			time.Sleep(10 * time.Millisecond)
			continue
		}
		done := pipeline.SettleRequest{Key: l.key, Token: lease.Token, Healthy: true}
		for _, e := range lease.Events {
			time.Sleep(time.Until(e.At))
			l.at.note(e.At)
			l.left = append(l.left, e.Seq)
			done.Events = append(done.Events, pipeline.Settlement{Was: e.Entry, Fate: pipeline.Done})
		}
		l.insist(func() error {
			_, err := l.s.Settle(ctx, done)
			if errors.Is(err, pipeline.ErrFenced) {
				l.t.Error("the lease was lost")
				err = nil
			}
			return err
		})
	}
}

// A script that empties a key of a moving slot finds it elsewhere, and stops there: that is neither damage nor an outage, and
// repeating the call does what is left of it.
func TestSettleThatAMoveCutsShortIsDoneWhenItIsRepeated(t *testing.T) {
	t.Parallel()
	m := newMotion(t)
	var said lines
	limits := limiter.Limits{{Events: 100, Period: time.Second, Burst: 10}}
	s, err := New(m.client(), Options{
		Name: "sluice", Worker: "one", Limits: limiter.Fixed(limits), Bodies: &bodies{created: 7}, Log: said.logger(),
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	key := keyOf(0)
	for seq, r := range []pipeline.ParkRequest{
		{Entry: pipeline.Entry{Cost: 1}}, {Entry: pipeline.Entry{Cost: 1, Collapse: "name"}}, {Entry: pipeline.Entry{Cost: 1}, After: time.Hour},
	} {
		r.Key, r.Entry.Seq, r.Entry.Order = key, uint64(seq+1), uint64(seq+1)
		if _, err := s.Park(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	lease := leaseOf(t, s, key, 0, 1)
	settle := func() (pipeline.LaneInfo, error) {
		return s.Settle(t.Context(), pipeline.SettleRequest{Key: key, Token: lease.Token, Release: true, Events: []pipeline.Settlement{
			{Was: lease.Events[0].Entry, Fate: pipeline.Done},
		}})
	}
	slot := m.slot(0)
	source, target := m.cluster.Nodes()[m.cluster.Owner(slot)].Client(), m.cluster.Nodes()[(m.cluster.Owner(slot)+1)%3].Client()
	for _, set := range []*redis.Cmd{
		target.Do(t.Context(), "cluster", "setslot", slot, "importing", source.Do(t.Context(), "cluster", "myid").Val()),
		source.Do(t.Context(), "cluster", "setslot", slot, "migrating", target.Do(t.Context(), "cluster", "myid").Val()),
	} {
		if err := set.Err(); err != nil {
			t.Fatal(err)
		}
	}
	_, err = settle()
	if !moving(err) || failing(err) {
		t.Errorf("amid the move: %v, want that it moves", err)
	}
	m.cluster.Move(slot, (m.cluster.Owner(slot)+1)%3, func() {})
	info, err := settle()
	if err != nil || info.Waiting != 2 {
		t.Errorf("afterwards %d wait, %v, want the other two", info.Waiting, err)
	}
	if next := leaseOf(t, s, key, 0, 5); !slices.Equal(seqs(next), []uint64{2}) {
		t.Errorf("then %v are leased, want the second", seqs(next))
	}
	if said.String() != "" {
		t.Errorf("said %s", &said)
	}
}
