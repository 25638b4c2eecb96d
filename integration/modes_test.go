package integration

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"sluice/integration/testenv"
)

// driveTwoHundred publishes 10 events for each of 20 keys and waits until all have arrived, each key within its limit.
func driveTwoHundred(t *testing.T, w *world) {
	t.Helper()
	var publishing sync.WaitGroup
	for i := range 20 {
		publishing.Go(func() { w.publish(fmt.Sprintf("key%02d", i), 10, 0) })
	}
	publishing.Wait()
	w.receiver.WaitForDelivered(200, 30*time.Second)
	w.bounded(5, 3)
	for key, times := range byKey(w.receiver.Requests()) {
		if used := testenv.Utilisation(times, 5, 3); used < 0.8 {
			t.Errorf("%s got %.0f %% of its rate", key, 100*used)
		}
	}
}

func TestWorkerOnARedisCluster(t *testing.T) {
	t.Parallel()
	cluster := testenv.RedisCluster(t)
	w := newWorld(t)
	w.workers(1, "REDIS_MODE=cluster", "REDIS_URL="+cluster.URL(), "LIMIT=5/s burst 3")
	driveTwoHundred(t, w)
	for i, node := range cluster.Nodes() {
		ctx := t.Context()
		if len(node.Client().Keys(ctx, "ratelimit:*").Val()) == 0 {
			t.Errorf("node %d holds no bucket of 20 keys", i)
		}
		for _, pattern := range []string{"lane:*", "busy:*", "retry:*"} {
			left := node.Client().Keys(ctx, pattern).Val()
			for deadline := time.Now().Add(8 * time.Second); len(left) > 0 && time.Now().Before(deadline); {
				time.Sleep(20 * time.Millisecond) // the last events are delivered, but not settled yet
				left = node.Client().Keys(ctx, pattern).Val()
			}
			if len(left) > 0 {
				t.Errorf("left on node %d: %v", i, left)
			}
		}
	}
	w.atRest(0)
}

// The master dies while events wait: the worker goes on with the replica.
func TestWorkerOutlivesAFailoverBySentinel(t *testing.T) {
	t.Parallel()
	sentinel := testenv.RedisSentinel(t)
	w := newWorld(t)
	w.workers(1, "REDIS_MODE=sentinel", "REDIS_URL="+sentinel.URL(), "LIMIT=5/s burst 3")
	for i := range 20 {
		w.publish(fmt.Sprintf("key%02d", i), 10, 0)
	}
	w.receiver.WaitForDelivered(60, 20*time.Second)
	sentinel.Failover()
	w.receiver.WaitForDelivered(200, 40*time.Second)
	w.bounded(5, 3+3) // writes that the replica hadn't got are at most a burst more
	w.atRest(0)
}

func TestWorkerWithTLSAndPasswordFile(t *testing.T) {
	t.Parallel()
	files := testenv.Certificates(t)
	_, secured := testenv.RedisTLS(t, files, "--requirepass", "hunter2")
	password := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(password, []byte("hunter2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	w := newWorld(t)
	w.workers(1, "REDIS_URL="+secured, "REDIS_PASSWORD_FILE="+password, "LIMIT=5/s burst 3",
		"REDIS_TLS_CA="+files.CA, "REDIS_TLS_CERT="+files.Cert, "REDIS_TLS_KEY="+files.Key)
	driveTwoHundred(t, w)
}

func TestWorkerAtARedisOfAnotherKindSaysTheCure(t *testing.T) {
	t.Parallel()
	cluster, sentinel, nats := testenv.RedisCluster(t), testenv.RedisSentinel(t), testenv.NATS(t)
	atSentinel, err := url.Parse(sentinel.URL())
	if err != nil {
		t.Fatal(err)
	}
	for at, want := range map[string]string{
		cluster.Nodes()[0].URL():     "SLUICE_REDIS_MODE=cluster",
		"redis://" + atSentinel.Host: "SLUICE_REDIS_MODE=sentinel",
	} {
		code, _, stderr := command(t, []string{"NATS_URL=" + nats.URL(), "REDIS_URL=" + at, "SINK=log", "ADMIN_ADDR=127.0.0.1:0"}, "", "worker")
		if code != 1 || !strings.Contains(stderr, want) {
			t.Errorf("exit code %d, want 1 and %s:\n%s", code, want, stderr)
		}
	}
}
