package stream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"
)

// A command that a person waits for gives up early: three tries, and about ten seconds once it was connected.
const (
	dialTries     = 3
	dialPause     = 500 * time.Millisecond
	dialTimeout   = 3 * time.Second
	reconnects    = 20
	reconnectWait = 500 * time.Millisecond
)

// Dial is Connect for a command that ends soon. report gets what the server complains about later, such as missing
// permissions.
func Dial(ctx context.Context, cfg Config, report func(error)) (*nats.Conn, error) {
	l := &link{cfg: cfg, log: slog.New(slog.DiscardHandler), ctx: ctx, timeout: dialTimeout}
	opts, err := l.options(
		nats.MaxReconnects(reconnects),
		nats.ReconnectWait(reconnectWait),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { report(fmt.Errorf("NATS: %w", err)) }),
	)
	if err != nil {
		return nil, err
	}
	for try := 1; ; try++ {
		nc, err := l.connect(opts)
		if err == nil {
			return nc, nil
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if try == dialTries || errors.Is(err, nats.ErrAuthorization) || errors.Is(err, nats.ErrAuthExpired) {
			return nil, errors.New(l.say(err))
		}
		select {
		case <-ctx.Done():
		case <-time.After(dialPause):
		}
	}
}
