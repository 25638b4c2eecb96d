package redisstore

import (
	"errors"
	"testing"
	"time"

	"sluice/integration/testenv"
	"sluice/limiter"
)

// keysByNode are a key of each shard that a node of a Cluster holds, and of each that another does.
func keysByNode(t *testing.T, cluster *testenv.ClusterServers, node int) (its, others []string) {
	t.Helper()
	rdb := clusterAt(cluster.URL())(t).client()
	defer func() { _ = rdb.Close() }()
	for shard := range limiter.Shards {
		slot := int(rdb.ClusterKeySlot(t.Context(), "{"+limiter.Tag(shard)+"}").Val())
		if cluster.Owner(slot) == node {
			its = append(its, keyOf(shard))
		} else {
			others = append(others, keyOf(shard))
		}
	}
	return its, others
}

// A process that starts while a node of the Cluster is away serves the keys that the other nodes hold, and so does one that has been
// running, however often the others' are asked for. Those are served when the node is back.
func TestKeysOfTheNodesThatAnswerAreServed(t *testing.T) {
	t.Parallel()
	for name, strike := range map[string]struct{ begin, end func(*testenv.RedisServer) }{
		"dead":    {(*testenv.RedisServer).Kill, (*testenv.RedisServer).Start},
		"hanging": {(*testenv.RedisServer).Pause, (*testenv.RedisServer).Resume},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cluster := testenv.RedisCluster(t)
			gone, served := keysByNode(t, cluster, 1)
			open := func() *Limiter {
				rdb := clusterAt(cluster.URL())(t).client()
				t.Cleanup(func() { _ = rdb.Close() })
				return shared(t, rdb, "1000/h")
			}
			running := open()
			if d, err := running.Reserve(t.Context(), gone[0], 1, 0); err != nil || d.Verdict != limiter.Go {
				t.Fatalf("%+v, %v", d, err)
			}
			strike.begin(cluster.Nodes()[1])
			started := open()
			until(t, func() error { // its client has to find a node that tells where the slots are
				_, err := started.Reserve(t.Context(), served[0], 1, 0)
				return err
			})
			for name, l := range map[string]*Limiter{"running": running, "started": started} {
				begin := time.Now()
				for range 3 {
					for _, key := range gone { // unanswered, all at the same time
						go func() { _, _ = l.Reserve(t.Context(), key, 1, 0) }()
					}
					for _, key := range served {
						if d, err := l.Reserve(t.Context(), key, 1, 0); err != nil || d.Verdict != limiter.Go {
							t.Errorf("%s: %q: %+v, %v", name, key, d, err)
						}
					}
				}
				if took := time.Since(begin); took > 2500*time.Millisecond {
					t.Errorf("%s: took %v", name, took)
				}
				if _, err := l.Reserve(t.Context(), gone[0], 1, 0); err == nil {
					t.Errorf("%s: a key of the node that is away is served", name)
				}
			}
			strike.end(cluster.Nodes()[1])
			for _, l := range []*Limiter{running, started} {
				for _, key := range gone {
					until(t, func() error {
						_, err := l.Reserve(t.Context(), key, 1, 0)
						return err
					})
				}
			}
		})
	}
}

// What one shard says of its state is no answer of the others.
func TestShardThatCannotBeginLeavesTheOthersServed(t *testing.T) {
	t.Parallel()
	rdb := testenv.Redis(t).Client()
	l := shared(t, rdb, "10/h")
	sh := l.store.shards[5]
	if err := rdb.HSet(t.Context(), sh.epochKey, "id", "x", "format", "2").Err(); err != nil {
		t.Fatal(err)
	}
	for shard := range limiter.Shards {
		d, err := l.Reserve(t.Context(), keyOf(shard), 1, 0)
		switch {
		case shard == 5 && !errors.Is(err, ErrFormat):
			t.Errorf("of another format: %+v, %v", d, err)
		case shard != 5 && (err != nil || d.Verdict != limiter.Go):
			t.Errorf("shard %d: %+v, %v", shard, d, err)
		}
	}
	rdb.Del(t.Context(), sh.epochKey)
	if d, err := l.Reserve(t.Context(), keyOf(5), 1, 0); err != nil || d.Verdict != limiter.Go {
		t.Errorf("once it can: %+v, %v", d, err)
	}
	if d, err := l.Reserve(t.Context(), "unrelated", 1, 0); err != nil || d.Verdict != limiter.Go {
		t.Errorf("another key: %+v, %v", d, err)
	}
}
