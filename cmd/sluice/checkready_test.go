package main

import (
	"bytes"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

func TestCheckReadyTellsWhetherTheWorkerIs(t *testing.T) {
	ready := true
	server := httptest.NewServer(newAdmin(prometheus.NewRegistry(), func() (bool, map[string]string) {
		return ready, map[string]string{"redis": "connected"}
	}, http.NotFoundHandler()))
	defer server.Close()
	_, port, err := net.SplitHostPort(server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	ask := func(addr string) (int, string) {
		setEnvironment(t, "SLUICE_ADMIN_ADDR="+addr, "SLUICE_WEBHOOK_URL=") // nothing else of a worker's is needed
		var out, errs bytes.Buffer
		code := run(t.Context(), []string{"check", "--ready"}, nil, &out, &errs)
		return code, out.String() + errs.String()
	}
	for _, addr := range []string{"127.0.0.1:" + port, ":" + port, "0.0.0.0:" + port, "localhost:" + port} {
		if code, text := ask(addr); code != exitOK || !strings.Contains(text, `"redis":"connected"`) {
			t.Errorf("%s: exit code %d, %s", addr, code, text)
		}
	}
	ready = false
	if code, text := ask("127.0.0.1:" + port); code != exitFailed || !strings.Contains(text, "isn't ready") {
		t.Errorf("not ready: exit code %d, %s", code, text)
	}
	server.Close()
	if code, text := ask("127.0.0.1:" + port); code != exitFailed || !strings.Contains(text, "no worker answers at 127.0.0.1:"+port) {
		t.Errorf("no worker: exit code %d, %s", code, text)
	}
	if code, text := ask("nonsense"); code != exitUsage {
		t.Errorf("no address: exit code %d, %s", code, text)
	}
}

func TestAddressesOfAllInterfacesAreReachedByLoopback(t *testing.T) {
	t.Parallel()
	for addr, want := range map[string]string{
		":1": "127.0.0.1:1", "0.0.0.0:1": "127.0.0.1:1", "[::]:1": "[::1]:1", "10.0.0.1:1": "10.0.0.1:1", "host:1": "host:1",
	} {
		if got := reachable(addr); got != want {
			t.Errorf("%s: %s, want %s", addr, got, want)
		}
	}
}
