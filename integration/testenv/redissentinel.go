package testenv

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// masterName is what the Sentinel calls its master.
const masterName = "mymaster"

// SentinelServers are a Redis with a replica, watched by a Sentinel that makes the replica the master within seconds.
type SentinelServers struct {
	t        testing.TB
	servers  []*RedisServer
	port     int
	process  *process
	sentinel *redis.SentinelClient
}

// RedisSentinel starts a Redis, a replica and a Sentinel that end with the test. What extraArgs say holds for both Redis.
func RedisSentinel(t testing.TB, extraArgs ...string) *SentinelServers {
	t.Helper()
	s := &SentinelServers{t: t}
	args := append([]string{"--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1"}, extraArgs...)
	master := Redis(t, args...)
	replica := Redis(t, append(args, "--replicaof", "127.0.0.1", strconv.Itoa(master.port))...)
	s.servers = []*RedisServer{master, replica}
	s.waitSynced()

	config := filepath.Join(t.TempDir(), "sentinel.conf") // a file, since Sentinel writes into it what it learns
	s.port = freePort(t)
	text := fmt.Sprintf("bind 127.0.0.1\nport %d\nsentinel monitor %s 127.0.0.1 %d 1\n"+
		"sentinel down-after-milliseconds %[2]s 500\nsentinel failover-timeout %[2]s 3000\n", s.port, masterName, master.port)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	process, err := startProcess(exec.Command(master.path, config, "--sentinel"))
	if err != nil {
		t.Fatal(err)
	}
	s.process = process
	s.sentinel = redis.NewSentinelClient(&redis.Options{Addr: loopback(s.port)})
	t.Cleanup(func() {
		_ = s.sentinel.Close()
		s.process.kill()
	})
	knows := eventually(startTimeout, func() bool {
		return s.sentinel.Master(t.Context(), masterName).Val()["num-slaves"] == "1" && s.sentinel.CkQuorum(t.Context(), masterName).Err() == nil
	})
	if !knows {
		t.Fatalf("the Sentinel doesn't come up:\n%s", s.process.output)
	}
	return s
}

// waitSynced waits until the replica of the first server gets what is written there.
func (s *SentinelServers) waitSynced() {
	s.t.Helper()
	// A master sends nothing after its snapshot until the replica has acknowledged that, which it does once a second.
	acknowledged := regexp.MustCompile(`slave0:.*,state=online,offset=[1-9]`)
	synced := eventually(startTimeout, func() bool {
		return acknowledged.MatchString(s.servers[0].client.Info(s.t.Context(), "replication").Val())
	})
	if !synced {
		s.t.Fatal("the replica isn't in step with its master")
	}
}

// URL is the Sentinel's address with the name of the master.
func (s *SentinelServers) URL() string {
	return "redis://" + loopback(s.port) + "/0?master_name=" + masterName
}

// Master is the server that the Sentinel names.
func (s *SentinelServers) Master() *RedisServer {
	s.t.Helper()
	addr, err := s.sentinel.GetMasterAddrByName(s.t.Context(), masterName).Result()
	if err != nil {
		s.t.Fatalf("asking the Sentinel: %v", err)
	}
	for _, server := range s.servers {
		if addr[1] == strconv.Itoa(server.port) {
			return server
		}
	}
	s.t.Fatalf("the Sentinel names %v", addr)
	return nil
}

// Failover kills the master and waits until the other one has taken its place.
func (s *SentinelServers) Failover() {
	s.t.Helper()
	old := s.Master()
	for !s.knowsReplica() { // it looks once in ten seconds, or when it meets one
		time.Sleep(20 * time.Millisecond)
	}
	old.Kill()
	promoted := eventually(startTimeout, func() bool {
		master := s.Master()
		return master != old && strings.Contains(master.client.Info(s.t.Context(), "replication").Val(), "role:master")
	})
	if !promoted {
		s.t.Fatalf("no failover:\n%s", s.process.output)
	}
}

func (s *SentinelServers) knowsReplica() bool {
	replicas, err := s.sentinel.Replicas(s.t.Context(), masterName).Result()
	return err == nil && len(replicas) == 1 && replicas[0]["master-link-status"] == "ok"
}
