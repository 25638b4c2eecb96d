package stream

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"sluice/pipeline"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// The embedded server keeps one timer goroutine for its cached clock.
		goleak.IgnoreAnyFunction("github.com/nats-io/nats-server/v2/server/ats.init.0.func1"),
	)
}

// serverOptions are those of a server on loopback with JetStream in a folder of the test.
func serverOptions(t *testing.T) *server.Options {
	t.Helper()
	return &server.Options{
		ServerName: "test", Host: "127.0.0.1", Port: server.RANDOM_PORT,
		JetStream: true, StoreDir: t.TempDir(), JetStreamMaxStore: 1 << 30, JetStreamMaxMemory: 1 << 26,
		NoSigs: true, NoLog: true,
	}
}

// startServer runs a server until the test ends. Started again with the same options it goes on with what it stored.
func startServer(t *testing.T, opts *server.Options) *server.Server {
	t.Helper()
	ns, err := server.NewServer(opts)
	if err != nil {
		t.Fatalf("starting nats-server: %v", err)
	}
	ns.Start()
	if !ns.ReadyForConnections(10 * time.Second) {
		t.Fatal("nats-server isn't ready after 10s")
	}
	opts.Port = ns.Addr().(*net.TCPAddr).Port
	t.Cleanup(func() {
		ns.Shutdown()
		ns.WaitForShutdown()
	})
	return ns
}

func testConfig(ns *server.Server) Config {
	return Config{
		URLs: ns.ClientURL(), Name: "sluice", Stream: "EVENTS", Subjects: []string{"events.>"}, Setup: SetupAll,
		Replicas: 1, LanesMaxBytes: 64 << 20, DLQMaxBytes: 16 << 20,
	}
}

// connect is Connect for tests.
func connect(t *testing.T, cfg Config) jetstream.JetStream {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	nc, err := Connect(ctx, cfg, quiet)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := cfg.JetStream(nc)
	if err != nil {
		t.Fatal(err)
	}
	return js
}

var quiet = slog.New(slog.DiscardHandler)

// newServer is a server with everything set up, and a connection to it.
func newServer(t *testing.T) (jetstream.JetStream, Config) {
	t.Helper()
	cfg := testConfig(startServer(t, serverOptions(t)))
	js := connect(t, cfg)
	if _, err := Setup(t.Context(), js, cfg); err != nil {
		t.Fatal(err)
	}
	return js, cfg
}

// open opens a source that is closed at the end of the test.
func open(t *testing.T, js jetstream.JetStream, cfg Config, l limits) *Source {
	t.Helper()
	s, err := openSource(t.Context(), js, cfg, quiet, l)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeSource(t, s) })
	return s
}

func closeSource(t *testing.T, s *Source) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := s.Close(ctx); err != nil && s.js.Conn().IsConnected() {
		t.Errorf("Close: %v", err)
	}
}

// publish stores n events, numbered from 1, under events.<number>.
func publish(t *testing.T, js jetstream.JetStream, n int) {
	t.Helper()
	for i := range n {
		if _, err := js.PublishAsync(fmt.Sprintf("events.%d", i+1), fmt.Appendf(nil, "data %d", i+1), jetstream.WithStallWait(10*time.Second)); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case <-js.PublishAsyncComplete():
	case <-time.After(20 * time.Second):
		t.Fatal("publishing takes too long")
	}
}

// next is the next event, within 10 s.
func next(t *testing.T, s *Source) pipeline.Delivery {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	d, err := s.Next(ctx)
	if err != nil {
		t.Fatalf("Next: %v", err)
	}
	return d
}

// eventually waits until ok, at most 10 s.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("not within 10s: %s", what)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func consumerInfo(t *testing.T, js jetstream.JetStream, cfg Config) *jetstream.ConsumerInfo {
	t.Helper()
	c, err := js.Consumer(t.Context(), cfg.Stream, cfg.consumer())
	if err != nil {
		t.Fatal(err)
	}
	return c.CachedInfo()
}

// logged collects what is logged.
type logged struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func (l *logged) log() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// wantText checks that an error says all of the parts.
func wantText(t *testing.T, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want one with %q", parts)
	}
	for _, p := range parts {
		if !strings.Contains(err.Error(), p) {
			t.Errorf("got error %q, want it to say %q", err, p)
		}
	}
}

func rawConn(t *testing.T, url string, opts ...nats.Option) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(url, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}
