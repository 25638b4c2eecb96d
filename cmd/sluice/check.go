package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/spf13/cobra"
)

func newCheckCommand() *cobra.Command {
	var asJSON, ready bool
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Look for what would keep a worker from working, and say how to mend it",
		Long: `Look at everything a worker with these settings needs: NATS and its rights, the source, consumer, lanes and dead
letters, Redis with its rights, eviction policy and clock, the receiver, which keys the newest events have, rules of limits that
can't be understood, and live workers that disagree. Nothing is created, changed or pushed. Reads the same variables as a worker. Exits with 1 if there is a fault; warnings don't count.

With --ready only ask the worker that runs at SLUICE_ADMIN_ADDR whether it is ready, as a container's health check.
Exits with 1 if it isn't.`,
		Example: `  sluice check
  sluice check --json
  sluice check --ready`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if ready {
				return runReady(cmd)
			}
			return runCheck(cmd, asJSON)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a list of JSON objects")
	cmd.Flags().BoolVar(&ready, "ready", false, "only ask the worker on this machine whether it is ready")
	cmd.MarkFlagsMutuallyExclusive("json", "ready")
	return cmd
}

// checkTimeout bounds the questions to one server.
const checkTimeout = 20 * time.Second

// The levels of a finding.
const (
	fine    = "ok"
	warning = "warning"
	fault   = "fault"
)

// finding is one thing that was looked at.
type finding struct {
	Level  string `json:"level"`
	About  string `json:"about"`
	Text   string `json:"text"`
	Remedy string `json:"remedy,omitempty"`
}

// findings are shown as they come: a server that is away takes some seconds to give up on.
type findings struct {
	list []finding
	show func(finding)
}

func (f *findings) add(level, about, what, remedy string) {
	one := finding{level, about, what, remedy}
	f.list = append(f.list, one)
	f.show(one)
}

func (f *findings) count(level string) (n int) {
	for _, one := range f.list {
		if one.Level == level {
			n++
		}
	}
	return n
}

func runCheck(cmd *cobra.Command, asJSON bool) error {
	cfg, err := loadConfig(workerParts...)
	if err != nil {
		return err
	}
	out := cmd.OutOrStdout()
	f := &findings{show: func(finding) {}}
	if !asJSON {
		f.show = func(one finding) { printFinding(out, one) }
	}
	for _, look := range []func(context.Context, Config, *findings){checkNATS, checkRedis, checkReceiver, checkWorkers} {
		ctx, cancel := context.WithTimeout(cmd.Context(), checkTimeout)
		look(ctx, cfg, f)
		cancel()
		if err := cmd.Context().Err(); err != nil {
			return context.Cause(cmd.Context())
		}
	}
	if asJSON {
		if err := json.NewEncoder(out).Encode(f.list); err != nil {
			return err
		}
	}
	if n := f.count(fault); n > 0 {
		return fmt.Errorf("%d of %d checks found a fault", n, len(f.list))
	}
	if !asJSON {
		_, err = fmt.Fprintf(out, "\n%d checks, %d warnings, no fault\n", len(f.list), f.count(warning))
	}
	return err
}

func printFinding(out io.Writer, one finding) {
	colour := map[string]text.Color{fine: text.FgGreen, warning: text.FgYellow, fault: text.FgRed}[one.Level]
	_, _ = fmt.Fprintf(out, "%s  %s: %s\n", paintOn(out).with(fmt.Sprintf("%-7s", one.Level), colour), one.About, one.Text)
	if one.Remedy != "" {
		_, _ = fmt.Fprintf(out, "         %s\n", one.Remedy)
	}
}

// reason is the last of a chain of errors that were joined or told by a server, without what the finding says anyway.
func reason(err error) string {
	if errors.Is(err, context.DeadlineExceeded) {
		return "no answer in time"
	}
	return err.Error()
}
