package redisstore

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"sluice/integration/testenv"
	"sluice/limiter"
)

// lossy dials connections of which one loses the reply to a script once armed: it is received, so the script has run, and
// not passed on.
type lossy struct {
	armed atomic.Pointer[error] // what the caller gets for the reply
}

func (l *lossy) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return &lossyConn{Conn: conn, lossy: l}, nil
}

type lossyConn struct {
	net.Conn
	lossy *lossy
	asked atomic.Bool
	lost  atomic.Pointer[error] // from then on
}

func (c *lossyConn) Write(p []byte) (int, error) {
	c.asked.Store(bytes.Contains(p, []byte("evalsha")))
	return c.Conn.Write(p)
}

func (c *lossyConn) Read(p []byte) (int, error) {
	if lost := c.lost.Load(); lost != nil {
		return 0, *lost
	}
	n, err := c.Conn.Read(p)
	if n > 0 && c.asked.Load() {
		if lost := c.lossy.armed.Swap(nil); lost != nil {
			c.lost.Store(lost)
			return 0, *lost
		}
	}
	return n, err
}

// Whoever made the client: by the options that go-redis has by itself each lost reply would run the script up to four times.
func TestLostReplyRunsTheScriptOnce(t *testing.T) {
	t.Parallel()
	single, sentinel, cluster := testenv.Redis(t), testenv.RedisSentinel(t), testenv.RedisCluster(t)
	var l lossy
	at := func(address Address) Address {
		switch {
		case address.Single != nil:
			address.Single.Dialer = l.dial
		case address.Sentinel != nil:
			address.Sentinel.Dialer = l.dial
		default:
			address.Cluster.Dialer = l.dial
		}
		return address
	}
	insists := clusterAt(cluster.URL() + "&max_retries=5")(t)
	for name, rdb := range map[string]redis.UniversalClient{
		"single":               at(singleAt(single.URL())(t)).client(),
		"sentinel":             at(sentinelAt(sentinel.URL())(t)).client(),
		"cluster":              at(clusterAt(cluster.URL())(t)).client(),
		"a user's own":         redis.NewClient(at(singleAt(single.URL())(t)).Single),
		"a user's by Sentinel": redis.NewFailoverClient(at(sentinelAt(sentinel.URL())(t)).Sentinel),
		"a user's of Clusters": redis.NewClusterClient(at(clusterAt(cluster.URL())(t)).Cluster),
		"one that insists":     redis.NewClusterClient(at(insists).Cluster),
	} {
		defer func() { _ = rdb.Close() }()
		lostReplyRunsTheScriptOnce(t, name, rdb, &l)
	}
}

func lostReplyRunsTheScriptOnce(t *testing.T, name string, rdb redis.UniversalClient, l *lossy) {
	t.Helper()
	client, err := onceOf(rdb)
	if err != nil {
		t.Fatal(err)
	}
	counted := redis.NewScript("return redis.call('INCR', KEYS[1])")
	key := []string{"{k}" + name}
	if err := counted.Run(t.Context(), client, key).Err(); err != nil { // is loaded now
		t.Fatalf("%s: %v", name, err)
	}
	want := int64(1)
	for _, lost := range []error{io.EOF, os.ErrDeadlineExceeded, &net.OpError{Op: "read", Err: errors.New("connection reset by peer")}} {
		l.armed.Store(&lost)
		err := counted.Run(t.Context(), client, key).Err()
		if l.armed.Load() != nil || err == nil || !away(err) {
			t.Errorf("%s: a reply lost by %q is told as %v", name, lost, err)
		}
		want++
		if got, err := rdb.Get(t.Context(), key[0]).Int64(); err != nil || got != want {
			t.Errorf("%s: after a reply lost by %q it has run %d times in all, %v, want %d", name, lost, got, err, want)
		}
	}
}

// wrapped is a client of a kind that nobody knows.
type wrapped struct{ redis.UniversalClient }

