package testenv

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// RedisServer is a redis-server process of its own.
type RedisServer struct {
	t       testing.TB
	path    string // of the program
	dir     string
	port    int
	args    []string
	process *process
	client  *redis.Client
	saved   bool // the next start finds what Save kept
}

// Redis starts a redis-server that ends with the test, or the program that SLUICE_REDIS_PROGRAM names and that takes
// its options, as valkey-server does. It persists nothing and never evicts, unless extraArgs (options that come last and so
// win) say otherwise.
func Redis(t testing.TB, extraArgs ...string) *RedisServer {
	t.Helper()
	path, err := exec.LookPath(cmp.Or(os.Getenv("SLUICE_REDIS_PROGRAM"), "redis-server"))
	if err != nil {
		missing(t, "redis-server", "apt-get install redis-server (or brew install redis)")
	}
	return RedisProgram(t, path, extraArgs...)
}

// RedisProgram is Redis with another program.
func RedisProgram(t testing.TB, path string, extraArgs ...string) *RedisServer {
	t.Helper()
	dir, err := os.MkdirTemp("", "redis") // a socket's path has at most 107 bytes, too few for t.TempDir
	if err != nil {
		t.Fatalf("making a directory for Redis: %v", err)
	}
	s := &RedisServer{t: t, path: path, dir: dir, args: extraArgs}
	t.Cleanup(s.close)
	for range 5 { // another process may take the port first
		s.port = freePort(t)
		if err = s.start(); err == nil {
			break
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	s.client = redis.NewClient(&redis.Options{Network: "unix", Addr: s.socket()})
	return s
}

func (s *RedisServer) start() error {
	args := append([]string{
		"--bind", "127.0.0.1", "--port", strconv.Itoa(s.port),
		"--unixsocket", s.socket(), "--unixsocketperm", "700",
		"--dir", s.dir, "--daemonize", "no",
		"--save", "", "--appendonly", "no", "--maxmemory-policy", "noeviction",
	}, s.args...)
	p, err := startProcess(exec.Command(s.path, args...))
	if err != nil {
		return err
	}
	up := eventually(startTimeout, func() bool { return !p.running() || s.answers() })
	if !up || !p.running() {
		p.kill()
		return fmt.Errorf("redis-server doesn't come up:\n%s", p.output)
	}
	s.process = p
	return nil
}

// answers says whether the server takes commands: any answer counts (a server with a password refuses) but that it is
// still loading.
func (s *RedisServer) answers() bool {
	conn, err := net.DialTimeout("unix", s.socket(), time.Second)
	if err != nil {
		return false
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(time.Second))
	if _, err := conn.Write([]byte("PING\r\n")); err != nil {
		return false
	}
	reply, err := bufio.NewReader(conn).ReadString('\n')
	return err == nil && !strings.HasPrefix(reply, "-LOADING")
}

func (s *RedisServer) socket() string {
	return filepath.Join(s.dir, "s")
}

// URL is the server's address by TCP; it stays the same over Kill and Start.
func (s *RedisServer) URL() string {
	return "redis://" + loopback(s.port) + "/0"
}

// SocketURL is the server's address by its unix socket.
func (s *RedisServer) SocketURL() string {
	return "unix://" + s.socket() + "?db=0"
}

// Client is the test's own client, by the unix socket. It is closed with the test.
func (s *RedisServer) Client() *redis.Client {
	return s.client
}

// Kill ends the server at once (SIGKILL) and waits until it is gone; its data go with it.
func (s *RedisServer) Kill() {
	s.process.kill()
}

// Save keeps the data as they are now: the next Start, and only that, brings them back, however old they are by then.
func (s *RedisServer) Save() {
	s.t.Helper()
	if err := s.client.Save(context.Background()).Err(); err != nil {
		s.t.Fatalf("saving what Redis holds: %v", err)
	}
	s.saved = true
}

// PeakMemory is the most memory the server has had in use, as it says itself for people.
func (s *RedisServer) PeakMemory() string {
	s.t.Helper()
	info, err := s.client.Info(context.Background(), "memory").Result()
	if err != nil {
		s.t.Fatalf("asking Redis for its memory: %v", err)
	}
	_, after, _ := strings.Cut(info, "used_memory_peak_human:")
	peak, _, _ := strings.Cut(after, "\r\n")
	return peak
}

// CPU is the processor time that the server has used.
func (s *RedisServer) CPU() (used time.Duration) {
	s.t.Helper()
	info, err := s.client.Info(context.Background(), "cpu").Result()
	if err != nil {
		s.t.Fatalf("asking Redis for its processor time: %v", err)
	}
	for _, field := range []string{"used_cpu_sys:", "used_cpu_user:"} {
		_, after, _ := strings.Cut(info, field)
		text, _, _ := strings.Cut(after, "\r\n")
		seconds, err := strconv.ParseFloat(text, 64)
		if err != nil {
			s.t.Fatalf("reading Redis' processor time: %v", err)
		}
		used += time.Duration(seconds * float64(time.Second))
	}
	return used
}

// Start starts a killed server again at the same addresses, empty unless it persists or Save was called.
func (s *RedisServer) Start() {
	s.t.Helper()
	if s.process.running() {
		s.t.Fatal("redis-server runs already")
	}
	if err := s.start(); err != nil {
		s.t.Fatal(err)
	}
	if s.saved {
		s.saved = false
		if err := os.Remove(filepath.Join(s.dir, "dump.rdb")); err != nil {
			s.t.Fatalf("removing what Redis kept: %v", err)
		}
	}
}

// Pause stops the server without closing its connections (SIGSTOP): to its clients it hangs.
func (s *RedisServer) Pause() {
	s.process.signal(syscall.SIGSTOP)
}

// Resume lets a paused server go on.
func (s *RedisServer) Resume() {
	s.process.signal(syscall.SIGCONT)
}

func (s *RedisServer) close() {
	if s.client != nil {
		_ = s.client.Close()
	}
	if s.process != nil {
		s.process.kill()
	}
	_ = os.RemoveAll(s.dir)
}
