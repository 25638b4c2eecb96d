package sink

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptrace"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// idleTimeout is below the five seconds after which many receivers close idle connections: a push that meets the close on its
// way has to go again.
const idleTimeout = 4 * time.Second

// errNoAnswer is a connection's end in place of an answer.
var errNoAnswer = errors.New("the connection was closed without an answer")

// connections are those to a receiver, kept between pushes. http.Transport keeps connections, too, but gives one back while more
// than the answer may have come, never ends one for its age, and can't be told to take a new one.
type connections struct {
	transport *http.Transport // how to connect; it keeps nothing
	scheme    string
	address   string        // host:port
	life      time.Duration // no request begins later on a connection; 0: at any time
	most      int           // that are kept

	mu     sync.Mutex
	idle   []*connection // the last used is the last
	timer  *time.Timer   // closes what was idle for too long; nil: nothing is idle
	closed bool
}

// connection is one of them. It takes one request at a time.
type connection struct {
	*http.ClientConn
	socket   *socket
	ends     time.Time // no request begins later; zero: at any time
	idle     time.Time // since when
	bodiless bool      // the last answer was of a status that has no body; one that can't be read may be a body that it had
}

// fit says whether another request may begin now.
func (c *connection) fit(now time.Time) bool {
	return c.Available() > 0 && c.socket.reading() && (c.ends.IsZero() || now.Before(c.ends))
}

// send makes one exchange. When a kept connection ends before an answer begins, its age may be the only reason: the request goes
// once more, at once, over a new one. Whatever ends otherwise is an error. The connection has to be given to keep when the answer's
// body is read.
func (p *connections) send(request *http.Request, body []byte) (*connection, *http.Response, error) {
	ctx := request.Context()
	if c := p.take(); c != nil {
		var began atomic.Bool
		traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotFirstResponseByte: func() { began.Store(true) }})
		response, err := c.RoundTrip(withBody(traced, request, body))
		if err == nil && !waitedInVain(response) {
			return c, response, nil
		}
		_ = c.Close()
		if err != nil && (began.Load() && !c.bodiless || ctx.Err() != nil) {
			return nil, nil, causeOf(err)
		}
	}
	return p.sendNew(request, body)
}

// unconnected says that there was no connection, so that nothing was sent.
type unconnected struct{ error }

func (u *unconnected) Unwrap() error { return u.error }

// sendNew makes one exchange over a new connection.
func (p *connections) sendNew(request *http.Request, body []byte) (*connection, *http.Response, error) {
	ctx := request.Context()
	c, err := p.dial(ctx)
	if err != nil {
		return nil, nil, &unconnected{err}
	}
	response, err := c.RoundTrip(withBody(ctx, request, body))
	if err != nil {
		_ = c.Close()
		return nil, nil, causeOf(err)
	}
	return c, response, nil
}

// waitedInVain says whether a receiver gives up a connection because no request came for so long: that may have crossed ours, which
// may go over a new connection then (RFC 9110, 15.5.9).
func waitedInVain(response *http.Response) bool {
	return response.StatusCode == http.StatusRequestTimeout && response.Close
}

// withBody is the request with a body that nothing has read yet.
func withBody(ctx context.Context, request *http.Request, body []byte) *http.Request {
	request = request.WithContext(ctx)
	request.Body = http.NoBody
	if len(body) > 0 {
		request.Body = io.NopCloser(bytes.NewReader(body))
	}
	return request
}

// causeOf leaves the transport's own words out.
func causeOf(err error) error {
	if cause, ok := errors.AsType[*net.OpError](err); ok {
		return cause
	}
	if errors.Is(err, io.EOF) {
		return errNoAnswer
	}
	return err
}

// take returns a kept connection, or nil.
func (p *connections) take() *connection {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.idle) > 0 {
		last := len(p.idle) - 1
		c := p.idle[last]
		p.idle[last] = nil
		if p.idle = p.idle[:last]; c.fit(now) && now.Sub(c.idle) < idleTimeout {
			return c
		}
		go c.Close() // over TLS it takes its time
	}
	return nil
}

// dial makes a new connection.
func (p *connections) dial(ctx context.Context) (*connection, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	c := &connection{}
	// The transport tells nobody which socket a connection has; one for each knows.
	transport := p.transport.Clone()
	transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := p.transport.DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		c.socket = &socket{Conn: conn}
		return c.socket, nil
	}
	var err error
	if c.ClientConn, err = transport.NewClientConn(ctx, p.scheme, p.address); err != nil {
		return nil, err
	}
	if p.life > 0 {
		// What was opened together doesn't end together.
		c.ends = time.Now().Add(p.life - rand.N(p.life/4+1))
	}
	return c, nil
}

// keep takes a connection back after an answer whose body was read. It is used again only if nothing came behind the answer: the
// next push would take that for its own.
func (p *connections) keep(ctx context.Context, c *connection, response *http.Response) {
	c.bodiless = response.StatusCode == http.StatusNoContent || response.StatusCode == http.StatusNotModified
	if c.bodiless && announcesBody(response) || c.Available() == 0 || !c.socket.awaitReading(ctx) || !p.put(c) {
		_ = c.Close()
	}
}

// announcesBody says whether a body is to come. Where the status has none, nobody reads it.
func announcesBody(response *http.Response) bool {
	length := response.Header.Get("Content-Length")
	return length != "" && length != "0" || len(response.TransferEncoding) > 0
}

func (p *connections) put(c *connection) bool {
	c.idle = time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || len(p.idle) >= p.most || !c.fit(c.idle) {
		return false
	}
	p.idle = append(p.idle, c)
	if p.timer == nil {
		p.timer = time.AfterFunc(idleTimeout, p.sweep)
	}
	return true
}

// sweep closes what was idle for too long.
func (p *connections) sweep() {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.idle = slices.DeleteFunc(p.idle, func(c *connection) bool {
		if c.fit(now) && now.Sub(c.idle) < idleTimeout {
			return false
		}
		go c.Close()
		return true
	})
	p.timer = nil
	if len(p.idle) > 0 {
		p.timer = time.AfterFunc(idleTimeout-now.Sub(p.idle[0].idle), p.sweep)
	}
}

// close closes idle connections now, and the others when their exchange is over.
func (p *connections) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	if p.timer != nil {
		p.timer.Stop()
	}
	for _, c := range p.idle {
		_ = c.Close()
	}
	p.idle = nil
}
