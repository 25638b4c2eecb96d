package sink

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestPushesReuseTheirConnection(t *testing.T) {
	t.Parallel()
	var connections atomic.Int32
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Sluice-Attempt") == "2" {
			w.WriteHeader(http.StatusInternalServerError)
		}
		_, _ = w.Write(bytes.Repeat([]byte("x"), 60<<10))
	}))
	server.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			connections.Add(1)
		}
	}
	server.Start()
	defer server.Close()
	w := newTestWebhook(t, server.URL)
	for i := range 20 {
		ev := testEvent()
		ev.Attempt = 1 + i%2 // every other one fails
		if err := w.Push(t.Context(), ev); (err == nil) != (ev.Attempt == 1) {
			t.Fatalf("push %d: %v", i, err)
		}
	}
	if n := connections.Load(); n != 1 {
		t.Errorf("%d connections for one push at a time", n)
	}
}

// Eight at a time, four times: the transport's own default would keep two of eight connections.
func TestConcurrentPushesKeepTheirConnections(t *testing.T) {
	t.Parallel()
	var connections atomic.Int32
	const slots = 8
	arrived, release := make(chan struct{}, slots), make(chan struct{})
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		arrived <- struct{}{}
		<-release
	}))
	server.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			connections.Add(1)
		}
	}
	server.Start()
	defer server.Close()
	w := newTestWebhook(t, server.URL)
	for range 4 {
		var pushes sync.WaitGroup
		for range slots {
			pushes.Go(func() {
				if err := w.Push(t.Context(), testEvent()); err != nil {
					t.Error(err)
				}
			})
		}
		for range slots {
			<-arrived
		}
		for range slots {
			release <- struct{}{}
		}
		pushes.Wait()
	}
	// A connection may come back a moment after its push returned, and one or two be opened in its place.
	if n := connections.Load(); n > 2*slots {
		t.Errorf("%d connections for %d pushes at a time", n, slots)
	}
}

func TestDeliveredWhateverTheBodyDoesAfterStatus(t *testing.T) {
	t.Parallel()
	bodies := map[string]http.HandlerFunc{
		"dripping": func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				_, _ = io.WriteString(w, "x")
				w.(http.Flusher).Flush()
				select {
				case <-r.Context().Done():
				case <-time.After(10 * time.Millisecond):
				}
			}
		},
		"endless": func(w http.ResponseWriter, r *http.Request) {
			for sent := 0; ; {
				n, err := w.Write(make([]byte, 64<<10))
				if err != nil {
					return
				}
				if sent += n; sent > 64<<20 { // far more than sockets hold
					t.Error("an endless body is read on and on")
					panic(http.ErrAbortHandler)
				}
			}
		},
		"silent": func(w http.ResponseWriter, r *http.Request) {
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		},
		"cut": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "100")
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		},
		"no content":  func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) },
		"early hints": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusEarlyHints); w.WriteHeader(200) },
	}
	for name, handler := range bodies {
		for _, timeout := range []time.Duration{200 * time.Millisecond, time.Minute} {
			t.Run(name+" "+timeout.String(), func(t *testing.T) {
				t.Parallel()
				server := httptest.NewServer(handler)
				defer server.Close() // waits for the handler, thus for the connection's end
				w := newTestWebhook(t, server.URL, func(c *WebhookConfig) { c.Timeout = timeout })
				start := time.Now()
				if err := w.Push(t.Context(), testEvent()); err != nil {
					t.Error(err)
				}
				if took := time.Since(start); took > 10*time.Second {
					t.Errorf("the push took %v", took)
				}
			})
		}
	}
}

func TestTLSReceiverIsCheckedAndSpokenToOneConnectionAPush(t *testing.T) {
	t.Parallel()
	spoken := make(chan string, 1) // protocol and the client's address
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { spoken <- r.Proto + " " + r.RemoteAddr }))
	server.Config.ErrorLog = discardLog
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	w := newTestWebhook(t, server.URL)
	if err := w.Push(t.Context(), testEvent()); Class(err) != classNetwork || !isUnavailable(err) {
		t.Errorf("unknown certificate: %v", err)
	}
	w = newTestWebhook(t, server.URL)
	w.connections.transport.TLSClientConfig = &tls.Config{RootCAs: server.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs}
	first := ""
	for range 20 {
		if err := w.Push(t.Context(), testEvent()); err != nil {
			t.Fatalf("known certificate: %v", err)
		}
		got := <-spoken
		if !strings.HasPrefix(got, "HTTP/1.1 ") {
			t.Errorf("spoke %s", got)
		}
		if first = cmp.Or(first, got); got != first {
			t.Errorf("%s and %s: two connections for one push at a time", first, got)
		}
	}
}

// The time for a body counts from the status, and ends with that of the push.
func TestSilentBodyHoldsAPushForASecondAtMost(t *testing.T) {
	t.Parallel()
	tests := []struct{ timeout, answered, want time.Duration }{
		{15 * time.Second, 5 * time.Second, 6 * time.Second},
		{15 * time.Second, 14500 * time.Millisecond, 15 * time.Second},
		{300 * time.Millisecond, 0, 300 * time.Millisecond},
	}
	for _, tt := range tests {
		synctest.Test(t, func(t *testing.T) {
			w := newTestWebhook(t, "http://receiver", func(c *WebhookConfig) { c.Timeout = tt.timeout })
			w.connections.transport.DialContext = func(context.Context, string, string) (net.Conn, error) {
				near, far := net.Pipe()
				go func() {
					defer far.Close()
					request, err := http.ReadRequest(bufio.NewReader(far))
					if err != nil {
						return
					}
					_, _ = io.Copy(io.Discard, request.Body)
					time.Sleep(tt.answered)
					_, _ = io.WriteString(far, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n")
					_, _ = far.Read(make([]byte, 1)) // until the other side closes
				}()
				return near, nil
			}
			start := time.Now()
			if err := w.Push(t.Context(), testEvent()); err != nil {
				t.Error(err)
			}
			if took := time.Since(start); took != tt.want {
				t.Errorf("answered after %s of %s: the push took %s, want %s", tt.answered, tt.timeout, took, tt.want)
			}
		})
	}
}

func TestPushesGoThroughAProxyOverKeptConnections(t *testing.T) {
	t.Parallel()
	var connections atomic.Int32
	asked := make(chan string, 10)
	proxy := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		asked <- r.RequestURI + " " + r.Header.Get("Proxy-Authorization")
	}))
	proxy.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			connections.Add(1)
		}
	}
	proxy.Start()
	defer proxy.Close()
	through, err := url.Parse(strings.Replace(proxy.URL, "http://", "http://us:pw@", 1))
	if err != nil {
		t.Fatal(err)
	}
	w := newTestWebhook(t, "http://nowhere.invalid/in/{key}")
	w.connections.transport.Proxy = http.ProxyURL(through)
	for range 3 {
		if err := w.Push(t.Context(), testEvent()); err != nil {
			t.Fatal(err)
		}
		if got := <-asked; got != "http://nowhere.invalid/in/user-42 Basic dXM6cHc=" {
			t.Errorf("the proxy was asked for %s", got)
		}
	}
	if n := connections.Load(); n != 1 {
		t.Errorf("%d connections for one push at a time", n)
	}
}
