package stream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	connectTimeout = 5 * time.Second
	repeatLog      = 30 * time.Second
	retryFirst     = 250 * time.Millisecond
	retryMost      = 2 * time.Second
)

// Connect connects to NATS. It tries until it succeeds or ctx ends, and says what is in the way: once for each reason, and
// every 30 s. From then on the connection mends itself, whatever happens and however long it takes; only Close or Drain
// end it. The connection publishes nothing while it is down: a publish returns an error at once instead of being sent
// later, when its sender has long given up on it.
func Connect(ctx context.Context, cfg Config, log *slog.Logger) (*nats.Conn, error) {
	l := &link{cfg: cfg, log: log, ctx: ctx, timeout: connectTimeout}
	opts, err := l.options(
		nats.MaxReconnects(-1),
		nats.CustomReconnectDelay(l.pause),
		nats.IgnoreAuthErrorAbort(), // credentials may be exchanged while it runs
		nats.PingInterval(20*time.Second),
		nats.MaxPingsOutstanding(3),
		nats.ReconnectBufSize(-1),
		nats.DrainTimeout(10*time.Second),
		nats.ErrorHandler(l.asyncError),
		nats.DisconnectErrHandler(l.disconnected),
		nats.ReconnectHandler(l.reconnected),
		nats.ReconnectErrHandler(func(_ *nats.Conn, err error) { l.report(err) }),
	)
	if err != nil {
		return nil, err
	}
	for wait := retryFirst; ; wait = min(2*wait, retryMost) {
		var nc *nats.Conn
		if nc, err = l.connect(opts); err == nil {
			l.connected()
			log.Info("connected to NATS at "+cfg.where(), "server", nc.ConnectedServerName(), "version", nc.ConnectedServerVersion())
			return nc, nil
		}
		if ctx.Err() == nil {
			l.report(err)
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%s: %w", l.say(err), ctx.Err())
		case <-time.After(wait/2 + rand.N(wait)):
		}
	}
}

// link is what is known of one connection beside what nats.go knows. It is the connection's dialer, and by that found
// again from the connection.
type link struct {
	cfg     Config
	log     *slog.Logger
	timeout time.Duration // of one attempt at one server

	mu       sync.Mutex
	ctx      context.Context // ends the first connecting; nil after
	dialErr  error           // of the last dial; nil when it succeeded
	reason   string          // logged last, "" when connected
	loggedAt time.Time
	nkey     func()     // before each connection; nil: sluice logs in by none
	public   *string    // where nats.go takes the public key from
	nc       *nats.Conn // nil until it is connected first
	denied   error      // the last permission that NATS refused
	deniedAt time.Time
}

// linkOf is nil for a connection that neither Connect nor Dial made.
func linkOf(nc *nats.Conn) *link {
	if nc == nil {
		return nil
	}
	l, _ := nc.Opts.CustomDialer.(*link)
	return l
}

// Dial connects one server; it is called by nats.go.
func (l *link) Dial(network, address string) (net.Conn, error) {
	l.mu.Lock()
	ctx, nkey := l.ctx, l.nkey
	l.mu.Unlock()
	if ctx == nil {
		ctx = context.Background()
	}
	if nkey != nil {
		nkey()
	}
	dialer := net.Dialer{Timeout: l.timeout}
	conn, err := dialer.DialContext(ctx, network, address)
	l.mu.Lock()
	if err == nil || l.dialErr == nil || !ended(ctx) { // what was cut off says less than the try before
		l.dialErr = err
	}
	l.mu.Unlock()
	return conn, err
}

// ended says whether ctx has ended, or its time is over, which a dial may notice first.
func ended(ctx context.Context) bool {
	deadline, ok := ctx.Deadline()
	return ctx.Err() != nil || ok && !time.Now().Before(deadline)
}

// options are those of the config, and then list.
func (l *link) options(list ...nats.Option) (*nats.Options, error) {
	c := l.cfg
	list = append(list, nats.Name("sluice "+c.Name), nats.SetCustomDialer(l), nats.Timeout(l.timeout))
	login, servers, err := l.login()
	if err != nil {
		return nil, err
	}
	list = append(list, login...)
	secured, err := l.secured()
	if err != nil {
		return nil, err
	}
	list = append(list, secured...)
	if c.InboxPrefix != "" {
		list = append(list, nats.CustomInboxPrefix(c.InboxPrefix))
	}
	opts := nats.GetDefaultOptions()
	opts.Servers = servers
	for _, set := range list {
		if err := set(&opts); err != nil {
			return nil, &Fault{"setting up the connection to NATS (SLUICE_NATS_*)", err}
		}
	}
	return &opts, nil
}

