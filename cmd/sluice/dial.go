package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
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

// dialNATS connects a command to NATS. report gets what the server complains about later, such as missing permissions.
func dialNATS(ctx context.Context, cfg NATSConfig, report func(error)) (*nats.Conn, error) {
	opts, err := cfg.options()
	if err != nil {
		return nil, err
	}
	opts = append(opts,
		nats.Name("sluice"),
		nats.Timeout(dialTimeout),
		nats.MaxReconnects(reconnects),
		nats.ReconnectWait(reconnectWait),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { report(fmt.Errorf("NATS: %w", err)) }),
	)
	dialer := &reasonDialer{ctx: ctx}
	opts = append(opts, nats.SetCustomDialer(dialer))

	for try := 1; ; try++ {
		nc, err := nats.Connect(cfg.servers(), opts...)
		if err == nil {
			return nc, nil
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if errors.Is(err, nats.ErrNoServers) && dialer.reason() != nil {
			err = dialer.reason()
		}
		final := errors.Is(err, nats.ErrAuthorization) || errors.Is(err, nats.ErrAuthExpired)
		if try == dialTries || final {
			return nil, fmt.Errorf("connecting to %s: %w; check SLUICE_NATS_URL and the other SLUICE_NATS_ variables",
				joinURLs(cfg.URLs), err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(dialPause):
		}
	}
}

// reasonDialer keeps what the last dial met, which nats.go doesn't tell, and gives up dialling when ctx ends.
type reasonDialer struct {
	ctx  context.Context
	mu   sync.Mutex
	last error
}

// Dial is called by nats.go, once for each server and try.
func (d *reasonDialer) Dial(network, address string) (net.Conn, error) {
	dialer := net.Dialer{Timeout: dialTimeout}
	conn, err := dialer.DialContext(d.ctx, network, address)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.last = err
	return conn, err
}

func (d *reasonDialer) reason() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.last
}

// servers is the list as nats.go takes it, with users and passwords.
func (c NATSConfig) servers() string {
	all := make([]string, len(c.URLs))
	for i, u := range c.URLs {
		all[i] = string(u)
	}
	return strings.Join(all, ",")
}

// options are those of authentication and TLS.
func (c NATSConfig) options() ([]nats.Option, error) {
	var opts []nats.Option
	if c.Creds != "" {
		opts = append(opts, nats.UserCredentials(c.Creds))
	}
	if c.Nkey != "" {
		nkey, err := nats.NkeyOptionFromSeed(c.Nkey)
		if err != nil {
			return nil, fmt.Errorf("reading the seed of SLUICE_NATS_NKEY, %s: %w", c.Nkey, err)
		}
		opts = append(opts, nkey)
	}
	if c.User != "" {
		opts = append(opts, nats.UserInfo(c.User, string(c.Password)))
	}
	if c.Token != "" {
		opts = append(opts, nats.Token(string(c.Token)))
	}
	if c.InboxPrefix != "" {
		opts = append(opts, nats.CustomInboxPrefix(c.InboxPrefix))
	}
	config, err := c.TLS.Config()
	if err != nil {
		return nil, fmt.Errorf("SLUICE_NATS_TLS_…: %w", err)
	}
	if config != nil {
		opts = append(opts, nats.Secure(config))
	}
	return opts, nil
}
