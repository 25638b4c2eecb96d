package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sluice/cmd/sluice/statuspage"
	"sluice/limiter"
)

func adminAnswer(t *testing.T, handler http.Handler, method, path string) (int, string) {
	t.Helper()
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, httptest.NewRequest(method, path, nil))
	return w.Code, w.Body.String()
}

func TestAdminServesMetricsAndProbes(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	counter := prometheus.NewCounter(prometheus.CounterOpts{Name: "sluice_test_total", Help: "test"})
	reg.MustRegister(counter)
	counter.Add(3)
	handler := newAdmin(reg, func() (bool, map[string]string) { return true, map[string]string{"redis": "up"} }, http.NotFoundHandler())
	cases := []struct {
		method, path string
		code         int
		body         string
	}{
		{"GET", "/metrics", 200, "\nsluice_test_total 3\n"},
		{"GET", "/healthz", 200, "ok\n"},
		{"GET", "/readyz", 200, `{"status":"ready","details":{"redis":"up"}}`},
		{"HEAD", "/healthz", 200, ""},
		{"GET", "/other", 404, ""},
		{"POST", "/healthz", 405, ""},
	}
	for _, c := range cases {
		code, body := adminAnswer(t, handler, c.method, c.path)
		if code != c.code || !strings.Contains(body, c.body) {
			t.Errorf("%s %s: got %d %q, want %d with %q", c.method, c.path, code, body, c.code, c.body)
		}
	}
}

func TestNotReadyIs503WithDetails(t *testing.T) {
	t.Parallel()
	details := map[string]string{"nats": "connecting"}
	handler := newAdmin(prometheus.NewRegistry(), func() (bool, map[string]string) { return false, details }, http.NotFoundHandler())
	code, body := adminAnswer(t, handler, "GET", "/readyz")
	var got struct {
		Status  string            `json:"status"`
		Details map[string]string `json:"details"`
	}
	if err := json.Unmarshal([]byte(body), &got); err != nil {
		t.Fatalf("body %q: %v", body, err)
	}
	if code != 503 || got.Status != "not ready" || got.Details["nats"] != "connecting" {
		t.Errorf("got %d %+v", code, got)
	}
	details = nil
	if _, body := adminAnswer(t, handler, "GET", "/readyz"); !strings.Contains(body, `"details":{}`) {
		t.Errorf("without details got %q", body)
	}
}

func TestTakenDefaultAddressMovesToTheNextFreePort(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	addr := taken.Addr().String()

	var logged bytes.Buffer
	ln, err := listenAdmin(addr, false, slog.New(slog.NewTextHandler(&logged, nil)))
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	first, next := taken.Addr().(*net.TCPAddr).Port, ln.Addr().(*net.TCPAddr).Port
	if next <= first || next >= first+adminPortTries {
		t.Errorf("port %d was taken, got %d", first, next)
	}
	if !strings.Contains(logged.String(), ln.Addr().String()) {
		t.Errorf("the log doesn't tell the address: %q", logged.String())
	}
}

func TestTakenExplicitAddressIsAnError(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	ln, err := listenAdmin(taken.Addr().String(), true, slog.New(slog.DiscardHandler))
	if err == nil {
		ln.Close()
		t.Fatal("no error")
	}
	if !strings.Contains(err.Error(), "SLUICE_ADMIN_ADDR") {
		t.Errorf("the error doesn't name the variable: %v", err)
	}
}

func TestAdminServerEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	handler := newAdmin(prometheus.NewRegistry(), func() (bool, map[string]string) { return true, nil }, http.NotFoundHandler())
	go func() { done <- serveAdmin(ctx, ln, handler) }()

	response, err := http.Get("http://" + ln.Addr().String() + "/healthz")
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(response.Body)
	response.Body.Close()
	if string(body) != "ok\n" {
		t.Errorf("got %q", body)
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("serving ended with %v", err)
	}
	if err := ln.Close(); !errors.Is(err, net.ErrClosed) { // its port may be another's by now
		t.Errorf("it still listens: %v", err)
	}
}

