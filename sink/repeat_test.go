package sink

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// moody is a receiver that acts on each request by its number within its connection, from 1. It returns false to close the
// connection.
type moody struct {
	url         string
	requests    atomic.Int32
	connections atomic.Int32
}

func newMoody(t *testing.T, act func(conn *net.TCPConn, n int) bool) *moody {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	m := &moody{url: "http://" + listener.Addr().String()}
	var serving sync.WaitGroup
	t.Cleanup(func() {
		_ = listener.Close()
		serving.Wait()
	})
	serve := func(conn *net.TCPConn) {
		defer conn.Close()
		from := bufio.NewReader(conn)
		for n := 1; ; n++ {
			request, err := http.ReadRequest(from)
			if err != nil {
				return
			}
			_, _ = io.Copy(io.Discard, request.Body)
			m.requests.Add(1)
			if !act(conn, n) {
				return
			}
		}
	}
	serving.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			m.connections.Add(1)
			serving.Go(func() { serve(conn.(*net.TCPConn)) })
		}
	})
	return m
}

func say(conn net.Conn, answer string) bool {
	_, err := io.WriteString(conn, answer)
	return err == nil
}

const ok = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

func TestConnectionThatEndsForItsAgeCostsNoAttempt(t *testing.T) {
	t.Parallel()
	endings := map[string]func(conn *net.TCPConn) bool{
		"closed": func(*net.TCPConn) bool { return false },
		"reset": func(conn *net.TCPConn) bool {
			_ = conn.SetLinger(0)
			return false
		},
	}
	for name, end := range endings {
		for _, answers := range []int{1, 20} {
			t.Run(fmt.Sprint(name, " after ", answers), func(t *testing.T) {
				t.Parallel()
				m := newMoody(t, func(conn *net.TCPConn, n int) bool {
					if n > answers {
						return end(conn)
					}
					return say(conn, ok)
				})
				w := newTestWebhook(t, m.url)
				const pushes = 100
				for range pushes {
					if err := w.Push(t.Context(), testEvent()); err != nil {
						t.Fatal(err)
					}
				}
				if n, most := int(m.requests.Load()), pushes+pushes/answers; n > most {
					t.Errorf("%d requests, want at most %d", n, most)
				}
			})
		}
	}
}

// A receiver that says when it closes, and one that closes while nothing is under way, see no request twice.
func TestConnectionThatEndsBetweenPushesIsNoTrouble(t *testing.T) {
	t.Parallel()
	for name, act := range map[string]func(conn *net.TCPConn, n int) bool{
		"told": func(conn *net.TCPConn, _ int) bool {
			_ = say(conn, "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
			return false
		},
		"untold": func(conn *net.TCPConn, _ int) bool {
			_ = say(conn, ok)
			return false
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMoody(t, act)
			w := newTestWebhook(t, m.url)
			for range 100 {
				if err := w.Push(t.Context(), testEvent()); err != nil {
					t.Fatal(err)
				}
			}
			if n := m.requests.Load(); n != 100 {
				t.Errorf("%d requests were read for 100 pushes", n)
			}
		})
	}
}

