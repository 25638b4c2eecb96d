package redisstore

import (
	"context"
	"sync"
	"testing"
	"time"

	"sluice/integration/testenv"
	"sluice/limiter"
)

// A limit that is slow enough for its tokens not to grow stale on a full machine.
const (
	faultRate  = 25
	faultBurst = 10
	faultLimit = "25/s burst 10"
)

// stricken is the Redis that a fault befalls.
type stricken struct {
	address  func(*testing.T) Address
	server   *testenv.RedisServer
	sentinel *testenv.SentinelServers // of a fault that needs one
}

// fault is what can befall a Redis.
type fault struct {
	name       string
	begin, end func(*stricken)
	serves     bool // while it lasts
	stored     bool // its data were saved to disk some time before
	failover   bool
	noticed    time.Duration // when workers may use less than their limit until; 0: a second
	extra      int           // what may pass beyond the limit: a stated exception
}

func nothing(*stricken) {}

// striking bounds the faults that are tried at the same time: more of them would measure the machine.
var striking = make(chan struct{}, 6)

// eachFault runs a test for every fault, several at the same time, for they wait more than they work.
func eachFault(t *testing.T, test func(*testing.T, fault)) {
	t.Helper()
	t.Parallel()
	var all sync.WaitGroup
	for _, f := range faults {
		all.Go(func() {
			striking <- struct{}{}
			defer func() { <-striking }()
			t.Run(f.name, func(t *testing.T) { test(t, f) })
		})
	}
	all.Wait()
}

var faults = []fault{
	{
		name:  "killed and started empty",
		begin: func(s *stricken) { s.server.Kill() },
		end:   func(s *stricken) { s.server.Start() },
	}, {
		name:  "restarted empty between two calls",
		begin: func(s *stricken) { s.server.Kill(); s.server.Start() },
		end:   nothing, serves: true,
		noticed: limiter.MaxHorizon + time.Second, // what may have been promised is waited for
	}, {
		name:    "stopped and continued",
		begin:   func(s *stricken) { s.server.Pause() },
		end:     func(s *stricken) { s.server.Resume() },
		noticed: 2*callTimeout + 300*time.Millisecond, // an event may have to wait for two calls
	}, {
		name:  "scripts flushed",
		begin: func(s *stricken) { s.server.Client().ScriptFlush(context.Background()) },
		end:   func(s *stricken) { s.server.Client().ScriptFlush(context.Background()) }, serves: true,
	}, {
		name:  "read-only",
		begin: func(s *stricken) { s.server.Client().Do(context.Background(), "replicaof", "127.0.0.1", "1") },
		end:   func(s *stricken) { s.server.Client().Do(context.Background(), "replicaof", "no", "one") },
	}, {
		name:  "out of memory",
		begin: func(s *stricken) { s.server.Client().ConfigSet(context.Background(), "maxmemory", "1") },
		end:   func(s *stricken) { s.server.Client().ConfigSet(context.Background(), "maxmemory", "0") },
	}, {
		name:  "restored from an old snapshot",
		begin: func(s *stricken) { s.server.Kill() },
		end:   func(s *stricken) { s.server.Start() }, stored: true, extra: faultBurst,
	}, {
		name:  "failed over",
		begin: func(s *stricken) { s.sentinel.Failover() }, // returns when it is over
		end:   nothing, failover: true, extra: faultBurst,
	},
}

// strike starts a Redis and traffic on it, lets a fault befall it for so long and the traffic go on for a while, and answers
// when the fault began and ended.
func (f fault) strike(t *testing.T, traffic func(*stricken), lasts, after time.Duration) (begun, ended time.Time) {
	t.Helper()
	s := &stricken{}
	if f.failover {
		s.sentinel = testenv.RedisSentinel(t)
		s.address = sentinelAt(s.sentinel.URL())
	} else {
		s.server = testenv.Redis(t)
		s.address = singleAt(s.server.URL())
	}
	traffic(s)
	if f.stored {
		time.Sleep(200 * time.Millisecond)
		s.server.Client().Save(context.Background())
	}
	time.Sleep(400 * time.Millisecond)
	begun = time.Now()
	f.begin(s)
	if !f.failover {
		time.Sleep(time.Until(begun.Add(lasts)))
	}
	f.end(s)
	ended = time.Now()
	time.Sleep(after)
	return begun, ended
}

// passages are when events passed, or got their tokens: on a full machine some tokens grow stale and aren't used.
type passages struct {
	mu    sync.Mutex
	times []time.Time
}

func (p *passages) note(at time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.times = append(p.times, at)
}

// between counts those from one moment to another; first is the first of them.
func (p *passages) between(from, to time.Time) (n int, first time.Time) {
	for _, at := range p.times {
		if at.After(from) && at.Before(to) {
			if n++; first.IsZero() || at.Before(first) {
				first = at
			}
		}
	}
	return n, first
}

// What can befall a Redis under the traffic of a library's users: nothing passes beyond the limit, whatever happens, and
// what the limit allows is used again soon after.
func TestFaultsOfRedisUnderTraffic(t *testing.T) {
	const recovery = 2500 * time.Millisecond
	eachFault(t, func(t *testing.T, f fault) {
		var granted, passed passages
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		var asking sync.WaitGroup
		begun, ended := f.strike(t, func(s *stricken) {
			for range 4 { // processes, in effect
				askForever(ctx, t, s, &asking, &granted, &passed)
			}
		}, 500*time.Millisecond, recovery)
		stop()
		asking.Wait()

		if x := testenv.BoundExcess(passed.times, faultRate, faultBurst, 100*time.Millisecond); x > float64(f.extra) {
			t.Errorf("%.1f passed beyond the limit, at most %d may", x, f.extra)
		}
		during, _ := passed.between(begun.Add(50*time.Millisecond), ended)
		after, first := granted.between(ended, time.Now())
		t.Logf("%d passed in all, %d during the fault, the first %s after its end", len(passed.times), during,
			first.Sub(ended).Round(time.Millisecond))
		if !f.serves && !f.failover && during > faultBurst {
			t.Errorf("%d passed while Redis could not count", during)
		}
		// The client dials a server that was gone once a second, and what one that lost its data may have promised is waited for.
		if first.IsZero() || first.Sub(ended) > 1300*time.Millisecond+limiter.MaxHorizon {
			t.Fatalf("the first passed %s after the end", first.Sub(ended))
		}
		served := ended.Add(recovery).Sub(first)
		if least := int(0.8*faultRate*served.Seconds()) - 1; after < least {
			t.Errorf("%d passed in %s after the fault, want at least %d", after, served, least)
		}
	})
}

// askForever lets one client of a Limiter ask for one key without pause.
func askForever(ctx context.Context, t *testing.T, s *stricken, asking *sync.WaitGroup, granted, passed *passages) {
	t.Helper()
	rdb := s.address(t).client()
	t.Cleanup(func() { _ = rdb.Close() })
	l := shared(t, rdb, faultLimit)
	asking.Go(func() {
		for ctx.Err() == nil {
			d, err := l.Reserve(ctx, "hot", 1, 0)
			if err != nil || d.Verdict != limiter.Go {
				time.Sleep(10 * time.Millisecond)
				continue
			}
			granted.note(d.At)
			if now := time.Now(); now.Before(d.Stale) {
				passed.note(now)
			}
		}
	})
}
