package statuspage

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"sluice/limiter"
	"sluice/limiter/redisstore"
	"sluice/pipeline"
	"sluice/pipeline/metrics"
	"sluice/sink"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a page of a worker that exists in numbers only.
type rig struct {
	*Page
	observer *metrics.Observer
	reg      *prometheus.Registry
	limits   limiter.Limits
	ready    bool
	details  map[string]string
}

func newRig(t testing.TB) *rig {
	t.Helper()
	limits, err := limiter.ParseLimits("10/s burst 20")
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{
		reg: prometheus.NewRegistry(), limits: limits,
		ready: true, details: map[string]string{"nats": "connected", "redis": "connected"},
	}
	r.observer = metrics.New(r.reg, limiter.Fixed(limits), "webhook", sink.Classes, sink.Class)
	r.Page = New(Config{
		Name: "sluice", Version: "1.0.0", Hint: `sluice publish events.alice '{"hello":1}'`, Metrics: r.reg,
		Ready: func() (bool, map[string]string) { return r.ready, r.details },
		Facts: func() []Fact {
			return []Fact{{"LIMIT", limits.String()}, {"KEY", "subject:2"}, {"ON_REDIS_DOWN", "local"}, {"CONCURRENCY", "256"}}
		},
	})
	r.begun = time.Now()
	return r
}

// begin connects the worker.
func (r *rig) begin() {
	r.Begin(Parts{
		Worker: "shop-7-ab12cd34", HotKeys: r.observer.HotKeys(), Levels: r.levelsOf,
		Workers: func() ([]string, int) { return []string{"shop-6-zz98yy76", "shop-7-ab12cd34"}, 0 },
	})
}

// levelsOf lets the third key sleep, and gives the others what their length says.
func (r *rig) levelsOf(_ context.Context, subjects []redisstore.Subject) ([]redisstore.Level, error) {
	levels := make([]redisstore.Level, len(subjects))
	for i, subject := range subjects {
		key := subject.Key
		levels[i] = redisstore.Level{Limits: r.limits, Tokens: []int64{int64(len(key)*7%24) - 3}, Waiting: int64(len(key) * 300)}
		if i == 2 {
			levels[i].Cooling = 83 * time.Second
		}
	}
	return levels, nil
}

// event lets one of key take a way.
func (r *rig) event(key string, path pipeline.Path, took time.Duration) {
	r.observer.Received(false)
	ev := &pipeline.Event{Key: key}
	if path == pipeline.Lane {
		r.observer.Decided(ev, limiter.Decision{Verdict: limiter.Park, Reason: limiter.Throttled})
		r.observer.Throttled(limiter.Throttled)
		r.observer.Parked()
	} else {
		r.observer.Decided(ev, limiter.Decision{Verdict: limiter.Go, Remaining: 4})
	}
	r.observer.Pushed(ev, nil, took)
	r.observer.Latency(path, took)
	r.observer.Settled(pipeline.Delivered)
}

// past makes minutes of history, up to now: every second each key has up to perSecond events.
func (r *rig) past(keys []string, perSecond int, minutes int) {
	now := time.Now().Add(-time.Duration(minutes) * time.Minute)
	for s := range minutes * 60 {
		wave := 0.6 + 0.4*math.Sin(float64(s)/40)
		for i, key := range keys {
			for n := range int(math.Ceil(wave * float64(perSecond) / float64(1+i/4))) {
				switch {
				case n%5 == 4:
					r.event(key, pipeline.Lane, time.Duration(2000+s*20)*time.Millisecond)
				case n%5 == 3:
					r.event(key, pipeline.Held, 300*time.Millisecond)
				default:
					r.event(key, pipeline.Direct, time.Duration(2+i%7)*time.Millisecond)
				}
			}
		}
		if len(keys) > 0 && s%47 == 0 {
			r.observer.Pushed(&pipeline.Event{Key: keys[0]}, errors.New("refused"), time.Millisecond)
			r.observer.Settled(pipeline.DeadLettered)
		}
		r.update(now.Add(time.Duration(s) * time.Second))
	}
}

// names are n keys, the first of them awkward ones.
func names(n int) []string {
	keys := []string{"mallory", "alice@example.com", "<b>bold</b>&amp;\"'", "a%\xff\x00\u202e", "Zoë 🙂"}
	for i := len(keys); i < n; i++ {
		keys = append(keys, fmt.Sprintf("tenant-%04d", i))
	}
	return keys[:n]
}

// gauge adds a metric of another part of the worker.
func (r *rig) gauge(name string, value float64) {
	g := prometheus.NewGauge(prometheus.GaugeOpts{Name: "sluice_" + name, Help: "test"})
	g.Set(value)
	r.reg.MustRegister(g)
}
