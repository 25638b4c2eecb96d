package redisstore

import (
	"errors"
	"fmt"
	"os/exec"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"sluice/integration/testenv"
	"sluice/limiter"
)

func singleAt(url string) func(*testing.T) Address {
	return func(t *testing.T) Address {
		options, err := redis.ParseURL(url)
		if err != nil {
			t.Fatal(err)
		}
		return Address{Single: options}
	}
}

func clusterAt(url string) func(*testing.T) Address {
	return func(t *testing.T) Address {
		options, err := redis.ParseClusterURL(url)
		if err != nil {
			t.Fatal(err)
		}
		return Address{Cluster: options}
	}
}

func sentinelAt(url string) func(*testing.T) Address {
	return func(t *testing.T) Address {
		options, err := redis.ParseFailoverURL(url)
		if err != nil {
			t.Fatal(err)
		}
		return Address{Sentinel: options}
	}
}

func only(server *testenv.RedisServer) func() []*redis.Client {
	return func() []*redis.Client { return []*redis.Client{server.Client()} }
}

func clusterPlace(cluster *testenv.ClusterServers) place {
	return place{clusterAt(cluster.URL()), func() []*redis.Client {
		var all []*redis.Client
		for _, node := range cluster.Nodes() {
			all = append(all, node.Client())
		}
		return all
	}}
}

func TestSingleRedisConforms(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	t.Run("TCP", func(t *testing.T) { conforms(t, place{singleAt(server.URL()), only(server)}) })
	t.Run("Socket", func(t *testing.T) { conforms(t, place{singleAt(server.SocketURL()), only(server)}) })
}

func TestRedisWithTLSAndPasswordConforms(t *testing.T) {
	t.Parallel()
	files := testenv.Certificates(t)
	server, url := testenv.RedisTLS(t, files, "--requirepass", "hunter2")
	admin := authorised(t, server, "hunter2")
	conforms(t, place{func(t *testing.T) Address {
		address := singleAt(url)(t)
		address.Single.TLSConfig, address.Single.Password = files.Config(t), "hunter2"
		return address
	}, func() []*redis.Client { return []*redis.Client{admin} }})
}

