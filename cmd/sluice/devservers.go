package main

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/nats-io/nats-server/v2/server"
)

const (
	devNATSPort  = 4222 // where clients of NATS look without being told
	devRedisPort = 6379
	devPortTries = 50 // ports tried from those on

	natsReady = 5 * time.Second
	// natsStore is far above any disk: the streams' own limits count. By default the server refuses streams that might
	// outgrow the disk, which those of a moment don't.
	natsStore = 1 << 50
)

// devServers are a NATS server, a Redis and a receiver within this process.
type devServers struct {
	dir       string // removed at the end
	nats      *server.Server
	natsPort  int
	redis     *miniredis.Miniredis
	redisPort int
	receiver  *http.Server // nil: events are pushed elsewhere
	hookURL   string       // of the receiver
	expiry    *time.Ticker
	ended     chan struct{}
}

// startServers starts all, the receiver only if asked. close is to be called unless there is an error.
func startServers(receiver bool) (*devServers, error) {
	s := &devServers{ended: make(chan struct{})}
	if err := s.start(receiver); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

func (s *devServers) start(receiver bool) (err error) {
	if s.dir, err = os.MkdirTemp("", "sluice-dev-"); err != nil {
		return fmt.Errorf("making a directory for NATS: %w", err)
	}
	if err := s.startNATS(); err != nil {
		return err
	}
	if err := s.startRedis(); err != nil {
		return err
	}
	if receiver {
		return s.startReceiver()
	}
	return nil
}

// close ends the servers and removes what they stored.
func (s *devServers) close() error {
	close(s.ended)
	if s.receiver != nil {
		_ = s.receiver.Close()
	}
	if s.redis != nil {
		s.expiry.Stop()
		s.redis.Close()
	}
	if s.nats != nil {
		s.nats.Shutdown()
		s.nats.WaitForShutdown()
	}
	if err := os.RemoveAll(s.dir); err != nil {
		return fmt.Errorf("removing temporary data: %w", err)
	}
	return nil
}

// firstFree calls listen with one port after the other until one isn't taken.
func firstFree(port int, listen func(addr string) error) (int, error) {
	for next := port; ; next++ {
		err := listen(net.JoinHostPort("127.0.0.1", strconv.Itoa(next)))
		if err == nil {
			return next, nil
		}
		if !errors.Is(err, syscall.EADDRINUSE) || next == port+devPortTries {
			return 0, err
		}
	}
}

func (s *devServers) startNATS() error {
	port, err := firstFree(devNATSPort, s.tryNATS)
	if err != nil {
		return fmt.Errorf("starting NATS: %w", err)
	}
	s.natsPort = port
	return nil
}

// tryNATS starts NATS on addr. The server takes no listener, so that the port is tried before; that another process takes
// it between is told by the server.
func (s *devServers) tryNATS(addr string) error {
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	port := ln.Addr().(*net.TCPAddr).Port
	if err := ln.Close(); err != nil {
		return err
	}
	nats, err := server.NewServer(&server.Options{
		ServerName: "sluice-dev", Host: "127.0.0.1", Port: port, NoLog: true, NoSigs: true,
		JetStream: true, StoreDir: filepath.Join(s.dir, "nats"), JetStreamMaxStore: natsStore,
	})
	if err != nil {
		return err
	}
	fatal := &fatalLog{seen: make(chan string, 1)}
	nats.SetLogger(fatal, false, false)
	ready := make(chan bool, 1)
	nats.Start()
	go func() { ready <- nats.ReadyForConnections(natsReady) }()
	select {
	case ok := <-ready:
		if ok {
			s.nats = nats
			return nil
		}
		err = fmt.Errorf("it isn't ready after %s", natsReady)
	case text := <-fatal.seen:
		if err = errors.New(text); strings.Contains(text, syscall.EADDRINUSE.Error()) {
			err = syscall.EADDRINUSE
		}
	}
	nats.Shutdown()
	nats.WaitForShutdown()
	return err
}

// fatalLog is a log of NATS that keeps why the server can't start.
type fatalLog struct{ seen chan string }

// Fatalf is called when the server gives up.
func (l *fatalLog) Fatalf(format string, v ...any) {
	select {
	case l.seen <- fmt.Sprintf(format, v...):
	default: // the first reason is the one
	}
}

// The rest of a server's log.
func (*fatalLog) Noticef(string, ...any) {}
func (*fatalLog) Warnf(string, ...any)   {}
func (*fatalLog) Errorf(string, ...any)  {}
func (*fatalLog) Debugf(string, ...any)  {}
func (*fatalLog) Tracef(string, ...any)  {}

// startRedis starts a Redis in memory. It lets keys expire only when it is told that time has passed, and each call makes
// some garbage: unless the person has decided on it, collecting that less often makes it a quarter faster.
func (s *devServers) startRedis() error {
	collectLess(400)
	redis := miniredis.NewMiniRedis()
	port, err := firstFree(devRedisPort, redis.StartAddr)
	if err != nil {
		return fmt.Errorf("finding a port for Redis: %w", err)
	}
	s.redis, s.redisPort = redis, port
	s.expiry = time.NewTicker(time.Second)
	go func() {
		last := time.Now()
		for {
			select {
			case now := <-s.expiry.C:
				redis.FastForward(now.Sub(last))
				last = now
			case <-s.ended:
				return
			}
		}
	}()
	return nil
}

// startReceiver starts what events are pushed to: it takes all of them, each after a few milliseconds.
func (s *devServers) startReceiver() error {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("starting the receiver: %w", err)
	}
	s.hookURL = "http://" + ln.Addr().String() + "/"
	s.receiver = &http.Server{ReadHeaderTimeout: 5 * time.Second, Handler: http.HandlerFunc(receive)}
	go func() { _ = s.receiver.Serve(ln) }() // ends with close
	return nil
}

func receive(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body) // a sender that goes away needs no answer
	time.Sleep(2*time.Millisecond + rand.N(6*time.Millisecond))
	w.WriteHeader(http.StatusNoContent)
}

func (s *devServers) natsURL() string  { return fmt.Sprintf("nats://127.0.0.1:%d", s.natsPort) }
func (s *devServers) redisURL() string { return fmt.Sprintf("redis://127.0.0.1:%d/0", s.redisPort) }