// connected ends the first connecting: the link outlives the context that it was made with.
func (l *link) connected() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ctx, l.reason = nil, ""
}

// pause is for how long nats.go waits before it tries all servers again. It doesn't tell by itself that an attempt failed once
// the server was reached, as by its certificate.
func (l *link) pause(round int) time.Duration {
	l.mu.Lock()
	nc := l.nc
	l.mu.Unlock()
	if nc == nil {
		return retryFirst
	}
	if err := nc.LastError(); err != nil && round > 1 { // before, it is why the connection was lost
		l.report(err)
	}
	if nc.Opts.Secure {
		return retryFirst + rand.N(time.Second)
	}
	return retryFirst + rand.N(retryFirst)
}

// Trouble is why there is no connection, without any secret; "" while there is one, or when nobody knows.
func Trouble(nc *nats.Conn) string {
	l := linkOf(nc)
	if l == nil || nc.IsConnected() {
		return ""
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.reason
}

// report logs why there is no connection, when that is news or 30 s old.
func (l *link) report(err error) {
	text := l.say(err)
	l.mu.Lock()
	// nats.go tells some reasons twice, in capitals and without.
	again := strings.EqualFold(text, l.reason) && time.Since(l.loggedAt) < repeatLog
	if !again {
		l.reason, l.loggedAt = text, time.Now()
	}
	l.mu.Unlock()
	if !again {
		l.log.Warn(text + "; trying again")
	}
}

// say puts an error of connecting into words. The errors of nats.go itself may hold a URL with its password.
func (l *link) say(err error) string {
	l.mu.Lock()
	dialErr := l.dialErr
	l.mu.Unlock()
	where := l.cfg.where()
	switch {
	case dialErr != nil:
		return fmt.Sprintf("cannot reach NATS at %s (SLUICE_NATS_URL): %s", where, publicReason(dialErr))
	case refusedLogin(err):
		return fmt.Sprintf("NATS at %s refused the login (%s): %s", where, l.cfg.login(), publicReason(err))
	case err == nil:
		return fmt.Sprintf("no connection to NATS at %s (SLUICE_NATS_URL)", where)
	}
	return fmt.Sprintf("cannot connect to NATS at %s (SLUICE_NATS_URL, SLUICE_NATS_TLS_CA): %s", where, publicReason(err))
}

func refusedLogin(err error) bool {
	for _, refusal := range []error{
		nats.ErrAuthorization, nats.ErrAuthExpired, nats.ErrAuthRevoked, nats.ErrAccountAuthExpired, nats.ErrNkeysNotSupported,
	} {
		if errors.Is(err, refusal) {
			return true
		}
	}
	return false
}

func (l *link) disconnected(nc *nats.Conn, err error) {
	if nc.IsClosed() {
		return
	}
	text := "lost the connection to NATS; reconnecting"
	if err != nil {
		text = "lost the connection to NATS: " + publicReason(err) + "; reconnecting"
	}
	l.log.Warn(text)
}

func (l *link) reconnected(nc *nats.Conn) {
	l.connected()
	l.log.Info("connected to NATS again", "server", nc.ConnectedServerName(), "version", nc.ConnectedServerVersion())
}

// asyncError is told what NATS says outside of any call: above all permissions that it denies. The call that lacked one
// gets no answer; see explain.
func (l *link) asyncError(_ *nats.Conn, sub *nats.Subscription, err error) {
	if errors.Is(err, nats.ErrPermissionViolation) {
		l.mu.Lock()
		news := l.denied == nil || l.denied.Error() != err.Error() || time.Since(l.deniedAt) > repeatLog
		l.denied, l.deniedAt = err, time.Now()
		l.mu.Unlock()
		if news {
			l.log.Error("NATS denies a permission to the user of sluice", "err", err)
		}
		return
	}
	if refusedLogin(err) { // at each attempt to connect again
		l.report(err)
		return
	}
	subject := ""
	if sub != nil {
		subject = sub.Subject
	}
	l.log.Warn("NATS reports an error", "err", publicReason(err), "subject", subject)
}

// deniedSince is the last permission refused, if that was after t.
func (l *link) deniedSince(t time.Time) error {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.denied == nil || l.deniedAt.Before(t) {
		return nil
	}
	return l.denied
}