// authorised is a client of the test's own for a server that asks for a password.
func authorised(t *testing.T, server *testenv.RedisServer, password string) *redis.Client {
	options, err := redis.ParseURL(server.SocketURL())
	if err != nil {
		t.Fatal(err)
	}
	options.Password = password
	client := redis.NewClient(options)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

func TestValkeyConforms(t *testing.T) {
	t.Parallel()
	path, err := exec.LookPath("valkey-server")
	if err != nil {
		t.Skip("valkey-server is not in the PATH, and not every distribution has it")
	}
	server := testenv.RedisProgram(t, path)
	conforms(t, place{singleAt(server.URL()), only(server)})
}

func TestClusterConforms(t *testing.T) {
	t.Parallel()
	cluster := testenv.RedisCluster(t)
	p := clusterPlace(cluster)
	conforms(t, p)
	for i, node := range cluster.Nodes() {
		if node.Client().DBSize(t.Context()).Val() == 0 {
			t.Errorf("node %d holds nothing of 16 shards", i)
		}
	}
	rdb := p.connect(t)
	t.Run("SlotMoves", func(t *testing.T) { slotMoves(t, p, cluster, rdb) })
	t.Run("NodeComesBackEmpty", func(t *testing.T) { nodeComesBackEmpty(t, p, cluster, rdb) })
	t.Run("NodeIsReplaced", func(t *testing.T) { nodeIsReplaced(t, p, cluster, rdb) })
}

// slotMoves moves a shard to another node under a worker that uses it.
func slotMoves(t *testing.T, p place, cluster *testenv.ClusterServers, rdb redis.UniversalClient) {
	p.reset(t)
	s := openOn(t, rdb, &bodies{created: 7}, "one")
	key := keyOf(3)
	if err := grantsBurst(s, key); err != nil {
		t.Fatal(err)
	}
	slot := int(rdb.ClusterKeySlot(t.Context(), s.shard(key).epochKey).Val())
	to := 0
	if slot < 16384/3 {
		to = 2
	}
	cluster.Move(slot, to, func() {
		for range breakAfter + 1 {
			if _, err := s.Reserve(t.Context(), key, "", 1, 0); !moving(err) || errorKind(err) != "unavailable" {
				t.Errorf("a reservation amid the move: %v, want that it can't be now", err)
			}
		}
		if s.Trouble() != nil || !s.reachable() {
			t.Error("Redis is taken for away as a slot moves")
		}
		if d, err := s.Reserve(t.Context(), keyOf(4), "", 1, 0); err != nil || d.Verdict != limiter.Go {
			t.Errorf("a reservation of another slot: %+v, %v", d, err)
		}
	})
	d, err := s.Reserve(t.Context(), key, "", 1, 0)
	if err != nil || d.Verdict != limiter.Park {
		t.Errorf("after the move: %+v, %v, want the key as it was", d, err)
	}
}

// nodeComesBackEmpty restarts a node without its data: its shards are rebuilt, those of the others keep working.
func nodeComesBackEmpty(t *testing.T, p place, cluster *testenv.ClusterServers, rdb redis.UniversalClient) {
	p.reset(t)
	s := openOn(t, rdb, &bodies{created: 7}, "one")
	node := cluster.Nodes()[1]
	var gone, kept []int // shards
	for shard := range limiter.Shards {
		if node.Client().Exists(t.Context(), s.shards[shard].epochKey).Val() == 1 {
			gone = append(gone, shard)
		} else {
			kept = append(kept, shard)
		}
	}
	node.Kill()
	for _, shard := range kept {
		if d, err := s.Reserve(t.Context(), keyOf(shard), "", 1, 0); err != nil || d.Verdict != limiter.Go {
			t.Errorf("shard %d while another node is away: %+v, %v", shard, d, err)
		}
	}
	if _, err := s.Reserve(t.Context(), keyOf(gone[0]), "", 1, 0); err == nil || !away(err) {
		t.Errorf("a reservation at the dead node: %v, want it away", err)
	}
	node.Start()
	until(t, func() error {
		if _, err := s.Reserve(t.Context(), keyOf(gone[0]), "", 1, 0); !errors.Is(err, ErrEpoch) {
			return fmt.Errorf("reserve: %w, want %w", err, ErrEpoch)
		}
		return nil
	})
	reopen(t, s)
	for _, shard := range gone {
		if d, err := s.Reserve(t.Context(), keyOf(shard), "", 1, 0); err != nil || d.Verdict != limiter.Park {
			t.Errorf("shard %d after the loss: %+v, %v, want no fresh burst", shard, d, err)
		}
	}
}

// nodeIsReplaced lets a node die and another have its slots. The client finds out by itself, though nobody says MOVED.
func nodeIsReplaced(t *testing.T, p place, cluster *testenv.ClusterServers, rdb redis.UniversalClient) {
	p.reset(t)
	s := storeOn(t, rdb, &bodies{created: 7}, "one")
	reopen(t, s) // the Cluster may still be noting that a node came back
	shard := 0
	for cluster.Nodes()[2].Client().Exists(t.Context(), s.shards[shard].epochKey).Val() == 0 {
		shard++
	}
	cluster.Replace(2, 0)
	start := time.Now()
	until(t, func() error {
		if _, err := s.Reserve(t.Context(), keyOf(shard), "", 1, 0); !errors.Is(err, ErrEpoch) {
			return fmt.Errorf("reserve: %w, want %w", err, ErrEpoch)
		}
		return nil
	})
	if took := time.Since(start); took > 4*time.Second {
		t.Errorf("found the slots' new place after %s", took)
	}
	reopen(t, s)
}

func TestSentinelConformsAndSurvivesAFailover(t *testing.T) {
	t.Parallel()
	sentinel := testenv.RedisSentinel(t)
	p := place{sentinelAt(sentinel.URL()), func() []*redis.Client { return []*redis.Client{sentinel.Master().Client()} }}
	conforms(t, p)
	p.reset(t)
	rdb := p.connect(t)
	s := openOn(t, rdb, &bodies{created: 7}, "one")
	for shard := range limiter.Shards {
		if err := grantsBurst(s, keyOf(shard)); err != nil {
			t.Fatal(err)
		}
	}
	sentinel.Failover()
	// Whatever the replica hadn't got is at most one burst a key.
	for shard := range limiter.Shards {
		granted := 0
		for range 30 {
			until(t, func() error {
				d, err := s.Reserve(t.Context(), keyOf(shard), "", 1, 0)
				if errors.Is(err, ErrEpoch) {
					err = errors.Join(err, s.Open(t.Context()))
				}
				if err == nil && d.Verdict == limiter.Go {
					granted++
				}
				return err
			})
		}
		if granted > 10 {
			t.Errorf("shard %d: granted %d after the failover, want at most the burst", shard, granted)
		}
	}
	if err := s.Trouble(); err != nil {
		t.Errorf("after the failover: %v", err)
	}
}

// reopen opens the store anew. A rebuild that is cut short counts as alive for 10 s, so each attempt comes later than that
// by the clock that the scripts are given.
func reopen(t *testing.T, s *Store) {
	t.Helper()
	until(t, func() error {
		s.now += 11_000_000
		return s.Open(t.Context())
	})
}

// until repeats what a worker would repeat, for as long as a server may take to come back.
func until(t *testing.T, try func() error) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for {
		err := try()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
