package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
)

// run executes one command line and returns its exit code. Errors are written to stderr, once.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	root := newRoot()
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)

	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitOK
	}
	_, _ = fmt.Fprintf(stderr, "sluice: %s\n", strings.TrimSpace(err.Error()))
	if _, ok := errors.AsType[*configError](err); ok {
		return exitUsage
	}
	if _, ok := errors.AsType[*commandError](err); ok {
		return exitFailed
	}
	_, _ = fmt.Fprintf(stderr, "Run '%s --help' for usage.\n", cmd.CommandPath())
	return exitUsage
}

// newRoot builds the tree of commands.
func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "sluice",
		Short: "Push events to their receivers, never faster than each key's limit",
		Long: `sluice pulls events from a NATS JetStream stream and pushes them to a receiver, never faster than the limit of
each event's key. Events over the limit wait in JetStream for their turn; buckets and order are kept in Redis.

Every setting is an environment variable with the prefix SLUICE_; 'sluice worker --help' lists them.
Exit codes: 0 success, 1 failed, 2 wrong arguments or settings. A first SIGINT or SIGTERM ends a command in an
orderly way, a second one at once with exit code 1.`,
		Example: `  sluice dev
  sluice worker
  sluice publish events.alice '{"amount": 3}'`,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.CompletionOptions.HiddenDefaultCmd = true
	root.AddCommand(
		newDevCommand(),
		newWorkerCommand(),
		newPublishCommand(),
		newSetupCommand(),
		newCheckCommand(),
		newLimitsCommand(),
		newPauseCommand(),
		newResumeCommand(),
		newUserCommand(),
		newWorkersCommand(),
		newDLQCommand(),
		newLanesCommand(),
		newVersionCommand(),
	)
	markErrors(root)
	return root
}

// commandError is an error of a command that ran, in contrast to one of its arguments.
type commandError struct{ err error }

func (e *commandError) Error() string { return e.err.Error() }
func (e *commandError) Unwrap() error { return e.err }

// usageError is returned by a command that finds its arguments wrong only after it started.
type usageError struct{ text string }

func (e *usageError) Error() string { return e.text }

func usagef(format string, args ...any) error {
	return &usageError{text: fmt.Sprintf(format, args...)}
}

// markErrors wraps the errors that the commands' own functions return as [commandError], so that whatever else comes
// out of cobra (unknown command, unknown flag, wrong number of arguments) is known to be a usage error.
func markErrors(cmd *cobra.Command) {
	if inner := cmd.RunE; inner != nil {
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			err := inner(cmd, args)
			if err == nil {
				return nil
			}
			if _, ok := errors.AsType[*usageError](err); ok {
				return err
			}
			return &commandError{err: err}
		}
	}
	for _, sub := range cmd.Commands() {
		markErrors(sub)
	}
}