// Some proxies say 408 to a connection that was idle for too long, which is no word on the event.
func TestTimeoutOfAKeptConnectionCostsNoAttempt(t *testing.T) {
	t.Parallel()
	m := newMoody(t, func(conn *net.TCPConn, n int) bool {
		if n == 2 {
			_ = say(conn, "HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
			return false
		}
		return say(conn, ok)
	})
	w := newTestWebhook(t, m.url)
	for range 10 {
		if err := w.Push(t.Context(), testEvent()); err != nil {
			t.Fatal(err)
		}
	}
}

func TestPushIsRepeatedOnceAtMostAndOnlyForAKeptConnection(t *testing.T) {
	t.Parallel()
	var silent atomic.Bool
	m := newMoody(t, func(conn *net.TCPConn, _ int) bool { return !silent.Load() && say(conn, ok) })
	w := newTestWebhook(t, m.url)
	if err := w.Push(t.Context(), testEvent()); err != nil {
		t.Fatal(err)
	}
	silent.Store(true)
	for _, want := range []int32{3, 4, 5} { // the second push twice, the others over new connections only
		if err := w.Push(t.Context(), testEvent()); !isUnanswered(err) || Class(err) != classNetwork {
			t.Errorf("got %#v", err)
		}
		if n := m.requests.Load(); n != want {
			t.Fatalf("%d requests, want %d", n, want)
		}
	}
}

func TestPushIsNotRepeatedOnceAnAnswerBegan(t *testing.T) {
	t.Parallel()
	for name, second := range map[string]func(conn net.Conn) bool{
		"the first byte": func(conn net.Conn) bool { _ = say(conn, "H"); return false },
		"the head cut":   func(conn net.Conn) bool { _ = say(conn, "HTTP/1.1 200 OK\r\nX-"); return false },
		"no HTTP":        func(conn net.Conn) bool { _ = say(conn, "SSH-2.0-OpenSSH_9.2\r\n\r\n"); return false },
		"only a hint":    func(conn net.Conn) bool { _ = say(conn, "HTTP/1.1 103 Early Hints\r\n\r\n"); return false },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMoody(t, func(conn *net.TCPConn, n int) bool {
				if n == 2 {
					return second(conn)
				}
				return say(conn, ok)
			})
			w := newTestWebhook(t, m.url)
			if err := w.Push(t.Context(), testEvent()); err != nil {
				t.Fatal(err)
			}
			if err := w.Push(t.Context(), testEvent()); !isUnanswered(err) || Class(err) != classNetwork {
				t.Errorf("got %#v", err)
			}
			if n := m.requests.Load(); n != 2 {
				t.Errorf("%d requests for two pushes", n)
			}
		})
	}
}

// Whoever hangs has used up the time of the attempt.
func TestPushThatHangsOnAKeptConnectionIsNotRepeated(t *testing.T) {
	t.Parallel()
	m := newMoody(t, func(conn *net.TCPConn, n int) bool {
		if n == 2 {
			_, _ = conn.Read(make([]byte, 1)) // until the other side closes
			return false
		}
		return say(conn, ok)
	})
	const timeout = 200 * time.Millisecond
	w := newTestWebhook(t, m.url, func(c *WebhookConfig) { c.Timeout = timeout })
	if err := w.Push(t.Context(), testEvent()); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	if err := w.Push(t.Context(), testEvent()); Class(err) != classTimeout {
		t.Errorf("got %#v", err)
	}
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("the push took %s of %s", took, timeout)
	}
	if n := m.requests.Load(); n != 2 {
		t.Errorf("%d requests for two pushes", n)
	}
}

// What comes behind an answer would be taken for the next event's: here as a failure of events that are answered 200.
func TestRestOfAnAnswerIsNeverTheNextEventsAnswer(t *testing.T) {
	t.Parallel()
	const rest = "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n"
	for name, answers := range map[string][]string{
		"no content, length told":          {fmt.Sprintf("HTTP/1.1 204 No Content\r\nContent-Length: %d\r\n\r\n%s", len(rest), rest)},
		"no content, length told, apart":   {fmt.Sprintf("HTTP/1.1 204 No Content\r\nContent-Length: %d\r\n\r\n", len(rest)), rest},
		"no content, chunked":              {"HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n", rest},
		"no content, nothing told":         {"HTTP/1.1 204 No Content\r\n\r\n" + rest},
		"no content, nothing told, apart":  {"HTTP/1.1 204 No Content\r\n\r\n", "thanks"},
		"too long a body":                  {ok + rest},
		"a body although its length is 0":  {"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n" + rest},
		"more behind a chunked body's end": {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n" + rest},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMoody(t, func(conn *net.TCPConn, n int) bool {
				for _, part := range answers {
					if !say(conn, part) {
						return false
					}
				}
				return true
			})
			w := newTestWebhook(t, m.url)
			var failed atomic.Int32
			var pushes sync.WaitGroup
			for range 4 {
				pushes.Go(func() {
					for range 50 {
						if w.Push(t.Context(), testEvent()) != nil {
							failed.Add(1)
						}
					}
				})
			}
			pushes.Wait()
			if n := failed.Load(); n > 0 {
				t.Errorf("%d of 200 pushes failed that were answered well", n)
			}
		})
	}
}
