package sink

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unicode"

	"sluice/pipeline"
)

var discardLog = log.New(io.Discard, "", 0)

// The marks of package pipeline can be compared, not read, from here: two marked errors are the same if all their
// fields are.
func isPermanent(err error) bool   { return sameMark(err, pipeline.Permanent) }
func isUnavailable(err error) bool { return sameMark(err, pipeline.Unavailable) }

func isUnanswered(err error) bool { return sameMark(err, pipeline.Unanswered) }

func pausesFor(err error, d time.Duration) bool {
	return sameMark(err, func(inner error) error { return pipeline.RetryAfter(inner, d) })
}

func sameMark(err error, mark func(error) error) bool {
	return err != nil && reflect.DeepEqual(err, mark(errors.Unwrap(err)))
}

func TestStatusSaysHowTheEventGoesOn(t *testing.T) {
	t.Parallel()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var status int
		_, _ = fmt.Sscanf(r.URL.Path, "/%d", &status)
		w.Header()["Retry-After"] = r.URL.Query()["after"]
		w.WriteHeader(status)
	}))
	server.Config.ErrorLog = discardLog
	server.Start()
	defer server.Close()

	const (
		delivered = "delivered"
		retried   = "retried"
		refused   = "permanent"
		away      = "unavailable"
		paused    = "paused for 120s"
		pausedDay = "paused for a day"
	)
	tests := []struct {
		status int
		after  string
		class  string
		want   string
	}{
		{200, "", "2xx", delivered}, {201, "", "2xx", delivered}, {202, "120", "2xx", delivered}, {204, "", "2xx", delivered}, {299, "", "2xx", delivered},
		{300, "", "3xx", refused}, {301, "", "3xx", refused}, {302, "120", "3xx", refused}, {304, "", "3xx", refused}, {307, "", "3xx", refused}, {308, "", "3xx", refused},
		{400, "", "4xx", refused}, {401, "", "4xx", refused}, {404, "120", "4xx", refused}, {409, "", "4xx", refused},
		{410, "", "4xx", refused}, {413, "", "4xx", refused}, {422, "", "4xx", refused}, {499, "", "4xx", refused},
		{408, "", "4xx", retried}, {425, "120", "4xx", retried},
		{429, "", "429", away}, {429, "120", "429", paused}, {429, "-5", "429", away}, {429, "1e300", "429", away}, {429, "120.0", "429", paused}, {429, "119.5", "429", paused}, {503, "5,120", "5xx", paused}, {429, "999999", "429", pausedDay},
		{500, "", "5xx", retried}, {500, "120", "5xx", retried}, {502, "", "5xx", retried}, {504, "", "5xx", retried}, {599, "", "5xx", retried},
		{503, "", "5xx", away}, {503, "120", "5xx", paused}, {503, "abc", "5xx", away}, {503, "0", "5xx", away},
		{600, "", "other", retried}, {999, "", "other", retried},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprintf("%d %s", tt.status, tt.after), func(t *testing.T) {
			target := fmt.Sprintf("%s/%d", server.URL, tt.status)
			if tt.after != "" {
				target += "?after=" + tt.after
			}
			err := newTestWebhook(t, target).Push(t.Context(), testEvent())
			var got string
			switch _, plain := err.(*failure); {
			case err == nil:
				got = delivered
			case plain:
				got = retried
			case isPermanent(err):
				got = refused
			case isUnavailable(err):
				got = away
			case pausesFor(err, 2*time.Minute):
				got = paused
			case pausesFor(err, 24*time.Hour):
				got = pausedDay
			}
			if got != tt.want {
				t.Errorf("got %s (%#v), want %s", got, err, tt.want)
			}
			if Class(err) != tt.class {
				t.Errorf("class %s, want %s", Class(err), tt.class)
			}
			if err != nil && !strings.Contains(err.Error(), fmt.Sprint(" answered ", tt.status)) {
				t.Errorf("the text doesn't tell the status: %v", err)
			}
		})
	}
}

func TestRetryAfterDateIsReadByTheReceiversClock(t *testing.T) {
	t.Parallel()
	for _, off := range []time.Duration{-time.Hour, time.Hour} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			now := time.Now().Add(off).UTC()
			w.Header().Set("Date", now.Format(http.TimeFormat))
			w.Header().Set("Retry-After", now.Add(2*time.Minute).Format(http.TimeFormat))
			w.WriteHeader(http.StatusServiceUnavailable)
		}))
		if err := newTestWebhook(t, server.URL).Push(t.Context(), testEvent()); !pausesFor(err, 2*time.Minute) {
			t.Errorf("a receiver whose clock is %s off and that asks for 2 min: %#v", off, err)
		}
		server.Close()
	}
}

