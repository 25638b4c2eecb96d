package testenv

import (
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

func TestClusterSpreadsSlotsAndMovesOne(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	cluster := RedisCluster(t)
	options, err := redis.ParseClusterURL(cluster.URL())
	if err != nil {
		t.Fatal(err)
	}
	client := redis.NewClusterClient(options)
	defer func() { _ = client.Close() }()
	for _, key := range []string{"{a}1", "{a}2", "b", "c", "d", "e"} { // slots 15495, 3300, 7365, 11298, 15363
		if err := client.Set(ctx, key, key, 0).Err(); err != nil {
			t.Fatal(err)
		}
	}
	for i, node := range cluster.Nodes() {
		if node.Client().DBSize(ctx).Val() == 0 {
			t.Errorf("node %d holds no key", i)
		}
	}
	cluster.Move(15495, 0, func() {
		for _, key := range []string{"{a}1", "{a}2"} {
			if got, err := client.Get(ctx, key).Result(); got != key {
				t.Errorf("%s while it moves: %q, %v", key, got, err)
			}
		}
	})
	if n := cluster.Nodes()[0].Client().ClusterCountKeysInSlot(ctx, 15495).Val(); n != 2 {
		t.Errorf("%d keys of the slot moved, want 2", n)
	}
	if got, err := client.Get(ctx, "{a}1").Result(); got != "{a}1" {
		t.Errorf("afterwards: %q, %v", got, err)
	}
}

func TestSentinelPromotesTheReplicaOfADeadMaster(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s := RedisSentinel(t)
	master := s.Master()
	if err := master.Client().Set(ctx, "k", "v", 0).Err(); err != nil {
		t.Fatal(err)
	}
	if n, err := master.Client().Wait(ctx, 1, startTimeout).Result(); n != 1 {
		t.Fatal(n, err)
	}
	s.Failover()
	if got := s.Master().Client().Get(ctx, "k").Val(); s.Master() == master || got != "v" {
		t.Errorf("the new master holds %q", got)
	}
}

func TestRedisWithTLSRefusesStrangers(t *testing.T) {
	t.Parallel()
	files, others := Certificates(t), Certificates(t)
	_, url := RedisTLS(t, files)
	for _, test := range []struct {
		files TLSFiles
		want  string
	}{{files, ""}, {others, "certificate"}} {
		options, err := redis.ParseURL(url)
		if err != nil {
			t.Fatal(err)
		}
		options.TLSConfig = test.files.Config(t)
		client := redis.NewClient(options)
		err = client.Ping(t.Context()).Err()
		_ = client.Close()
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%v, want %q", err, test.want)
		}
	}
}
