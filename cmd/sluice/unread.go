package main

import (
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

// errUnread is the cause of an end because what the command writes reaches nobody any more.
var errUnread = errors.New("nobody reads the output any more")

// untilUnread returns a context that ends, because of [errUnread], when the reader of the command's output or log has gone. It also
// ends when the command's terminal was closed. Without it the runtime ends the process at once, by SIGPIPE or SIGHUP, which hands nothing over and which
// supervisors take for a clean end.
func untilUnread(cmd *cobra.Command) (context.Context, context.CancelFunc) {
	// The runtime ends nothing when somebody asks for the signal, until the process ends: the last word is written late. Nobody
	// looks at it, as it comes for sockets, too, and doesn't say for which.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	ctx, end := context.WithCancelCause(cmd.Context())
	gone := func() { end(errUnread) }
	// What draws has to know its terminal, and that never breaks in this way.
	if out := cmd.OutOrStdout(); !isTerminal(out) {
		cmd.SetOut(&heard{out, gone})
	}
	if out := cmd.ErrOrStderr(); !isTerminal(out) {
		cmd.SetErr(&heard{out, gone})
	}
	stop := func() {}
	if !signal.Ignored(syscall.SIGHUP) { // as under nohup
		ctx, stop = signal.NotifyContext(ctx, syscall.SIGHUP)
	}
	return ctx, func() {
		stop()
		end(nil)
	}
}

// heard is a writer that notices when its reader has gone.
type heard struct {
	io.Writer
	gone func()
}

func (h *heard) Write(p []byte) (int, error) {
	n, err := h.Writer.Write(p)
	if errors.Is(err, syscall.EPIPE) {
		h.gone()
	}
	return n, err
}

// unread is err and, if that was why ctx ended, errUnread.
func unread(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); errors.Is(cause, errUnread) && !errors.Is(err, errUnread) {
		return errors.Join(err, cause)
	}
	return err
}
