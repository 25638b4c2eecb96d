package redisstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"sluice/limiter"
	"sluice/pipeline"
)

// place is a Redis of some kind that the conformance suite runs on.
type place struct {
	address func(t *testing.T) Address // new options at each call: a client keeps what it is given
	servers func() []*redis.Client     // the test's own clients of all servers that hold keys, with all rights
}

// connect returns a client as workers have it.
func (p place) connect(t *testing.T) redis.UniversalClient {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	rdb, err := Connect(ctx, p.address(t), "the test's Redis", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// reset empties all servers, of scripts, too.
func (p place) reset(t *testing.T) {
	t.Helper()
	for _, server := range p.servers() {
		if err := errors.Join(server.FlushAll(t.Context()).Err(), server.ScriptFlush(t.Context()).Err()); err != nil {
			t.Fatal(err)
		}
	}
}

// storeOn is a store that isn't open yet, for a limit of 100/s burst 10, whose scripts take start for the time.
func storeOn(t *testing.T, rdb redis.UniversalClient, b *bodies, worker string) *Store {
	t.Helper()
	limit, err := limiter.ParseLimits("100/s burst 10")
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(rdb, Options{Name: "sluice", Worker: worker, Limits: limiter.Fixed(limit), Bodies: b, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	s.now = start
	return s
}

func openOn(t *testing.T, rdb redis.UniversalClient, b *bodies, worker string) *Store {
	t.Helper()
	s := storeOn(t, rdb, b, worker)
	if err := s.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s
}

// conforms checks on a Redis of any kind that it keeps what the limiter and the lanes rely on.
func conforms(t *testing.T, p place) {
	rdb := p.connect(t)
	for _, test := range []struct {
		name string
		run  func(t *testing.T, p place, rdb redis.UniversalClient)
	}{
		{"EveryShardGrantsItsBurst", everyShardGrantsItsBurst},
		{"LaneFromParkToSettle", laneFromParkToSettle},
		{"LeaseIsExclusive", leaseIsExclusive},
		{"LostStateIsRebuilt", lostStateIsRebuilt},
		{"FlushedScriptsComeBack", flushedScriptsComeBack},
	} {
		t.Run(test.name, func(t *testing.T) {
			p.reset(t)
			test.run(t, p, rdb)
		})
	}
}

// keyOf is a key of the shard.
func keyOf(shard int) string {
	for i := 0; ; i++ {
		if key := fmt.Sprintf("key%d", i); limiter.Shard(key) == shard {
			return key
		}
	}
}

func everyShardGrantsItsBurst(t *testing.T, _ place, rdb redis.UniversalClient) {
	s := openOn(t, rdb, &bodies{created: 7}, "one")
	for shard := range limiter.Shards {
		if err := grantsBurst(s, keyOf(shard)); err != nil {
			t.Errorf("shard %d: %v", shard, err)
		}
	}
}

// grantsBurst takes the burst of 10 and the second's worth of a fresh key, and sees what is said afterwards.
func grantsBurst(s *Store, key string) error {
	batch := slices.Repeat([]reservation{{key: key, rule: s.rule(key, ""), cost: 1, horizon: time.Second}}, 115)
	got, err := s.decide(key, batch)
	if err != nil {
		return err
	}
	count := map[limiter.Verdict]int{}
	for _, d := range got {
		count[d.Verdict]++
	}
	if count[limiter.Go] != 10 || count[limiter.Hold] != 100 || count[limiter.Park] != 5 {
		return fmt.Errorf("go, hold, park = %v, want 10, 100, 5", count)
	}
	got, err = s.decide(key, batch[:1])
	if err == nil && (got[0].Verdict != limiter.Park || got[0].Reason != limiter.LaneAhead) {
		err = fmt.Errorf("behind parked ones: %+v", got[0])
	}
	return err
}

func laneFromParkToSettle(t *testing.T, _ place, rdb redis.UniversalClient) {
	s := openOn(t, rdb, &bodies{created: 7}, "one")
	for shard := range limiter.Shards {
		if err := drains(t.Context(), s, keyOf(shard)); err != nil {
			t.Errorf("shard %d: %v", shard, err)
		}
	}
	left, err := leftOvers(t.Context(), rdb)
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// drains sends three events of key through its lane, one of them by way of a retry.
func drains(ctx context.Context, s *Store, key string) error {
	for _, seq := range []uint64{2, 1, 3, 2} { // parked out of order, one of them twice
		entry := pipeline.Entry{BodyID: pipeline.BodyID{Seq: seq}, Order: seq, Cost: 1}
		if _, err := s.Park(ctx, pipeline.ParkRequest{Key: key, Entry: entry}); err != nil {
			return fmt.Errorf("park: %w", err)
		}
	}
	s.shard(key).look = time.Time{}
	claimed, err := s.claimShard(key, 16)
	if err != nil || !slices.Equal(claimed, []string{key}) {
		return fmt.Errorf("claimed %q, %w", claimed, err)
	}
	lease, err := s.Lease(ctx, pipeline.LeaseRequest{Key: key, Max: 10, Horizon: time.Second})
	if err != nil || !slices.Equal(seqs(lease), []uint64{1, 2, 3}) {
		return fmt.Errorf("leased %v, %w", seqs(lease), err)
	}
	again := lease.Events[2].Entry
	again.Attempt, again.First = 1, time.UnixMilli(start/1000)
	info, err := s.Settle(ctx, pipeline.SettleRequest{Key: key, Token: lease.Token, Release: true, Events: []pipeline.Settlement{
		done(lease.Events[0]), done(lease.Events[1]),
		{Was: lease.Events[2].Entry, Now: again, Fate: pipeline.Back, After: time.Millisecond},
	}})
	if err != nil || info.Waiting != 1 {
		return fmt.Errorf("settled: %+v, %w", info, err)
	}
	s.now += 2000
	defer func() { s.now -= 2000 }()
	lease, err = s.Lease(ctx, pipeline.LeaseRequest{Key: key, Max: 10, Horizon: time.Second})
	if err != nil || len(lease.Events) != 1 || lease.Events[0].Entry != again {
		return fmt.Errorf("leased %+v, %w, want the one that was retried", lease.Events, err)
	}
	info, err = s.Settle(ctx, pipeline.SettleRequest{Key: key, Token: lease.Token, Release: true, Healthy: true,
		Events: []pipeline.Settlement{done(lease.Events[0])}})
	if err != nil || info.Waiting != 0 {
		return fmt.Errorf("settled at last: %+v, %w", info, err)
	}
	return nil
}

// leftOvers are keys of lanes that should be gone.
func leftOvers(ctx context.Context, rdb redis.UniversalClient) ([]string, error) {
	var left []string
	for shard := range limiter.Shards {
		tag := ":{" + limiter.Tag(shard) + "}"
		for _, key := range []string{"due" + tag, "lane" + tag + ":" + keyOf(shard), "busy" + tag + ":" + keyOf(shard)} {
			n, err := rdb.Exists(ctx, key).Result()
			if err != nil {
				return nil, err
			}
			if n > 0 {
				left = append(left, key)
			}
		}
	}
	return left, nil
}

func leaseIsExclusive(t *testing.T, p place, rdb redis.UniversalClient) {
	b := &bodies{created: 7}
	one, two := openOn(t, rdb, b, "one"), openOn(t, p.connect(t), b, "two")
	for shard := range limiter.Shards {
		if err := fences(t.Context(), one, two, keyOf(shard)); err != nil {
			t.Errorf("shard %d: %v", shard, err)
		}
	}
}

// fences lets one's lease of a lane run out and two take it over.
func fences(ctx context.Context, one, two *Store, key string) error {
	request := pipeline.LeaseRequest{Key: key, Max: 10, Horizon: time.Second}
	if _, err := one.Park(ctx, pipeline.ParkRequest{Key: key, Entry: pipeline.Entry{BodyID: pipeline.BodyID{Seq: 1}, Order: 1, Cost: 1}}); err != nil {
		return err
	}
	first, err := one.Lease(ctx, request)
	if err != nil || len(first.Events) != 1 {
		return fmt.Errorf("leased %+v, %w", first, err)
	}
	if second, err := two.Lease(ctx, request); err != nil || second.Token != 0 {
		return fmt.Errorf("leased twice: %+v, %w", second, err)
	}
	two.now += leaseTime.Microseconds()
	defer func() { two.now -= leaseTime.Microseconds() }()
	if second, err := two.Lease(ctx, request); err != nil || len(second.Events) != 1 {
		return fmt.Errorf("after the lease ran out: %+v, %w", second, err)
	}
	settlement := pipeline.SettleRequest{Key: key, Token: first.Token, Events: []pipeline.Settlement{done(first.Events[0])}}
	if _, err := one.Settle(ctx, settlement); !errors.Is(err, pipeline.ErrFenced) {
		return fmt.Errorf("settled under a lost lease: %w", err)
	}
	return nil
}

func lostStateIsRebuilt(t *testing.T, p place, rdb redis.UniversalClient) {
	b := &bodies{created: 7}
	s := openOn(t, rdb, b, "one")
	for shard := range limiter.Shards {
		for range 3 {
			b.events = append(b.events, &pipeline.Event{Key: keyOf(shard), Cost: 1, Source: pipeline.SourceID{Seq: uint64(100 - len(b.events))}})
		}
	}
	p.reset(t)
	if err := rebuilds(t.Context(), s, keyOf(0)); err != nil {
		t.Fatal(err)
	}
	s.now += 5_000_000
	for shard := range limiter.Shards {
		lease := leaseOf(t, s, keyOf(shard), 0, 10)
		if want := []uint64{uint64(3*shard + 3), uint64(3*shard + 2), uint64(3*shard + 1)}; !slices.Equal(seqs(lease), want) {
			t.Errorf("shard %d: leased %v, want %v", shard, seqs(lease), want)
		}
	}
}

// rebuilds sees that all state is gone, and opens it anew without a fresh burst.
func rebuilds(ctx context.Context, s *Store, key string) error {
	if _, err := s.Reserve(ctx, key, "", 1, 0); !errors.Is(err, ErrEpoch) {
		return fmt.Errorf("reserve after the loss: %w, want %w", err, ErrEpoch)
	}
	if err := s.Open(ctx); err != nil {
		return fmt.Errorf("open after the loss: %w", err)
	}
	d, err := s.Reserve(ctx, key, "", 1, 0)
	if err == nil && d.Verdict != limiter.Park {
		err = fmt.Errorf("after the loss: %+v, want no fresh burst", d)
	}
	return err
}

// A server that has forgotten the scripts, as after its start or a failover, gets them again.
func flushedScriptsComeBack(t *testing.T, p place, rdb redis.UniversalClient) {
	s := openOn(t, rdb, &bodies{created: 7}, "one")
	for i, server := range append(p.servers(), p.servers()...) {
		if err := server.ScriptFlush(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		for shard := range limiter.Shards {
			d, err := s.Reserve(t.Context(), fmt.Sprint(keyOf(shard), "-", i), "", 1, 0)
			if err != nil || d.Verdict == limiter.Overflow {
				t.Errorf("shard %d: %+v, %v", shard, d, err)
			}
		}
	}
}
