package redisstore

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"sluice/integration/testenv"
	"sluice/limiter"
)

// What can befall a Redis under traffic: nothing passes beyond the limit, whatever happens, and what the limit allows is used
// again within a second of its end.
func TestFaultsOfRedisUnderTraffic(t *testing.T) {
	const rate, burst = 200, 20
	ctx := context.Background()
	for _, f := range []struct {
		name       string
		begin, end func(*testenv.RedisServer)
		serves     bool // while it lasts
		extra      int  // what may pass beyond the limit: a stated exception
	}{
		{
			name:  "killed and started empty",
			begin: func(s *testenv.RedisServer) { s.Kill() },
			end:   func(s *testenv.RedisServer) { s.Start() },
		}, {
			name:  "stopped and continued",
			begin: func(s *testenv.RedisServer) { s.Pause() },
			end:   func(s *testenv.RedisServer) { s.Resume() },
		}, {
			name:   "scripts flushed",
			begin:  func(s *testenv.RedisServer) { s.Client().ScriptFlush(ctx) },
			end:    func(s *testenv.RedisServer) { s.Client().ScriptFlush(ctx) },
			serves: true,
		}, {
			name:  "read-only",
			begin: func(s *testenv.RedisServer) { s.Client().Do(ctx, "replicaof", "127.0.0.1", "1") },
			end:   func(s *testenv.RedisServer) { s.Client().Do(ctx, "replicaof", "no", "one") },
		}, {
			name:  "out of memory",
			begin: func(s *testenv.RedisServer) { s.Client().ConfigSet(ctx, "maxmemory", "1") },
			end:   func(s *testenv.RedisServer) { s.Client().ConfigSet(ctx, "maxmemory", "0") },
		}, {
			name:  "restored from an old snapshot",
			begin: func(s *testenv.RedisServer) { s.Kill() },
			end:   func(s *testenv.RedisServer) { s.Start() },
			extra: burst,
		},
	} {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			server := testenv.Redis(t)
			limits, err := limiter.ParseLimits("200/s burst 20")
			if err != nil {
				t.Fatal(err)
			}
			traffic := newTraffic(t, server, limits)
			if f.extra > 0 {
				time.Sleep(200 * time.Millisecond)
				server.Client().Save(ctx)
			}
			time.Sleep(600 * time.Millisecond)
			begun := time.Now()
			f.begin(server)
			time.Sleep(500 * time.Millisecond)
			f.end(server)
			ended := time.Now()
			time.Sleep(1500 * time.Millisecond)
			times := traffic.stop()

			if x := testenv.BoundExcess(times, rate, burst, 100*time.Millisecond); x > float64(f.extra) {
				t.Errorf("%.1f passed beyond the limit, at most %d may", x, f.extra)
			}
			during, after := 0, 0
			var first time.Time
			for _, at := range times {
				switch {
				case at.After(ended):
					if after++; first.IsZero() {
						first = at
					}
				case at.Sub(begun) > 50*time.Millisecond:
					during++
				}
			}
			t.Logf("%s: %d passed in all, %d during the fault, the first %s after its end", f.name, len(times), during, first.Sub(ended).Round(time.Millisecond))
			if !f.serves && during > burst {
				t.Errorf("%d passed while Redis could not count", during)
			}
			if first.IsZero() || first.Sub(ended) > 5*time.Second {
				t.Fatalf("the first passed %s after the end", first.Sub(ended))
			}
			// The client dials a server that was gone once a second.
			served := ended.Add(1500 * time.Millisecond).Sub(first)
			if least := int(0.8 * rate * served.Seconds()); after < least {
				t.Errorf("%d passed in %s after the fault, want at least %d", after, served, least)
			}
		})
	}
}

// traffic is eight processes that ask for one key without pause.
type traffic struct {
	cancel context.CancelFunc
	asking sync.WaitGroup
	mu     sync.Mutex
	times  []time.Time // of what passed
}

func newTraffic(t *testing.T, server *testenv.RedisServer, limits limiter.Limits) *traffic {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	tr := &traffic{cancel: cancel}
	for range 8 {
		opt, err := redis.ParseURL(server.URL())
		if err != nil {
			t.Fatal(err)
		}
		rdb := Address{Single: opt}.client()
		t.Cleanup(func() { _ = rdb.Close() })
		l, err := NewLimiter(rdb, limits, LimiterOptions{})
		if err != nil {
			t.Fatal(err)
		}
		tr.asking.Go(func() {
			for ctx.Err() == nil {
				d, err := l.Reserve(ctx, "hot", 1, 0)
				switch {
				case err == nil && d.Verdict == limiter.Go && time.Now().Before(d.Stale):
					tr.mu.Lock()
					tr.times = append(tr.times, time.Now())
					tr.mu.Unlock()
				case err != nil, d.Verdict == limiter.Park:
					time.Sleep(2 * time.Millisecond)
				}
			}
		})
	}
	return tr
}

// stop ends the asking and answers when each passed.
func (tr *traffic) stop() []time.Time {
	tr.cancel()
	tr.asking.Wait()
	return tr.times
}
