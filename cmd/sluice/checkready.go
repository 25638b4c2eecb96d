package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/spf13/cobra"
)

// readyTimeout is shorter than the time-outs that containers' health checks usually have.
const readyTimeout = 3 * time.Second

// runReady asks the worker at SLUICE_ADMIN_ADDR whether it is ready: the health check where there is no other program, as
// in the image.
func runReady(cmd *cobra.Command) error {
	cfg, err := loadConfig(runPart)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), readyTimeout)
	defer cancel()
	details, err := askReady(ctx, cfg.AdminAddr)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "ready: %s\n", details)
	return err
}

// askReady returns what the worker at addr says about itself, and an error unless it is ready.
func askReady(ctx context.Context, addr string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+reachable(addr)+"/readyz", nil)
	if err != nil {
		return "", fmt.Errorf("asking %s: %w", addr, err)
	}
	request.Host = "localhost"                                                 // a local address takes no other name, and addr may hold one
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}} // and no proxy
	answer, err := client.Do(request)
	if err != nil {
		return "", fmt.Errorf("no worker answers at %s (SLUICE_ADMIN_ADDR): %w", addr, reasonOf(err))
	}
	defer func() { _ = answer.Body.Close() }()
	var told struct{ Details json.RawMessage }
	if err := json.NewDecoder(io.LimitReader(answer.Body, 64<<10)).Decode(&told); err != nil {
		return "", fmt.Errorf("what answers at %s is no worker: %w", addr, err)
	}
	if answer.StatusCode != http.StatusOK {
		return "", fmt.Errorf("the worker at %s isn't ready: %s", addr, told.Details)
	}
	return string(told.Details), nil
}

// reachable is addr, but the loopback address where it stands for all addresses of the machine.
func reachable(addr string) string {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return addr
	}
	if ip := net.ParseIP(host); host == "" || ip.IsUnspecified() {
		host = "127.0.0.1"
		if ip != nil && ip.To4() == nil {
			host = "::1"
		}
	}
	return net.JoinHostPort(host, port)
}

// reasonOf is err without the method and the URL, which the caller has told.
func reasonOf(err error) error {
	if inner := errors.Unwrap(err); inner != nil {
		return inner
	}
	return err
}