func TestClassesAreClosed(t *testing.T) {
	t.Parallel()
	want := []string{"2xx", "3xx", "4xx", "5xx", "429", "timeout", "network", "cancelled", "other"}
	if !slices.Equal(Classes, want) {
		t.Errorf("Classes = %q", Classes)
	}
	for status := range 1000 {
		if status/100 != 2 && !slices.Contains(Classes, classOf(status)) {
			t.Errorf("classOf(%d) = %q", status, classOf(status))
		}
	}
	if Class(nil) != "2xx" || Class(errors.New("x")) != "other" {
		t.Error("nil is delivered, and what isn't of this package is other")
	}
	if got := Class(fmt.Errorf("pushing: %w", pipeline.Unavailable(&failure{class: classTimeout}))); got != "timeout" {
		t.Errorf("wrapped: %s", got)
	}
}

func TestRedirectMakesNoRequestToItsTarget(t *testing.T) {
	t.Parallel()
	var followed atomic.Int32
	target := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { followed.Add(1) }))
	defer target.Close()
	for _, status := range []int{301, 302, 303, 307, 308} {
		server := httptest.NewServer(http.RedirectHandler(target.URL+"/secret-place", status))
		err := newTestWebhook(t, server.URL).Push(t.Context(), testEvent())
		server.Close()
		if !isPermanent(err) || !strings.HasSuffix(err.Error(), ": redirect not followed") {
			t.Errorf("%d: %v", status, err)
		}
	}
	if followed.Load() > 0 {
		t.Error("a redirect was followed")
	}
}

func TestHangingReceiverEndsAtTheTimeout(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	}))
	defer server.Close()
	w := newTestWebhook(t, server.URL, func(c *WebhookConfig) { c.Timeout = 50 * time.Millisecond })
	start := time.Now()
	err := w.Push(t.Context(), testEvent())
	if took := time.Since(start); took < 50*time.Millisecond || took > 4*time.Second {
		t.Errorf("the push took %v", took)
	}
	if !isUnanswered(err) || Class(err) != "timeout" || !strings.Contains(err.Error(), "no answer within 50ms") {
		t.Errorf("got %#v", err)
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		t.Error("the receiver's slowness looks like the end of the caller's context")
	}
}

func TestShutdownIsNeitherPermanentNorTheReceiversFault(t *testing.T) {
	t.Parallel()
	arrived := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		close(arrived)
		<-r.Context().Done()
	}))
	defer server.Close()
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-arrived; cancel() }()
	w := newTestWebhook(t, server.URL)
	for _, when := range []string{"during", "before"} {
		err := w.Push(ctx, testEvent())
		if _, plain := err.(*failure); !plain || !errors.Is(err, context.Canceled) || Class(err) != "cancelled" {
			t.Errorf("cancelled %s the push: %#v", when, err)
		}
	}
}

// rawReceiver answers every request with the bytes of answer, and cuts the connection if cut is set.
func rawReceiver(t *testing.T, answer string, cut bool) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				request, err := http.ReadRequest(bufio.NewReader(conn))
				if err != nil {
					return
				}
				_, _ = io.Copy(io.Discard, request.Body)
				_, _ = io.WriteString(conn, answer)
				if cut {
					_ = conn.(*net.TCPConn).SetLinger(0) // the close becomes a reset
					return
				}
				_, _ = io.Copy(io.Discard, conn) // until the other side closes
			}()
		}
	}()
	return "http://" + listener.Addr().String()
}

func TestNetworkErrorsConcernTheReceiver(t *testing.T) {
	t.Parallel()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = closed.Close()
	tests := []struct {
		name, url string
		sent      bool // so that the event may be the trouble
	}{
		{"refused", "http://" + closed.Addr().String(), false},
		{"reset", rawReceiver(t, "", true), true},
		{"reset in the headers", rawReceiver(t, "HTTP/1.1 200 OK\r\nX-", true), true},
		{"no HTTP", rawReceiver(t, "SSH-2.0-OpenSSH_9.2\r\n\r\n", false), true},
		{"endless headers", rawReceiver(t, "HTTP/1.1 200 OK\r\n"+strings.Repeat("X-A: "+strings.Repeat("x", 1000)+"\r\n", 200), false), true},
		{"no such host", "http://nowhere.invalid", false},
		{"not TLS", strings.Replace(rawReceiver(t, "HTTP/1.1 200 OK\r\n\r\n", true), "http:", "https:", 1), false},
	}
	for _, tt := range tests {
		err := newTestWebhook(t, tt.url+"/in?q=1").Push(t.Context(), testEvent())
		if isUnavailable(err) == tt.sent || isUnanswered(err) != tt.sent || Class(err) != "network" || strings.Contains(err.Error(), "/in") {
			t.Errorf("%s: %#v", tt.name, err)
		}
		if tt.name == "refused" && !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("the cause is lost: %v", err)
		}
	}
}