func TestOtherNamesDoNotLeadToALocalAddress(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		listen string
		hosts  map[string]int // what is asked for, with the answer
	}{
		{"127.0.0.1:0", map[string]int{
			"127.0.0.1:7780": 200, "127.0.0.1": 200, "[::1]:7780": 200, "10.1.2.3:80": 200, "localhost:7780": 200, "LOCALHOST": 200, "localhost.:80": 200,
			"rebound.example:7780": 421, "rebound.example": 421, "localhost.example": 421, "127.0.0.1.example": 421, "worker": 421,
		}},
		{":0", map[string]int{"worker-7.sluice.svc": 200, "127.0.0.1:7780": 200}}, // whoever listens to all has put something before it
	} {
		ln, err := net.Listen("tcp", c.listen)
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			_ = serveAdmin(t.Context(), ln, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { writeText(w, "ok\n") }))
		}()
		for host, want := range c.hosts {
			request, err := http.NewRequest("GET", fmt.Sprintf("http://127.0.0.1:%d/", ln.Addr().(*net.TCPAddr).Port), nil)
			if err != nil {
				t.Fatal(err)
			}
			request.Host = host
			response, err := http.DefaultClient.Do(request)
			if err != nil {
				t.Fatal(err)
			}
			response.Body.Close()
			if response.StatusCode != want {
				t.Errorf("listening on %s, asked for %s: %d, want %d", c.listen, host, response.StatusCode, want)
			}
		}
	}
}

func TestOpenStatusPageDoesNotDelayTheEnd(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	w := &worker{reg: newRegistry()}
	status := statuspage.New(w.statusConfig())
	done := make(chan error, 1)
	go func() { done <- serveAdmin(ctx, ln, newAdmin(w.reg, w.ready, status)) }()
	response, err := http.Get("http://" + ln.Addr().String() + "/events")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if _, err := io.ReadFull(response.Body, make([]byte, 6)); err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if took := time.Since(begun); took > 1500*time.Millisecond { // the grace for other requests is 2 s
		t.Errorf("it took %v", took)
	}
}

func TestStatusPageShowsSettingsAsTheyAreWrittenAndNoAddress(t *testing.T) {
	setEnvironment(t, "SLUICE_WEBHOOK_URL=https://u:hunter2@example.com/hook", "SLUICE_REDIS_URL=redis://:hunter2@redis.example.com",
		"SLUICE_LIMIT=1000/h window, 5/s", "SLUICE_MAX_WAIT=1d12h", "SLUICE_RETRY_FOR=90m", "SLUICE_SUBJECTS=a.>,b.*")
	cfg, err := loadConfig(workerParts...)
	if err != nil {
		t.Fatal(err)
	}
	w := &worker{cfg: cfg}
	facts := w.statusConfig().Facts()
	text := fmt.Sprint(facts)
	for _, want := range []string{"{LIMIT 5/s, 1000/h window}", "{MAX_WAIT 36h}", "{RETRY_FOR 1h30m}", "{SUBJECTS a.>,b.*}", "{SINK webhook}"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %s in %s", want, text)
		}
	}
	book := limiter.NewBook(cfg.Limit)
	w.book.Store(book)
	if limit := w.limitInForce(); limit != "5/s, 1000/h window" {
		t.Errorf("without rules the limit is %q", limit)
	}
	if err := book.Apply(limiter.Change{Place: limiter.Place{Source: limiter.SourceAll}, Rule: limiter.Rule{Paused: true}}); err != nil {
		t.Fatal(err)
	}
	if limit := w.limitInForce(); limit != "0 (by the rule for all; SLUICE_LIMIT is 5/s, 1000/h window)" {
		t.Errorf("while all is paused the limit is %q", limit)
	}
	for _, secret := range []string{"hunter2", "example.com"} {
		if strings.Contains(text, secret) {
			t.Errorf("%s shows in %s", secret, text)
		}
	}
	for _, f := range facts {
		if !slices.ContainsFunc(variables, func(v variable) bool { return v.name == f.Name }) {
			t.Errorf("%s is no setting", f.Name)
		}
	}
}

func TestAdminServerTellsWhenItsListenerFails(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ln.Close()
	if err := serveAdmin(context.Background(), ln, http.NotFoundHandler()); err == nil {
		t.Error("no error")
	}
}
