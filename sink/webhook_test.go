package sink

import (
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"sluice/pipeline"
)

var _ pipeline.Sink = (*Webhook)(nil)

func newTestWebhook(t *testing.T, url string, change ...func(*WebhookConfig)) *Webhook {
	t.Helper()
	cfg := WebhookConfig{URL: url, Timeout: 10 * time.Second, Concurrency: 8}
	for _, f := range change {
		f(&cfg)
	}
	w, err := NewWebhook(cfg, "sluice/test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	return w
}

func testEvent() *pipeline.Event {
	return &pipeline.Event{
		ID: "EVENTS:7", Key: "user-42", Subject: "events.user-42.created",
		Data: []byte(`{"a":1}`), Time: testNow, Cost: 1, Attempt: 1,
	}
}

// received is a request as it came over the wire.
type received struct {
	method, uri string
	header      http.Header
	body        []byte
}

// newReceiver starts a server that accepts everything and keeps what it got.
func newReceiver(t *testing.T) (*httptest.Server, chan received) {
	t.Helper()
	got := make(chan received, 100)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got <- received{r.Method, r.RequestURI, r.Header, body}
	}))
	t.Cleanup(server.Close)
	return server, got
}

func mustPush(t *testing.T, w *Webhook, ev *pipeline.Event, got chan received) received {
	t.Helper()
	if err := w.Push(t.Context(), ev); err != nil {
		t.Fatalf("push: %v", err)
	}
	return <-got
}

func TestPushCarriesBodyAndHeaders(t *testing.T) {
	t.Parallel()
	server, got := newReceiver(t)
	w := newTestWebhook(t, server.URL+"/in")
	ev := testEvent()
	ev.Key = "käy/%\n"
	ev.Subject = "events.käy.x y"
	ev.Attempt = 3
	r := mustPush(t, w, ev, got)

	want := map[string]string{
		"User-Agent":     "sluice/test",
		"Content-Length": "7",
		"Content-Type":   "application/json",
		"Webhook-Id":     "EVENTS:7",
		"Sluice-Key":     "k%C3%A4y/%25%0A",
		"Sluice-Subject": "events.k%C3%A4y.x%20y",
		"Sluice-Attempt": "3",
	}
	for name, value := range want {
		if r.header.Get(name) != value {
			t.Errorf("%s is %q, want %q", name, r.header.Get(name), value)
		}
	}
	allowed := append(slices.Collect(maps.Keys(want)), "Webhook-Timestamp")
	for name := range r.header {
		if !slices.Contains(allowed, name) {
			t.Errorf("unexpected header %s", name)
		}
	}
	if r.method != "POST" || r.uri != "/in" || string(r.body) != `{"a":1}` {
		t.Errorf("got %s %s %s", r.method, r.uri, r.body)
	}
}

func TestSignatureOfEverySecretVerifiesOverTheExactBytes(t *testing.T) {
	t.Parallel()
	server, got := newReceiver(t)
	secrets := []string{secretOf(24), secretOf(64)}
	w := newTestWebhook(t, server.URL, func(c *WebhookConfig) { c.Secrets = secrets })
	for _, body := range []string{`{"id":12345678901234567890,"a":"\u00e9"}`, "", " {\n}\r\n", "\x00\xff"} {
		ev := testEvent()
		ev.Data = []byte(body)
		before := time.Now().Truncate(time.Second)
		r := mustPush(t, w, ev, got)
		if string(r.body) != body {
			t.Errorf("body is %q, want %q", r.body, body)
		}
		signatures := strings.Split(r.header.Get("Webhook-Signature"), " ")
		if len(signatures) != 2 {
			t.Fatalf("signatures: %q", signatures)
		}
		for i, secret := range secrets {
			verifier, err := standardwebhooks.NewWebhook(secret)
			if err != nil {
				t.Fatal(err)
			}
			if err := verifier.Verify(r.body, r.header); err != nil {
				t.Errorf("body %q, secret %d: %v", body, i, err)
			}
			alone := r.header.Clone()
			alone.Set("Webhook-Signature", signatures[i])
			if err := verifier.Verify(r.body, alone); err != nil {
				t.Errorf("signature %d isn't by secret %d: %v", i, i, err)
			}
			if verifier.Verify(append(r.body, ' '), r.header) == nil {
				t.Error("a changed body verifies")
			}
		}
		seconds, err := strconv.ParseInt(r.header.Get("Webhook-Timestamp"), 10, 64)
		if at := time.Unix(seconds, 0); err != nil || at.Before(before) || at.After(time.Now()) {
			t.Errorf("timestamp %q isn't that of the attempt", r.header.Get("Webhook-Timestamp"))
		}
	}
}