func TestClientsOfUnknownKindsAreRefusedWithTheRemedy(t *testing.T) {
	t.Parallel()
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": "127.0.0.1:1"}})
	defer func() { _ = ring.Close() }()
	single := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer func() { _ = single.Close() }()
	for name, rdb := range map[string]redis.UniversalClient{
		"*redis.Ring": ring, "redisstore.wrapped": wrapped{single}, "no client": (*redis.Client)(nil), "there is no client": nil,
	} {
		limits := limiter.Limits{{Events: 1, Period: time.Second, Burst: 1}}
		l, err := NewLimiter(rdb, limits, LimiterOptions{})
		if err == nil || l != nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), "NewClient") {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := New(rdb, Options{Limits: limiter.Fixed(limits)}); err == nil {
			t.Errorf("%s: a store takes it", name)
		}
		if _, err := Examine(t.Context(), rdb, "x"); err == nil {
			t.Errorf("%s: it is examined", name)
		}
	}
}

func TestAddressOfOneKindMakesATunedClientAndStaysAsItIs(t *testing.T) {
	t.Parallel()
	server, cluster := testenv.Redis(t), testenv.RedisCluster(t)
	limits := limiter.Limits{{Events: 1, Period: time.Hour, Burst: 1}}
	for _, address := range []Address{singleAt(server.URL())(t), clusterAt(cluster.URL())(t)} {
		rdb, err := NewClient(address)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = rdb.Close() }()
		l, err := NewLimiter(rdb, limits, LimiterOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if n, _ := taken(t, l, "k"); n != 1 {
			t.Errorf("%d went, want 1", n)
		}
		if o := address.Single; o != nil && (o.MaxRetries != 0 || o.PoolSize != 0) {
			t.Errorf("the caller's options were changed: %+v", o)
		}
		if o := address.Cluster; o != nil && (o.DisableRoutingPolicies || o.PoolSize != 0) {
			t.Errorf("the caller's options were changed: %+v", o)
		}
	}
	for _, wrong := range []Address{{}, {Single: &redis.Options{}, Cluster: &redis.ClusterOptions{}}} {
		if rdb, err := NewClient(wrong); err == nil || rdb != nil {
			t.Errorf("%+v: %v", wrong, err)
		}
	}
}

func TestURLCannotLoosenWhatKeepsCallsShort(t *testing.T) {
	t.Parallel()
	const loose = "max_retries=5&dial_timeout=1h&read_timeout=1h&protocol=3&pool_size=3&pool_timeout=1h"
	single := singleAt("redis://127.0.0.1:1?" + loose)(t)
	sentinel := sentinelAt("redis://127.0.0.1:1?master_name=m&replica_only=true&route_by_latency=true&route_randomly=true&" + loose)(t)
	cluster := clusterAt("redis://127.0.0.1:1?max_redirects=-1&read_only=true&route_by_latency=true&route_randomly=true&" + loose)(t)
	for name, address := range map[string]Address{"single": single, "sentinel": sentinel} {
		rdb := address.client().(*redis.Client)
		defer func() { _ = rdb.Close() }()
		if o := rdb.Options(); o.MaxRetries > 0 || !o.ContextTimeoutEnabled || o.ReadTimeout != callTimeout || o.Protocol != 2 || o.PoolSize != 3 {
			t.Errorf("%s: %+v", name, o)
		}
	}
	rdb := cluster.client().(*redis.ClusterClient)
	defer func() { _ = rdb.Close() }()
	if o := rdb.Options(); o.MaxRetries > 0 || !o.ContextTimeoutEnabled || o.ReadTimeout != callTimeout || o.Protocol != 2 || o.PoolSize != 3 ||
		o.ReadOnly || o.RouteByLatency || o.RouteRandomly || o.MaxRedirects < 1 {
		t.Errorf("cluster: %+v", o)
	}
}

// lines is a log that can be read while it is written.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func (l *lines) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

