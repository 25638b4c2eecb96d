// Package cloudevents sends CloudEvents with the official SDK for Go and receives them with it, with sluice in between. It is a
// module of its own, since nothing else needs the SDK.
package cloudevents

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"testing"
	"time"

	natsce "github.com/cloudevents/sdk-go/protocol/nats_jetstream/v2"
	"github.com/cloudevents/sdk-go/v2/binding"
	"github.com/cloudevents/sdk-go/v2/event"
	httpce "github.com/cloudevents/sdk-go/v2/protocol/http"

	"sluice/integration/testenv"
	"sluice/pipeline"
	"sluice/pipeline/stream"
	"sluice/sink"
)

// way is from the SDK's JetStream sender through sluice's source and webhook to the SDK's HTTP receiver.
type way struct {
	t       *testing.T
	sender  *natsce.Sender
	source  *stream.Source
	webhook *sink.Webhook
	arrived chan arrival
}

type arrival struct {
	event    *event.Event
	err      error
	encoding binding.Encoding
	header   http.Header
}

func newWay(t *testing.T) *way {
	server := testenv.NATS(t)
	cfg := stream.Config{
		Name: "sluice", Stream: "EVENTS", Subjects: []string{"events.>"}, Consumer: "sluice", Setup: stream.SetupAll, Replicas: 1,
		LanesMaxBytes: 1 << 20, DLQMaxBytes: 1 << 20,
	}
	if _, err := stream.Setup(t.Context(), server.JetStream(), cfg); err != nil {
		t.Fatal(err)
	}
	sender, err := natsce.NewSenderFromConn(server.Conn(), "EVENTS", "events.alice", nil)
	if err != nil {
		t.Fatal(err)
	}
	source, err := stream.OpenSource(t.Context(), server.JetStream(), cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = source.Close(context.Background()) })
	w := &way{t: t, sender: sender, source: source, arrived: make(chan arrival, 1)}
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		message := httpce.NewMessageFromHttpRequest(r)
		got := arrival{encoding: message.ReadEncoding(), header: r.Header}
		got.event, got.err = binding.ToEvent(r.Context(), message)
		w.arrived <- got
	}))
	t.Cleanup(receiver.Close)
	w.webhook, err = sink.NewWebhook(sink.WebhookConfig{URL: receiver.URL, Timeout: 10 * time.Second, Concurrency: 1}, "test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.webhook.Close)
	return w
}

// send brings an event from one end to the other. headers are added as a producer's own.
func (w *way) send(ctx context.Context, sent binding.Message, headers map[string]string) arrival {
	w.t.Helper()
	if err := w.sender.Send(ctx, sent); err != nil {
		w.t.Fatal(err)
	}
	d, err := w.source.Next(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	d.Ack()
	ev := *d.Event()
	ev.Key, ev.Attempt = "alice", 1
	if ev.Header == nil {
		ev.Header = pipeline.Header{}
	}
	for name, value := range headers {
		ev.Header[name] = []string{value}
	}
	if err := w.webhook.Push(w.t.Context(), &ev); err != nil {
		w.t.Fatal(err)
	}
	return <-w.arrived
}

// decoded undoes the percent-encoding of the HTTP binding, which the SDK leaves to its user.
func decoded(t *testing.T, e *event.Event) event.Event {
	t.Helper()
	plain := func(s string) string {
		got, err := url.PathUnescape(s)
		if err != nil {
			t.Errorf("attribute %q: %v", s, err)
		}
		return got
	}
	out := e.Clone()
	out.SetSubject(plain(e.Subject()))
	out.SetType(plain(e.Type()))
	for name, value := range e.Extensions() {
		if s, ok := value.(string); ok {
			out.SetExtension(name, plain(s))
		}
	}
	return out
}

func TestEventsOfTheSDKArriveAtTheSDKAsTheyWereSent(t *testing.T) {
	w := newWay(t)
	for name, data := range map[string]struct {
		contentType string
		data        any
	}{
		"JSON": {"application/json", map[string]any{"n": 1, "s": "é"}}, "JSON with a charset": {"application/json; charset=utf-8", []int{1, 2}},
		"XML": {"text/xml", []byte("<a/>")}, "a format of its own": {"application/vnd.shop.order+json", []byte(`{"a":1}`)},
		"text that looks like JSON": {"text/plain", []byte("17")}, "bytes": {"image/png", []byte("\x89PNG\x00\xff")},
	} {
		sent := event.New()
		sent.SetID("order-17")
		sent.SetSource("/shop")
		sent.SetType("order.created")
		sent.SetSubject(`größe "L" 100% ` + name)
		sent.SetTime(time.Date(2026, 1, 31, 12, 0, 0, 500, time.UTC))
		sent.SetDataSchema("https://example.com/schema?a=b%20c")
		sent.SetExtension("note", `naïve "quoted" 50%25`)
		sent.SetExtension("plain", "a/b:c")
		sent.SetExtension("count", "5")
		if err := sent.SetData(data.contentType, data.data); err != nil {
			t.Fatal(err)
		}
		for mode, ctx := range map[binding.Encoding]context.Context{
			binding.EncodingBinary:     binding.WithForceBinary(t.Context()),
			binding.EncodingStructured: binding.WithForceStructured(t.Context()),
		} {
			got := w.send(ctx, binding.ToMessage(&sent), nil)
			if got.err != nil || got.encoding != mode {
				t.Errorf("%s, %s: read as %s, %v\n%v", name, mode, got.encoding, got.err, got.header)
				continue
			}
			read := *got.event
			if mode == binding.EncodingBinary {
				read = decoded(t, got.event)
				if own := got.header["Ce-Datacontenttype"]; own != nil {
					t.Errorf("%s: HTTP has no header Ce-Datacontenttype, got %q", name, own)
				}
			}
			if !reflect.DeepEqual(read.Context, sent.Context) || string(read.Data()) != string(sent.Data()) {
				t.Errorf("%s, %s: sent\n%s\nreceived\n%s\nheaders %v", name, mode, sent, read, got.header)
			}
		}
	}
}

func TestContentTypeAndEncodingOfTheProducerHoldBesideAttributes(t *testing.T) {
	w := newWay(t)
	sent := event.New()
	sent.SetID("1")
	sent.SetSource("/shop")
	sent.SetType("t")
	if err := sent.SetData("application/json", []byte("\x1f\x8bpacked")); err != nil {
		t.Fatal(err)
	}
	got := w.send(binding.WithForceBinary(t.Context()), binding.ToMessage(&sent), map[string]string{"content-encoding": "gzip"})
	if got.err != nil || got.header.Get("Content-Encoding") != "gzip" || got.event.DataContentType() != "application/json" {
		t.Errorf("%v, %v", got.header, got.err)
	}
	got = w.send(binding.WithForceBinary(t.Context()), binding.ToMessage(&sent), map[string]string{"content-type": "text/x"})
	if got.err != nil || got.event.DataContentType() != "text/x" {
		t.Errorf("%v, %v", got.header, got.err)
	}
}