func TestContentTypeIsTheProducersOrFollowsTheData(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		header pipeline.Header
		data   string
		want   string
	}{
		{"producer's, any case", pipeline.Header{"content-TYPE": {"text/csv; charset=utf-8"}}, `{}`, "text/csv; charset=utf-8"},
		{"JSON", nil, `[1, 2]`, "application/json"},
		{"not JSON", nil, `{`, "application/octet-stream"},
		{"empty", nil, ``, "application/octet-stream"},
		{"broken UTF-8", nil, "\"\xff\"", "application/octet-stream"},
		{"illegal", pipeline.Header{"Content-Type": {"text/csv\r\nX-Evil: 1"}}, `{}`, "application/json"},
		{"JSON behind a byte order mark", nil, "\uFEFF[1]", "application/json"},
		{"CloudEvent in binary mode", pipeline.Header{"ce-specversion": {"1.0"}, "ce-datacontenttype": {"text/csv"}}, `{}`, "text/csv"},
		{"producer's before the attribute", pipeline.Header{"ce-datacontenttype": {"text/csv"}, "content-type": {"text/x"}}, `{}`, "text/x"},
		{"CloudEvent in structured mode", nil, ` {"specversion":"1.0","id":"1","source":"/s","type":"t","data":{}}`, "application/cloudevents+json"},
		{"CloudEvent in structured mode behind a byte order mark", nil, "\uFEFF" + `{"specversion":"1.0","id":"1","source":"/s","type":"t"}`, "application/cloudevents+json"},
		{"producer's before the structured mode", pipeline.Header{"Content-Type": {"application/json"}}, `{"specversion":"1.0","id":"1","source":"/s","type":"t"}`, "application/json"},
		{"CloudEvent as the data of another", pipeline.Header{"ce-specversion": {"1.0"}}, `{"specversion":"1.0","id":"1","source":"/s","type":"t"}`, "application/json"},
		{"not quite a CloudEvent", nil, `{"specversion":"1.0","id":1,"source":"/s","type":"t"}`, "application/json"},
		{"a CloudEvent further in", nil, `[{"specversion":"1.0","id":"1","source":"/s","type":"t"}]`, "application/json"},
		{"blank", pipeline.Header{"Content-Type": {" "}}, `a,b`, "application/octet-stream"},
	}
	for _, tt := range tests {
		ev := testEvent()
		ev.Header, ev.Data = tt.header, []byte(tt.data)
		if got := contentType(ev); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

func TestOnlyCloudEventsAndTraceHeadersPassOn(t *testing.T) {
	t.Parallel()
	server, got := newReceiver(t)
	w := newTestWebhook(t, server.URL, func(c *WebhookConfig) { c.Secrets = []string{secretOf(32)} })
	ev := testEvent()
	ev.Header = pipeline.Header{
		"ce-type": {"a.b", "second"}, "CE-Source": {"/x"}, "ce-SOURCE": {"/later"}, "Ce-Naïve": {"x"}, "ce-a b": {"x"}, "Ce-": {"x"}, "ce-n:\r\nEvil": {"x"},
		"ce-evil": {"a\r\nX-Evil: 1"}, "ce-nul": {"a\x00b"}, "ce-mixed": {"a\nb", "good"}, "ce-none": {},
		"TraceParent": {"00-1-2-01"}, "tracestate": {"a=1", "b=2"}, "CONTENT-encoding": {"br", "gzip"}, "ce-datacontenttype": {"text/x"},
		"webhook-signature": {"v1,evil"}, " webhook-signature": {"v1,evil"}, "WEBHOOK-ID": {"evil"}, "Webhook-Timestamp": {"1"},
		"Authorization": {"Basic evil"}, "Host": {"evil"}, "Content-Length": {"1"}, "Transfer-Encoding": {"chunked"}, "Sluice-Key": {"evil"}, "sluice-attempt": {"9"},
		"Connection": {"close"}, "X-Other": {"x"}, "Cookie": {"x"}, "User-Agent": {"evil"}, "Nats-Msg-Id": {"x"},
	}
	r := mustPush(t, w, ev, got)
	want := map[string][]string{
		"Ce-Type": {"a.b"}, "Ce-Source": {"/x"}, "Ce-Mixed": {"good"}, "Traceparent": {"00-1-2-01"}, "Tracestate": {"a=1", "b=2"},
		"Content-Encoding": {"br", "gzip"}, "Content-Type": {"text/x"},
	}
	for name, values := range want {
		if !slices.Equal(r.header[name], values) {
			t.Errorf("%s is %q, want %q", name, r.header[name], values)
		}
	}
	ours := []string{"User-Agent", "Content-Length", "Content-Type", "Webhook-Id", "Webhook-Timestamp", "Webhook-Signature", "Sluice-Key", "Sluice-Subject", "Sluice-Attempt"}
	for name, values := range r.header {
		if want[name] == nil && !slices.Contains(ours, name) {
			t.Errorf("%s passed on", name)
		}
		if strings.Contains(strings.Join(values, " "), "evil") {
			t.Errorf("%s is %q", name, values)
		}
	}
	verifier, _ := standardwebhooks.NewWebhook(secretOf(32))
	if err := verifier.Verify(r.body, r.header); err != nil {
		t.Error(err)
	}
}

func TestKeyInURLIsEscapedForItsPlace(t *testing.T) {
	t.Parallel()
	server, got := newReceiver(t)
	tests := []struct{ template, key, want string }{
		{"/u/in?k={key}&k={key}", "a/b", "/u/in?k=a%2Fb&k=a%2Fb"},
		{"/u/../in?k={key}", `..%2F\\`, "/u/../in?k=..%252F%5C%5C"},
		{"/u/{key}.json", "..", "/u/...json"},
		{"/u/{key}", "a..b", "/u/a..b"},
		{"/u/{key}?k={key}", "a b", "/u/a%20b?k=a+b"},
		{"/u/{key}?k={key}", "?x=1&y#z", "/u/%3Fx=1&y%23z?k=%3Fx%3D1%26y%23z"},
		{"/u/{key}?k={key}", "😀", "/u/%F0%9F%98%80?k=%F0%9F%98%80"},
		{"/u/{key}", "...", "/u/..."},
		{"/u/{key}/%2F/%2e", "..a;b", "/u/..a%3Bb/%2F/%2e"},
		{"/u/%2F{key}", ".a", "/u/%2F.a"},
		{"/u/{key}", "100%", "/u/100%25"},
		{"/u/{key}?k={key}", "%41%", "/u/%2541%25?k=%2541%25"},
		{"/u/{key}?k={key}", "\r\n\x00\xff", "/u/%0D%0A%00%FF?k=%0D%0A%00%FF"},
		{"/u/{key}", "{key}", "/u/%7Bkey%7D"},
		{"/ü x/%2F/{key}?q=ü x%&{key}", "a:b", "/%C3%BC%20x/%2F/a:b?q=%C3%BC%20x%25&a%3Ab"},
		{"/a%2Fb//..?x={key}", "k", "/a%2Fb//..?x=k"},
		{"?{key}", "k", "/?k"},
		{"/fixed/%2e/ü?a=%41 ", "k", "/fixed/%2e/%C3%BC?a=%41%20"},
		{"", "k", "/"},
	}
	for _, tt := range tests {
		ev := testEvent()
		ev.Key = tt.key
		if r := mustPush(t, newTestWebhook(t, server.URL+tt.template), ev, got); r.uri != tt.want {
			t.Errorf("%s with %q: the request is for %s, want %s", tt.template, tt.key, r.uri, tt.want)
		}
	}
}

// A URL parser of browsers' kind takes /hooks/%2E%2E/push for /push, and many a proxy decodes a path before it walks it.
func TestKeyThatAimsAtAnotherPathIsABadKey(t *testing.T) {
	t.Parallel()
	server, got := newReceiver(t)
	tests := []struct {
		template string
		keys     []string
	}{
		{"/hooks/{key}/push", []string{
			".", "..", "%2e", "%2E%2e", ".%2e", "%252e%252E", "%25252e.", "%%32e.", "..;", "..;a=b", "..%3b", "..\x00a", ". ", "%20..", ".\t.", ".%0a", "\r\n..",
			"/", `\`, "a/b", "/..", "..%2f..", "%2fa", "%252F", "%5c", "%255Ca", "b/", "../../push", "%2%66",
		}},
		{"/{key}{key}/x", []string{".", "%2e"}},
		{"/.{key}/x", []string{".", "%2e", ";"}},
		{"/%2E{key}/x", []string{".", "%2e"}},
		{"/%252e{key}/x", []string{"."}},
		{"/%2F{key}/%2F", []string{"..%2f"}},
		{"/{key}", []string{"..", "/"}},
		{"/a/{key}?k={key}", []string{"..", "a/b"}},
	}
	for _, tt := range tests {
		w := newTestWebhook(t, server.URL+tt.template)
		for _, key := range tt.keys {
			ev := testEvent()
			ev.Key = key
			err := w.Push(t.Context(), ev)
			if !sameMark(err, func(inner error) error { return pipeline.Undeliverable(pipeline.BadKey, inner) }) || Class(err) != "other" {
				t.Errorf("%s with %q: %#v", tt.template, key, err)
			} else if !strings.Contains(err.Error(), "SLUICE_WEBHOOK_URL") {
				t.Errorf("%s with %q: the text names no setting: %v", tt.template, key, err)
			}
		}
	}
	if len(got) > 0 {
		t.Errorf("sent nevertheless: %s", (<-got).uri)
	}
}

func TestUserOfURLIsSentAsBasicAuthentication(t *testing.T) {
	t.Parallel()
	server, got := newReceiver(t)
	w := newTestWebhook(t, strings.Replace(server.URL, "http://", "http://us%20er:p%40ss@", 1))
	r := mustPush(t, w, testEvent(), got)
	user, password, ok := (&http.Request{Header: r.header}).BasicAuth()
	if !ok || user != "us er" || password != "p@ss" {
		t.Errorf("got %q %q %v", user, password, ok)
	}
}