func TestServerOfAnotherKindIsToldWithTheCure(t *testing.T) {
	t.Parallel()
	single, sentinel, cluster := testenv.Redis(t), testenv.RedisSentinel(t), testenv.RedisCluster(t)
	host := func(url string) string { before, _, _ := strings.Cut(url, "?"); return before }
	for name, test := range map[string]struct {
		address Address
		want    []string
	}{
		"node of a Cluster, as single": {singleAt(cluster.Nodes()[0].URL())(t), []string{"SLUICE_REDIS_MODE=cluster"}},
		"Sentinel, as single":          {singleAt(host(sentinel.URL()))(t), []string{"SLUICE_REDIS_MODE=sentinel", "master_name"}},
		"plain Redis, as Cluster":      {clusterAt(single.URL())(t), []string{"SLUICE_REDIS_MODE=single"}},
		"Sentinel, as Cluster":         {clusterAt(host(sentinel.URL()))(t), []string{"SLUICE_REDIS_MODE=sentinel"}},
		"plain Redis, as Sentinel":     {sentinelAt(single.URL() + "?master_name=mymaster")(t), []string{"SLUICE_REDIS_MODE=single"}},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		rdb, err := Connect(ctx, test.address, "redis://h", slog.New(slog.DiscardHandler))
		cancel()
		if err == nil {
			_ = rdb.Close()
			t.Errorf("%s: connected", name)
			continue
		}
		for _, want := range append(test.want, "SLUICE_REDIS_URL", "redis://h") {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %q doesn't say %q", name, err, want)
			}
		}
	}
}

// Valkey isn't at hand everywhere; this is what one of version 8 says.
func TestSentinelIsToldByItsInfo(t *testing.T) {
	t.Parallel()
	for info, want := range map[string]bool{
		"# Server\r\nredis_version:7.0.15\r\nredis_mode:sentinel\r\nos:Linux\r\n":                         true,
		"# Server\r\nredis_version:7.0.15\r\nredis_mode:standalone\r\nos:Linux\r\n":                       false,
		"# Server\r\nredis_version:7.2.4\r\nserver_name:valkey\r\nserver_mode:sentinel\r\nos:Linux\r\n":   true,
		"# Server\r\nredis_version:7.2.4\r\nserver_name:valkey\r\nserver_mode:standalone\r\nos:Linux\r\n": false,
		"": false, // not permitted to ask
	} {
		if got := sentinel(info); got != want {
			t.Errorf("%q: %t", info, got)
		}
	}
}

func TestWhatMayMendIsToldAndTriedAgain(t *testing.T) {
	t.Parallel()
	locked, sentinel := testenv.Redis(t, "--requirepass", "hunter2"), testenv.RedisSentinel(t)
	for name, test := range map[string]struct {
		address Address
		want    string
	}{
		"wrong password": {singleAt(strings.Replace(locked.URL(), "//", "//:wrong@", 1))(t), "SLUICE_REDIS_PASSWORD"},
		"no password":    {singleAt(locked.URL())(t), "SLUICE_REDIS_PASSWORD"},
		"unknown master": {sentinelAt(strings.Replace(sentinel.URL(), "mymaster", "other", 1))(t), `no master \"other\"; check master_name`},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		var said lines
		ended := make(chan error, 1)
		go func() {
			rdb, err := Connect(ctx, test.address, "redis://h", said.logger())
			if err == nil {
				_ = rdb.Close()
			}
			ended <- err
		}()
		until(t, func() error {
			if !strings.Contains(said.String(), test.want) {
				return errors.New(name + ": the log says only " + said.String())
			}
			return nil
		})
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", name, err)
		}
		if strings.Contains(said.String(), "wrong@") {
			t.Errorf("%s: a password in %s", name, said.String())
		}
	}
}

