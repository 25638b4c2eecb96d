package stream

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

func TestConnectWaitsForTheServerAndSaysWhy(t *testing.T) {
	t.Parallel()
	opts := serverOptions(t)
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	opts.Port = free.Addr().(*net.TCPAddr).Port
	cfg := Config{URLs: "nats://me:secret@" + free.Addr().String(), Name: "sluice"}
	_ = free.Close()

	var out logged
	connected := make(chan error, 1)
	go func() {
		nc, err := Connect(t.Context(), cfg, out.log())
		if nc != nil {
			nc.Close()
		}
		connected <- err
	}()
	eventually(t, "a line about the refused connection", func() bool { return strings.Contains(out.String(), "connection refused") })
	time.Sleep(600 * time.Millisecond) // at least another attempt
	want := "cannot reach NATS at nats://" + free.Addr().String() + " (SLUICE_NATS_URL): connection refused; trying again"
	if n := strings.Count(out.String(), want); n != 1 {
		t.Errorf("%d lines %q, want one:\n%s", n, want, &out)
	}
	startServer(t, opts)
	if err := <-connected; err != nil {
		t.Errorf("Connect: %v", err)
	}
	if strings.Contains(out.String(), "secret") {
		t.Errorf("the password is logged:\n%s", &out)
	}
}

func TestConnectEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err := Connect(ctx, Config{URLs: "nats://127.0.0.1:1", Name: "sluice"}, quiet)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want one that is context.DeadlineExceeded", err)
	}
	wantText(t, err, "cannot reach NATS at nats://127.0.0.1:1 (SLUICE_NATS_URL): connection refused")
}

func TestRefusedLoginNamesItsVariablesAndGoesOnTrying(t *testing.T) {
	t.Parallel()
	opts := serverOptions(t)
	opts.Username, opts.Password = "me", "right"
	ns := startServer(t, opts)
	ctx, cancel := context.WithTimeout(t.Context(), 700*time.Millisecond)
	defer cancel()
	var out logged
	cfg := Config{URLs: "nats://" + ns.Addr().String(), User: "me", Password: "wr0ng", Name: "sluice"}
	_, err := Connect(ctx, cfg, out.log())
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want the end of the context", err)
	}
	wantText(t, err, "refused the login (set by SLUICE_NATS_USER, SLUICE_NATS_PASSWORD)")
	if strings.Contains(out.String(), "wr0ng") || strings.Count(out.String(), "refused the login") != 1 {
		t.Errorf("want one line without the password:\n%s", &out)
	}
	ok, err := Connect(t.Context(), Config{URLs: "nats://" + ns.Addr().String(), User: "me", Password: "right", Name: "sluice"}, quiet)
	if err != nil {
		t.Fatal(err)
	}
	ok.Close()
}

func TestLostConnectionIsLoggedOnceAndMends(t *testing.T) {
	t.Parallel()
	opts := serverOptions(t)
	ns := startServer(t, opts)
	var out logged
	nc, err := Connect(t.Context(), testConfig(ns), out.log())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	ns.Shutdown()
	ns.WaitForShutdown()
	eventually(t, "lost", func() bool { return !nc.IsConnected() && strings.Contains(out.String(), "lost the connection") })
	if err := nc.Publish("x", nil); err == nil || !errors.Is(explain(nc, "publishing", err), errNotConnected) {
		t.Errorf("publishing without a connection: %v, want an error at once", err)
	}
	eventually(t, "the reason", func() bool { return strings.Contains(out.String(), "cannot reach NATS") })
	startServer(t, opts)
	eventually(t, "connected", func() bool { return strings.Contains(out.String(), "connected to NATS again") })
	if n := strings.Count(out.String(), "lost the connection"); n != 1 {
		t.Errorf("%d lines about one loss:\n%s", n, &out)
	}
}

func TestDeniedPermissionExplainsATimeout(t *testing.T) {
	t.Parallel()
	opts := serverOptions(t)
	opts.Users = []*server.User{{Username: "worker", Password: "x", Permissions: &server.Permissions{
		Publish: &server.SubjectPermission{Deny: []string{"$JS.API.STREAM.CREATE.>"}},
	}}}
	cfg := testConfig(startServer(t, opts))
	cfg.User, cfg.Password = "worker", "x"
	js := connect(t, cfg)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err := Setup(ctx, js, cfg)
	wantText(t, err, "no permission: creating stream EVENTS", "$JS.API.STREAM.CREATE.EVENTS")
	if !isFault(err) {
		t.Errorf("%T isn't a fault", err)
	}
	if err := explain(js.Conn(), "x", errors.New("something else")); isFault(err) {
		t.Errorf("another error is explained by the permission: %v", err)
	}
}
