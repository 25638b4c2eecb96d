package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// adminPortTries is how many ports are tried, counted from the default one, when the default one is taken.
const adminPortTries = 20

// newAdmin serves metrics, probes, and the status page at whatever else there is. ready says whether the worker takes
// events, and details for people to read; it is called once per probe, from any goroutine.
func newAdmin(reg *prometheus.Registry, ready func() (bool, map[string]string), status http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{EnableOpenMetrics: true}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { writeText(w, "ok\n") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) { writeReady(w, ready) })
	mux.Handle("GET /", status)
	return mux
}

func writeText(w http.ResponseWriter, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = io.WriteString(w, text) // the caller went away: nothing to be done
}

func writeReady(w http.ResponseWriter, ready func() (bool, map[string]string)) {
	ok, details := ready()
	status, code := "ready", http.StatusOK
	if !ok {
		status, code = "not ready", http.StatusServiceUnavailable
	}
	if details == nil {
		details = map[string]string{}
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(struct {
		Status  string            `json:"status"`
		Details map[string]string `json:"details"`
	}{status, details})
}

// localNames refuses requests for another name than this machine's. A web site can let its own name lead to 127.0.0.1, and
// its scripts would then read this server through the browser of someone who sits here. They can't choose the Host header,
// and an address in numbers leads nowhere else.
func localNames(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := (&url.URL{Host: r.Host}).Hostname()
		name := strings.TrimSuffix(strings.ToLower(host), ".")
		if _, err := netip.ParseAddr(host); err != nil && host != "" && name != "localhost" {
			http.Error(w, "this address is for localhost only; a proxy before it has to ask for that name", http.StatusMisdirectedRequest)
			return
		}
		handler.ServeHTTP(w, r)
	})
}

// serveAdmin serves handler on ln until ctx ends, and with it the contexts of all requests, so that streams end at once.
// Probes in flight then get two seconds to finish.
func serveAdmin(ctx context.Context, ln net.Listener, handler http.Handler) error {
	if addr, ok := ln.Addr().(*net.TCPAddr); ok && addr.IP.IsLoopback() {
		handler = localNames(handler)
	}
	server := &http.Server{
		Handler:           handler,
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(ln) }()
	select {
	case err := <-served:
		return fmt.Errorf("serving %s: %w", ln.Addr(), err)
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	if err := server.Shutdown(grace); err != nil {
		_ = server.Close()
	}
	<-served
	return nil
}

// listenAdmin listens on addr. When addr is taken and was not asked for explicitly, the next free port of the same host
// is taken instead, so that several workers run on one machine without any setting.
func listenAdmin(addr string, explicit bool, log *slog.Logger) (net.Listener, error) {
	ln, err := net.Listen("tcp", addr)
	if err == nil {
		return ln, nil
	}
	const remedy = "set SLUICE_ADMIN_ADDR to a free host:port"
	if explicit || !errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("%w; %s", err, remedy)
	}
	host, portText, splitErr := net.SplitHostPort(addr)
	port, portErr := strconv.Atoi(portText)
	if splitErr != nil || portErr != nil {
		return nil, fmt.Errorf("%w; %s", err, remedy)
	}
	for next := port + 1; next < port+adminPortTries; next++ {
		ln, err = net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(next)))
		if err == nil {
			log.Info("admin address is taken, using the next free port", "taken", addr, "addr", ln.Addr().String())
			return ln, nil
		}
		if !errors.Is(err, syscall.EADDRINUSE) {
			break
		}
	}
	return nil, fmt.Errorf("%d ports from %s on are taken: %w; %s", adminPortTries, addr, err, remedy)
}