// The body of such an answer is the bare connection: reading it would never end.
func TestSwitchingProtocolsUnaskedIsNoDelivery(t *testing.T) {
	t.Parallel()
	answer := "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n"
	err := newTestWebhook(t, rawReceiver(t, answer, false)).Push(t.Context(), testEvent())
	if _, plain := err.(*failure); !plain || Class(err) != "other" {
		t.Errorf("got %#v", err)
	}
}

func TestErrorTextHoldsTheStartOfTheAnswer(t *testing.T) {
	t.Parallel()
	tests := []struct{ body, want string }{
		{"", "400 Bad Request"},
		{"no\r\n\tsuch\x00 \x1b[31mfield\xff ", "400 Bad Request: no such [31mfield"},
		{strings.Repeat("x", 300), "400 Bad Request: " + strings.Repeat("x", 200)},
		{strings.Repeat("é", 300) + "x", "400 Bad Request: " + strings.Repeat("é", 100)},
		{"x" + strings.Repeat("é", 300), "400 Bad Request: x" + strings.Repeat("é", 99)},
	}
	for _, tt := range tests {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusBadRequest)
			_, _ = io.WriteString(w, tt.body)
		}))
		err := newTestWebhook(t, server.URL).Push(t.Context(), testEvent())
		server.Close()
		want := strings.TrimPrefix(server.URL, "http://") + " answered " + tt.want
		if err == nil || err.Error() != want {
			t.Errorf("got %v\nwant %s", err, want)
		}
		if strings.ContainsFunc(err.Error(), func(r rune) bool { return !unicode.IsPrint(r) }) {
			t.Errorf("unprintable: %q", err)
		}
	}
}

func TestErrorTextsHoldNoSecrets(t *testing.T) {
	t.Parallel()
	// A receiver that repeats all that it was sent.
	echo := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusNotFound)
		user, password, _ := r.BasicAuth()
		fmt.Fprintf(w, "can't POST %s for %s, %s:%s, %s", r.RequestURI, r.Header.Get("Authorization"), user, password, r.Header.Get("Sluice-Key"))
	}))
	defer echo.Close()
	hang := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	}))
	defer hang.Close()
	urls := []string{
		echo.URL, hang.URL, rawReceiver(t, "", true),
		rawReceiver(t, "user-42=querytoken\r\n\r\n", false),
		rawReceiver(t, "HTTP/1.1 503 no\r\nContent-Length: 20\r\n\r\nuser%2042 querytoken", false),
	}
	for _, to := range urls {
		to = strings.Replace(to, "http://", "http://someone:hunter2@", 1) + "/p/{key}?token=querytoken&user={key}"
		w := newTestWebhook(t, to, func(c *WebhookConfig) { c.Secrets = []string{secretOf(32)}; c.Timeout = 300 * time.Millisecond })
		for _, key := range []string{"user-42", "user 42", "ü:x"} {
			ev := testEvent()
			ev.Key = key
			err := w.Push(t.Context(), ev)
			if err == nil {
				t.Fatal("delivered")
			}
			for _, secret := range []string{"someone", "hunter2", "c29tZW9uZTpodW50ZXIy", "querytoken", key, url.PathEscape(key), url.QueryEscape(key), secretOf(32), secretOf(32)[6:]} {
				if strings.Contains(err.Error(), secret) {
					t.Errorf("%q is in %q", secret, err)
				}
			}
			if !strings.Contains(err.Error(), "127.0.0.1:") {
				t.Errorf("no host in %q", err)
			}
		}
	}
}

func TestHiddenWordsStandAlone(t *testing.T) {
	t.Parallel()
	tests := []struct{ text, word, want string }{
		{"user 1 of 111", "1", "user [hidden] of 111"},
		{"1", "1", "[hidden]"},
		{"a1 1a é1 (1)", "1", "a1 1a é[hidden] ([hidden])"},
		{"/a/b/c", "/b", "/a[hidden]/c"},
		{"aab ab", "ab", "aab [hidden]"},
	}
	for _, tt := range tests {
		if got := hideWord(tt.text, tt.word); got != tt.want {
			t.Errorf("hideWord(%q, %q) = %q, want %q", tt.text, tt.word, got, tt.want)
		}
	}
}

func TestLongestWordIsHiddenFirst(t *testing.T) {
	t.Parallel()
	w := newTestWebhook(t, "http://ann:ann-pass@localhost")
	if got := w.hide("ann-pass-key ann-pass ann", "ann-pass-key", &url.URL{}); got != "[hidden] [hidden] [hidden]" {
		t.Errorf("got %s", got)
	}
}

func TestIllegalIDIsRefusedInsteadOfRetriedForEver(t *testing.T) {
	t.Parallel()
	ev := testEvent()
	ev.ID = "a\r\nb"
	err := newTestWebhook(t, "http://localhost").Push(t.Context(), ev)
	if !sameMark(err, func(inner error) error { return pipeline.Undeliverable(pipeline.Rejected, inner) }) {
		t.Errorf("got %#v", err)
	}
}
