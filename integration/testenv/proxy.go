package testenv

import (
	"io"
	"net"
	"net/url"
	"sync"
	"testing"
	"time"
)

// ProxyServer passes TCP connections on to a server, until it is cut or stalls.
type ProxyServer struct {
	target   string
	listener net.Listener
	serving  sync.WaitGroup

	mu    sync.Mutex
	cut   bool
	conns map[net.Conn]bool
	left  int           // bytes from the target until it stalls
	stall time.Duration // for how long then; 0: it doesn't
}

// Proxy starts a proxy for the server with the address host:port. It ends with the test.
func Proxy(t testing.TB, target string) *ProxyServer {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("listening for a proxy: %v", err)
	}
	p := &ProxyServer{target: target, listener: ln, conns: map[net.Conn]bool{}}
	p.serving.Go(p.serve)
	t.Cleanup(func() {
		_ = ln.Close()
		p.Cut()
		p.serving.Wait()
	})
	return p
}

// URL is a URL of the target with the proxy's address in place of its own.
func (p *ProxyServer) URL(t testing.TB, target string) string {
	t.Helper()
	u, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	u.Host = p.listener.Addr().String()
	return u.String()
}

// Cut ends all connections, and new ones as soon as they are made, until Mend.
func (p *ProxyServer) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = true
	for c := range p.conns {
		_ = c.Close()
	}
}

// Mend lets connections pass again.
func (p *ProxyServer) Mend() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = false
}

// Stall lets so many more bytes come from the server, and what is behind them so much later. Once.
func (p *ProxyServer) Stall(after int, d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.left, p.stall = after, d
}

// stalling takes part in what comes from the target: it answers how much of n bytes may pass before the stall, and how long that is.
func (p *ProxyServer) stalling(n int) (before int, d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stall == 0 {
		return n, 0
	}
	if before = min(n, p.left); before < n {
		d, p.stall = p.stall, 0
	}
	p.left -= before
	return before, d
}

// slowly is a connection to a client, whose writes stall.
type slowly struct {
	p *ProxyServer
	c net.Conn
}

func (s slowly) Write(b []byte) (int, error) {
	before, d := s.p.stalling(len(b))
	n, err := s.c.Write(b[:before])
	if err != nil || before == len(b) {
		return n, err
	}
	time.Sleep(d)
	more, err := s.c.Write(b[before:])
	return n + more, err
}

func (p *ProxyServer) serve() {
	for {
		c, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.serving.Go(func() { p.pass(c) })
	}
}

func (p *ProxyServer) pass(c net.Conn) {
	if !p.keep(c) {
		return
	}
	defer p.drop(c)
	to, err := net.Dial("tcp", p.target)
	if err != nil || !p.keep(to) {
		return
	}
	defer p.drop(to)
	var back sync.WaitGroup
	back.Go(func() {
		_, _ = io.Copy(slowly{p, c}, to)
		_ = c.Close()
	})
	_, _ = io.Copy(to, c)
	_ = to.Close()
	back.Wait()
}

// keep remembers a connection to be cut; it closes it if that is so already.
func (p *ProxyServer) keep(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cut {
		_ = c.Close()
		return false
	}
	p.conns[c] = true
	return true
}

func (p *ProxyServer) drop(c net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c)
	_ = c.Close()
}
