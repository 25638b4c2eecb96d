package testenv

import (
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// startTimeout is how long a server may take to come up on a busy machine.
const startTimeout = 20 * time.Second

// NATSServer is a NATS server in this process, with JetStream on disk.
type NATSServer struct {
	t       testing.TB
	options server.Options
	server  *server.Server // nil while stopped
	conn    *nats.Conn     // of the test, made when first asked for
}

// NATS starts a NATS server that ends with the test.
func NATS(t testing.TB) *NATSServer {
	t.Helper()
	s := &NATSServer{t: t, options: server.Options{
		Host:               "127.0.0.1",
		JetStream:          true,
		StoreDir:           t.TempDir(),
		JetStreamMaxMemory: 1 << 30,
		JetStreamMaxStore:  64 << 30, // streams reserve their greatest size; this disk needn't have it
		NoSigs:             true,
		NoLog:              true,
	}}
	t.Cleanup(s.close)
	for range 5 { // another process may take the port first
		s.options.Port = freePort(t)
		if s.start(startTimeout) {
			return s
		}
	}
	t.Fatal("the NATS server doesn't come up")
	return nil
}

func (s *NATSServer) start(timeout time.Duration) bool {
	options := s.options // the server writes its defaults into what it is given
	instance, err := server.NewServer(&options)
	if err != nil {
		s.t.Fatalf("configuring the NATS server: %v", err)
	}
	go instance.Start()
	ready := eventually(timeout, func() bool {
		return instance.ReadyForConnections(100*time.Millisecond) && instance.JetStreamEnabled()
	})
	if !ready {
		instance.Shutdown()
		instance.WaitForShutdown()
		return false
	}
	s.server = instance
	return true
}

// URL is where clients connect to; it stays the same over a restart.
func (s *NATSServer) URL() string {
	return "nats://" + loopback(s.options.Port)
}

// Conn is the test's own connection. It outlives restarts of the server and is closed with the test.
func (s *NATSServer) Conn() *nats.Conn {
	s.t.Helper()
	if s.conn == nil {
		s.conn = s.dial()
	}
	return s.conn
}

// Dial is another connection, closed when the test ends.
func (s *NATSServer) Dial() *nats.Conn {
	s.t.Helper()
	conn := s.dial()
	s.t.Cleanup(conn.Close)
	return conn
}

func (s *NATSServer) dial() *nats.Conn {
	s.t.Helper()
	conn, err := nats.Connect(s.URL(), nats.Name("test"), nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond))
	if err != nil {
		s.t.Fatalf("connecting to NATS: %v", err)
	}
	return conn
}

// JetStream is JetStream by way of [NATSServer.Conn].
func (s *NATSServer) JetStream() jetstream.JetStream {
	s.t.Helper()
	js, err := jetstream.New(s.Conn())
	if err != nil {
		s.t.Fatalf("opening JetStream: %v", err)
	}
	return js
}

// Stop shuts the server down; what it stored stays.
func (s *NATSServer) Stop() {
	if s.server == nil {
		return
	}
	s.server.Shutdown()
	s.server.WaitForShutdown()
	s.server = nil
}

// Start starts a stopped server again with the same port and store.
func (s *NATSServer) Start() {
	s.t.Helper()
	if s.server != nil {
		s.t.Fatal("the NATS server runs already")
	}
	if !s.start(startTimeout) {
		s.t.Fatalf("the NATS server doesn't come back at %s", s.URL())
	}
}

// Restart stops the server and starts it again with the same port and store.
func (s *NATSServer) Restart() {
	s.t.Helper()
	s.Stop()
	s.Start()
}

func (s *NATSServer) close() {
	if s.conn != nil {
		s.conn.Close()
	}
	s.Stop()
}
