package sink

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// pipes is a receiver in virtual time. It answers at once, and tells of each connection when it was opened, used last and closed.
type pipes struct {
	mu  sync.Mutex
	all []*pipe
}

type pipe struct{ opened, used, closed time.Time }

func (p *pipes) dial(context.Context, string, string) (net.Conn, error) {
	near, far := net.Pipe()
	c := &pipe{opened: time.Now()}
	p.mu.Lock()
	p.all = append(p.all, c)
	p.mu.Unlock()
	go func() {
		defer far.Close()
		for from := bufio.NewReader(far); ; {
			request, err := http.ReadRequest(from)
			if err == nil {
				_, err = io.Copy(io.Discard, request.Body)
			}
			p.mu.Lock()
			if err != nil {
				c.closed = time.Now()
			} else {
				c.used = time.Now()
			}
			p.mu.Unlock()
			if err != nil {
				return
			}
			time.Sleep(time.Millisecond) // so that pushes at once take a connection each
			if _, err := io.WriteString(far, ok); err != nil {
				return
			}
		}
	}()
	return near, nil
}

func (p *pipes) opened() []*pipe {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.all
}

// pushAll pushes n events at once.
func pushAll(t *testing.T, w *Webhook, n int) {
	t.Helper()
	var pushes sync.WaitGroup
	for range n {
		pushes.Go(func() {
			if err := w.Push(t.Context(), testEvent()); err != nil {
				t.Error(err)
			}
		})
	}
	pushes.Wait()
}

// A name that moved is followed when the connections to its old address have ended.
func TestConnectionsTakeNoPushesAfterTheirLife(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const life, at = 5 * time.Minute, 12
		p := &pipes{}
		w := newTestWebhook(t, "http://receiver", func(c *WebhookConfig) { c.ConnLife, c.Concurrency = life, at })
		w.connections.transport.DialContext = p.dial
		begin := time.Now()
		for time.Since(begin) < 3*life {
			pushAll(t, w, at)
			time.Sleep(3 * time.Second)
		}
		if n := len(p.opened()); n < 3*at || n > 4*at {
			t.Errorf("%d connections in three lives of %d", n, at)
		}
		ends := map[time.Time]int{}
		for i, c := range p.opened() {
			if lived := c.used.Sub(c.opened); lived > life {
				t.Errorf("a connection took a push after %s", lived)
			} else if i < at && lived < life/2 {
				t.Errorf("a connection took its last push after %s of %s", lived, life)
			}
			if i < at {
				ends[c.used]++
			}
		}
		for _, n := range ends {
			if n > at/2 {
				t.Errorf("%d of %d connections ended together", n, at)
			}
		}
	})
}

func TestConnectionsLiveForEverIfAsked(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := &pipes{}
		w := newTestWebhook(t, "http://receiver")
		w.connections.transport.DialContext = p.dial
		for range 24 * 20 {
			pushAll(t, w, 1)
			time.Sleep(3 * time.Second)
		}
		if n := len(p.opened()); n != 1 {
			t.Errorf("%d connections in 24 minutes", n)
		}
	})
}

// Receivers close what is idle for five seconds.
func TestIdleConnectionsAreClosedBeforeTheReceiverDoes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := &pipes{}
		w := newTestWebhook(t, "http://receiver")
		w.connections.transport.DialContext = p.dial
		pushAll(t, w, 8)
		for range 10 { // one is used on and on
			time.Sleep(3 * time.Second)
			pushAll(t, w, 1)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := len(p.opened()); n != 8 {
			t.Errorf("%d connections for at most 8 pushes at a time", n)
		}
		for _, c := range p.opened() {
			if idle := c.closed.Sub(c.used); idle < idleTimeout-time.Second || idle > 5*time.Second {
				t.Errorf("a connection was closed after it was idle for %s", idle)
			}
		}
	})
}

func TestNoMoreConnectionsAreKeptThanThereArePushSlots(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := &pipes{}
		w := newTestWebhook(t, "http://receiver", func(c *WebhookConfig) { c.Concurrency = 3 })
		w.connections.transport.DialContext = p.dial
		pushAll(t, w, 8)
		time.Sleep(time.Second)
		open := 0
		for _, c := range p.opened() {
			if c.closed.IsZero() {
				open++
			}
		}
		if open != 3 {
			t.Errorf("%d connections are kept, want 3", open)
		}
		w.Close()
		pushAll(t, w, 1) // one that was in flight goes on, and its connection ends with it
		synctest.Wait()
		for _, c := range p.opened() {
			if c.closed.IsZero() {
				t.Error("a connection outlives the webhook")
			}
		}
	})
}

func TestAddressToConnectTo(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]string{
		"http://example.com/a":              "example.com:80",
		"https://example.com":               "example.com:443",
		"HTTPS://u:p@Example.com:8443/":     "Example.com:8443",
		"http://[::1]/":                     "[::1]:80",
		"http://[fe80::1%25eth0]:81/":       "[fe80::1%eth0]:81",
		"https://bücher.example:8443/{key}": "xn--bcher-kva.example:8443",
		"https://例え.jp/":                    "xn--r8jz45g.jp:443",
	} {
		a, err := parseAddress(raw)
		if err != nil {
			t.Fatal(err)
		}
		if got := a.hostPort(); got != want {
			t.Errorf("%s: %s, want %s", raw, got, want)
		}
	}
}
