package redisstore

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"

	"sluice/integration/testenv"
	"sluice/limiter"
)

// What a decision costs: of Redis' own time, all of it, and so how many one Redis can make. Events come in batches, of users
// that are all alike or of a few that have most of them. Beside the store's call for a whole batch stand the same script
// called once per event in a pipeline, and a known limiter, which decides on one event a call.
//
//	go test ./limiter/redisstore -run '^$' -bench Decisions
func BenchmarkDecisions(b *testing.B) {
	const users = 20_000
	for _, spread := range []string{"uniform", "zipf"} {
		for _, size := range []int{1, 16, 64, 256} {
			for _, way := range []struct {
				name  string
				start func(testing.TB, *Store) func(batch []reservation) error
			}{
				{"one call a batch", inOneCall}, {"one call an event", inOneCallEach}, {"redis_rate", withRedisRate},
			} {
				if way.name == "redis_rate" && size > 1 {
					continue
				}
				b.Run(fmt.Sprintf("%s/batch=%d/%s", spread, size, way.name), func(b *testing.B) {
					rdb := testenv.Redis(b).Client()
					s := shared(b, rdb, "100/s burst 200").store
					if _, err := s.Reserve(b.Context(), "begins", "", 1, 0); err != nil {
						b.Fatal(err)
					}
					decide := way.start(b, s)
					next := batches(s, spread, users, size)
					measure(b, rdb, size, func() error { return decide(next()) })
				})
			}
		}
	}
}

// measure runs one batch b.N times and reports what a decision costs.
func measure(b *testing.B, rdb *redis.Client, size int, batch func() error) {
	b.Helper()
	if err := batch(); err != nil { // loads the script
		b.Fatal(err)
	}
	before := redisTime(b, rdb)
	b.ResetTimer()
	for range b.N {
		if err := batch(); err != nil {
			b.Fatal(err)
		}
	}
	b.StopTimer()
	decisions := float64(b.N * size)
	b.ReportMetric(float64((redisTime(b, rdb)-before).Nanoseconds())/1e3/decisions, "redis-us/decision")
	b.ReportMetric(decisions/b.Elapsed().Seconds(), "decisions/s")
	b.ReportMetric(0, "ns/op") // of a batch: says nothing beside the others
}

// redisTime is the processor time that Redis has used.
func redisTime(t testing.TB, rdb *redis.Client) time.Duration {
	t.Helper()
	info := rdb.Info(t.Context(), "cpu").Val()
	total := 0.0
	for _, name := range []string{"used_cpu_user", "used_cpu_sys"} {
		seconds, err := strconv.ParseFloat(strings.TrimSpace(field(info, name)), 64)
		if err != nil {
			t.Fatalf("what Redis says of its time: %v", err)
		}
		total += seconds
	}
	return time.Duration(total * float64(time.Second))
}

// batches makes batches of users whose reservations travel together.
func batches(s *Store, spread string, users, size int) func() []reservation {
	names := make([]string, 0, users)
	for i := 0; len(names) < users; i++ {
		if name := "user" + strconv.Itoa(i); s.shard(name).bundle == s.shards[0].bundle {
			names = append(names, name)
		}
	}
	random := rand.New(rand.NewPCG(1, 2))
	zipf := rand.NewZipf(random, 1.1, 1, uint64(users-1))
	return func() []reservation {
		batch := make([]reservation, size)
		for i := range batch {
			user := random.IntN(users)
			if spread == "zipf" {
				user = int(zipf.Uint64())
			}
			batch[i] = reservation{names[user], s.rule(names[user], ""), 1, limiter.MaxHorizon}
		}
		return batch
	}
}

func inOneCall(_ testing.TB, s *Store) func([]reservation) error {
	return func(batch []reservation) error {
		_, err := s.shards[0].bundle.decide(batch)
		return err
	}
}

func inOneCallEach(t testing.TB, s *Store) func([]reservation) error {
	if err := takeScript.Load(t.Context(), s.rdb).Err(); err != nil {
		t.Fatal(err)
	}
	return func(batch []reservation) error {
		pipe := s.rdb.Pipeline()
		for _, r := range batch {
			sh, table := s.shard(r.key), newTable(1, func(int) *rule { return r.rule })
			args := append([]any{sh.epoch, s.now}, table.args...)
			args = append(args, 0, -1, 1, 1, 1, 1, r.cost, r.horizon.Microseconds())
			takeScript.EvalSha(t.Context(), pipe, []string{sh.epochKey, sh.dueKey, sh.hashKey(r.key)}, args...)
		}
		_, err := pipe.Exec(t.Context())
		return err
	}
}

func withRedisRate(t testing.TB, s *Store) func([]reservation) error {
	l := redis_rate.NewLimiter(s.rdb)
	limit := redis_rate.Limit{Rate: 100, Burst: 200, Period: time.Second}
	return func(batch []reservation) error {
		_, err := l.Allow(t.Context(), batch[0].key, limit)
		return err
	}
}
