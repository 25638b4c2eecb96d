package integration

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"sluice/integration/testenv"
	"sluice/limiter"
	"sluice/limiter/redisstore"
	"sluice/pipeline"
	"sluice/pipeline/metrics"
	"sluice/pipeline/stream"
	"sluice/sink"
)

// countingSink delivers everything and says when it has had n events.
type countingSink struct {
	n    int64
	seen atomic.Int64
	all  chan struct{}
}

func (*countingSink) Name() string { return "count" }

func (s *countingSink) Push(context.Context, *pipeline.Event) error {
	if s.seen.Add(1) == s.n {
		close(s.all)
	}
	return nil
}

// hatch is what a benchmark measures: a worker in this process over real servers, with events ready in the source.
type hatch struct {
	b   *testing.B
	nc  *nats.Conn
	js  jetstream.JetStream
	cfg stream.Config
	rdb *testenv.RedisServer
}

func newHatch(b *testing.B, n, keys int) *hatch {
	b.Helper()
	server, redis := testenv.NATS(b), testenv.Redis(b)
	log := slog.New(slog.DiscardHandler)
	h := &hatch{b: b, rdb: redis, cfg: stream.Config{
		URLs: server.URL(), Name: "sluice", Stream: "EVENTS", Subjects: []string{"events.>"}, Setup: stream.SetupAll,
		Replicas: 1, LanesMaxBytes: 8 << 30, DLQMaxBytes: 1 << 30,
	}}
	var err error
	if h.nc, err = stream.Connect(b.Context(), h.cfg, log); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(h.nc.Close)
	if h.js, err = jetstream.New(h.nc, jetstream.WithPublishAsyncMaxPending(4000)); err != nil {
		b.Fatal(err)
	}
	if _, err := stream.Setup(b.Context(), h.js, h.cfg); err != nil {
		b.Fatal(err)
	}
	body := make([]byte, 256)
	for i := range n {
		_, err := h.js.PublishMsgAsync(&nats.Msg{Subject: fmt.Sprintf("events.k%d", i%keys), Data: body}, jetstream.WithStallWait(time.Minute))
		if err != nil {
			b.Fatal(err)
		}
	}
	<-h.js.PublishAsyncComplete()
	return h
}

// run drives a worker until done is closed.
func (h *hatch) run(limit string, to pipeline.Sink, done <-chan struct{}) {
	h.b.Helper()
	ctx := h.b.Context()
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	lanes, err := stream.OpenLanes(ctx, h.js, h.cfg)
	if err != nil {
		h.b.Fatal(err)
	}
	dead, err := stream.OpenDeadLetters(ctx, h.js, h.cfg)
	if err != nil {
		h.b.Fatal(err)
	}
	l, err := limiter.ParseLimits(limit)
	if err != nil {
		h.b.Fatal(err)
	}
	reg := prometheus.NewRegistry()
	store, err := redisstore.New(h.rdb.Client(), redisstore.Options{
		Name: "sluice", Worker: "bench", Limits: limiter.Fixed(l), Bodies: lanes, Log: log, Registry: reg,
	})
	if err != nil {
		h.b.Fatal(err)
	}
	if err := store.Start(ctx); err != nil {
		h.b.Fatal(err)
	}
	source, err := stream.OpenSource(ctx, h.js, h.cfg, log)
	if err != nil {
		h.b.Fatal(err)
	}
	key, err := pipeline.ParseKeySpec("subject:2")
	if err != nil {
		h.b.Fatal(err)
	}
	w := pipeline.New(pipeline.Config{
		Key: key, Concurrency: 256, Drain: time.Second,
		Retry: pipeline.Retry{For: time.Hour, Base: time.Second, Cap: time.Second},
	}, pipeline.Ports{
		Source: source, Limiter: store, Index: store, Lanes: lanes, DeadLetters: dead, Sink: to, Log: log,
		Gossip: stream.NewGossip(h.nc, h.cfg), Observer: metrics.New(reg, limiter.Fixed(l), to.Name(), sink.Classes, sink.Class),
	})
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	h.b.ResetTimer()
	go func() { ended <- w.Run(running) }()
	<-done
	h.b.StopTimer()
	h.reportRedis()
	stop()
	if err := <-ended; err != nil {
		h.b.Error(err)
	}
	if err := source.Close(context.WithoutCancel(ctx)); err != nil {
		h.b.Error(err)
	}
}

// reportRedis reports the time that Redis spent in scripts per event.
func (h *hatch) reportRedis() {
	for line := range strings.Lines(h.rdb.Client().Info(h.b.Context(), "commandstats").Val()) {
		var calls, micros int64
		if _, err := fmt.Sscanf(line, "cmdstat_evalsha:calls=%d,usec=%d", &calls, &micros); err == nil {
			h.b.ReportMetric(float64(micros)/float64(max(h.b.N, 1000)), "redis-us/event")
			h.b.ReportMetric(float64(calls)/float64(max(h.b.N, 1000)), "calls/event")
		}
	}
}

// Nothing is throttled and the sink costs nothing: what the way through limiter and pipeline costs.
func BenchmarkNothingThrottled(b *testing.B) {
	for _, keys := range []int{1000, 100_000} {
		b.Run(fmt.Sprintf("keys=%d", keys), func(b *testing.B) {
			n := max(b.N, 1000)
			h := newHatch(b, n, keys)
			to := &countingSink{n: int64(n), all: make(chan struct{})}
			h.run("1000000/s", to, to.all)
			b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "events/s")
		})
	}
}

// Nothing is throttled and events go to an HTTP receiver on this machine.
func BenchmarkIntoHTTP(b *testing.B) {
	n := max(b.N, 1000)
	h := newHatch(b, n, 1000)
	var seen atomic.Int64
	all := make(chan struct{})
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.WriteHeader(http.StatusNoContent)
		if seen.Add(1) == int64(n) {
			close(all)
		}
	}))
	defer receiver.Close()
	to, err := sink.NewWebhook(sink.WebhookConfig{URL: receiver.URL, Timeout: 15 * time.Second, Concurrency: 256}, "bench")
	if err != nil {
		b.Fatal(err)
	}
	defer to.Close()
	h.run("1000000/s", to, all)
	b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "events/s")
}

// Every event is throttled first: what parking and draining cost. 1,000 keys get a tenth of their events each second, so
// that the time is bound by work, not by the limit.
func BenchmarkThroughLanes(b *testing.B) {
	n := max(b.N, 1000)
	h := newHatch(b, n, 1000)
	to := &countingSink{n: int64(n), all: make(chan struct{})}
	h.run(fmt.Sprintf("%d/s burst 1", max(1, n/1000/10)), to, to.all)
	b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "events/s")
}
