package metrics

import (
	"errors"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"sluice/limiter"
	"sluice/pipeline"
)

var _ pipeline.Observer = (*Observer)(nil)

func classOf(err error) string {
	if err != nil {
		return "5xx"
	}
	return "2xx"
}

func TestMetricsPassPrometheusLintAndStartAtZero(t *testing.T) {
	reg := prometheus.NewRegistry()
	New(reg, limiter.Fixed(nil), "webhook", []string{"2xx", "5xx"}, classOf)
	problems, err := testutil.GatherAndLint(reg)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	n, err := testutil.GatherAndCount(reg, "sluice_events_throttled_total", "sluice_events_settled_total", "sluice_dead_letters_total", "sluice_push_attempts_total")
	if want := len(limiter.Reasons) + len(pipeline.Outcomes) + len(pipeline.DeadReasons) + 2; err != nil || n != want {
		t.Errorf("%d series exist from the start, %v, want %d", n, err, want)
	}
}

func TestEveryReasonOutcomeAndPathIsCounted(t *testing.T) {
	reg := prometheus.NewRegistry()
	o := New(reg, limiter.Fixed(nil), "webhook", []string{"2xx", "5xx"}, classOf)
	for _, r := range limiter.Reasons {
		o.Throttled(r)
	}
	for _, s := range pipeline.Outcomes {
		o.Settled(s)
	}
	for _, r := range pipeline.DeadReasons {
		o.Buried(r)
	}
	for _, p := range pipeline.Paths {
		o.Latency(p, time.Second)
	}
	o.Pushed(&pipeline.Event{Key: "alice"}, nil, time.Millisecond)
	o.Pushed(&pipeline.Event{Key: "alice"}, errors.New("no"), time.Millisecond)
	o.Received(true)
	o.Leased(true)
	if got := testutil.ToFloat64(o.attempts["5xx"]); got != 1 {
		t.Errorf("failed attempts = %v, want 1", got)
	}
	if got := testutil.ToFloat64(o.redelivered); got != 1 {
		t.Errorf("redeliveries = %v, want 1", got)
	}
}