// Behind some load balancers a Cluster names no addresses ("unknown-endpoint"). The client knows only that something is nil.
func TestClusterWithoutAddressesIsToldWithTheSettingUntilItHasThem(t *testing.T) {
	t.Parallel()
	cluster := testenv.RedisCluster(t)
	endpoints := func(kind string) {
		for _, node := range cluster.Nodes() {
			if err := node.Client().ConfigSet(t.Context(), "cluster-preferred-endpoint-type", kind).Err(); err != nil {
				t.Fatal(err)
			}
		}
	}
	endpoints("unknown-endpoint")
	if _, err := Reach(t.Context(), clusterAt(cluster.URL())(t), "redis://h"); err == nil || !strings.Contains(err.Error(), "cluster-preferred-endpoint-type") {
		t.Errorf("asked once: %v", err)
	}
	var said lines
	ended := make(chan error, 1)
	go func() {
		rdb, err := Connect(t.Context(), clusterAt(cluster.URL())(t), "redis://h", said.logger())
		if err == nil {
			err = rdb.Set(t.Context(), "k", "v", 0).Err()
			_ = rdb.Close()
		}
		ended <- err
	}()
	until(t, func() error {
		if !strings.Contains(said.String(), "set cluster-preferred-endpoint-type to ip or hostname") {
			return errors.New("the log says only " + said.String())
		}
		return nil
	})
	endpoints("ip")
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestEvictionIsToldOfEachMaster(t *testing.T) {
	t.Parallel()
	cluster := testenv.RedisCluster(t)
	if err := cluster.Nodes()[2].Client().ConfigSet(t.Context(), "maxmemory-policy", "allkeys-lru").Err(); err != nil {
		t.Fatal(err)
	}
	var said lines
	rdb, err := Connect(t.Context(), clusterAt(cluster.URL())(t), "redis://h", said.logger())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = rdb.Close() }()
	port := strings.TrimSuffix(strings.TrimPrefix(cluster.Nodes()[2].URL(), "redis://127.0.0.1"), "/0")
	if text := said.String(); strings.Count(text, "evict keys") != 1 || !strings.Contains(text, "server=127.0.0.1"+port) {
		t.Errorf("said %q, want one warning, of 127.0.0.1%s", text, port)
	}
}

// A server that can't work for now is told apart from one that refuses, and nothing is written meanwhile.
func TestErrorsHaveTheirKind(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	s := openOn(t, place{singleAt(server.URL()), only(server)}.connect(t), &bodies{created: 7}, "one")
	for _, test := range []struct {
		begin, end []any
		want       string
		away       bool
	}{
		{[]any{"config", "set", "maxmemory", "1"}, []any{"config", "set", "maxmemory", "0"}, "memory", true},
		{[]any{"config", "set", "min-replicas-to-write", "1"}, []any{"config", "set", "min-replicas-to-write", "0"}, "unavailable", true},
		{[]any{"replicaof", "127.0.0.1", "1"}, []any{"replicaof", "no", "one"}, "unavailable", true},
		{[]any{"acl", "setuser", "default", "-hmget"}, []any{"acl", "setuser", "default", "+hmget"}, "refused", true},
	} {
		if err := server.Client().Do(t.Context(), test.begin...).Err(); err != nil {
			t.Fatal(err)
		}
		_, err := s.Reserve(t.Context(), keyOf(1), "", 1, 0)
		if err == nil || errorKind(err) != test.want || (s.Trouble() != nil) != test.away {
			t.Errorf("%v: %v is of kind %s, trouble %v", test.begin, err, errorKind(err), s.Trouble())
		}
		if err := server.Client().Do(t.Context(), test.end...).Err(); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Reserve(t.Context(), keyOf(2), "", 1, 0); err != nil { // so that it isn't the third failure in a row
			t.Errorf("after %v: %v", test.end, err)
		}
	}
	for range 10 {
		if d, err := s.Reserve(t.Context(), keyOf(1), "", 1, 0); err != nil || d.Verdict != limiter.Go {
			t.Errorf("afterwards: %+v, %v, want the whole burst", d, err)
		}
	}
	if err := (&net.OpError{Op: "dial", Err: errors.New("refused")}); errorKind(err) != "connection" || errorKind(context.DeadlineExceeded) != "timeout" {
		t.Error("errors of the way have another kind")
	}
}
