// Package metrics counts what a [pipeline.Worker] does, for Prometheus. All label values exist from the start, so that
// rates begin at zero; none of them is a key or a URL.
package metrics

import (
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"sluice/limiter"
	"sluice/pipeline"
)

// Observer implements [pipeline.Observer].
type Observer struct {
	class  func(error) string
	limits limiter.Resolver
	hot    *HotKeys

	received      prometheus.Counter
	redelivered   prometheus.Counter
	settled       map[pipeline.Outcome]prometheus.Counter
	buried        map[pipeline.DeadReason]prometheus.Counter
	parked        prometheus.Counter
	throttled     map[limiter.Reason]prometheus.Counter
	remaining     *prometheus.HistogramVec
	attempts      map[string]prometheus.Counter
	duration      prometheus.Observer
	latency       map[pipeline.Path]prometheus.Observer
	laneWait      prometheus.Histogram
	inFlight      prometheus.Gauge
	held          prometheus.Gauge
	late          prometheus.Counter
	leases        map[bool]prometheus.Counter
	lastDelivered prometheus.Gauge
}

var (
	pushBuckets    = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}
	latencyBuckets = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 60, 600, 3600}
	levelBuckets   = []float64{0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 10000, 100000}
	waitBuckets    = []float64{.01, .05, .1, .5, 1, 5, 15, 60, 300, 900, 3600, 14400, 86400}
)

// New registers the metrics of a worker that goes by limits and has one sink. class sorts what a push returned into one of
// classes.
func New(reg prometheus.Registerer, limits limiter.Resolver, sink string, classes []string, class func(error) string) *Observer {
	auto := promauto.With(reg)
	counter := func(name, help string) prometheus.Counter {
		return auto.NewCounter(prometheus.CounterOpts{Name: "sluice_" + name, Help: help})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return auto.NewGauge(prometheus.GaugeOpts{Name: "sluice_" + name, Help: help})
	}
	o := &Observer{
		class:         class,
		limits:        limits,
		hot:           NewHotKeys(),
		received:      counter("events_received_total", "Deliveries from the source."),
		redelivered:   counter("source_redeliveries_total", "Deliveries from the source that were not the first of their event."),
		parked:        counter("events_parked_total", "Events put into their lane."),
		inFlight:      gauge("pushes_in_flight", "Pushes going on."),
		held:          gauge("events_held", "Events that wait in memory for a slot within the horizon."),
		late:          counter("late_tokens_total", "Tokens that had become too old when the push could start."),
		lastDelivered: gauge("last_push_timestamp_seconds", "When the last event was delivered, Unix time."),
		laneWait: auto.NewHistogram(prometheus.HistogramOpts{Name: "sluice_lane_wait_seconds",
			Help: "From an event's arrival in the source to its first push out of its lane.", Buckets: waitBuckets}),
		settled:   map[pipeline.Outcome]prometheus.Counter{},
		buried:    map[pipeline.DeadReason]prometheus.Counter{},
		throttled: map[limiter.Reason]prometheus.Counter{},
		attempts:  map[string]prometheus.Counter{},
		latency:   map[pipeline.Path]prometheus.Observer{},
		leases:    map[bool]prometheus.Counter{},
	}
	o.vectors(auto, sink, classes)
	return o
}

// vectors makes the metrics with labels, and all their label values.
func (o *Observer) vectors(auto promauto.Factory, sink string, classes []string) {
	vec := func(name, help string, labels ...string) *prometheus.CounterVec {
		return auto.NewCounterVec(prometheus.CounterOpts{Name: "sluice_" + name, Help: help}, labels)
	}
	settled := vec("events_settled_total", "Events that came to their end, by outcome.", "outcome")
	for _, v := range pipeline.Outcomes {
		o.settled[v] = settled.WithLabelValues(string(v))
	}
	buried := vec("dead_letters_total", "Dead letters stored, by reason.", "reason")
	for _, v := range pipeline.DeadReasons {
		o.buried[v] = buried.WithLabelValues(string(v))
	}
	throttled := vec("events_throttled_total", "Events that could not go at once, by reason.", "reason")
	for _, v := range limiter.Reasons {
		o.throttled[v] = throttled.WithLabelValues(string(v))
	}
	attempts := vec("push_attempts_total", "Pushes by the class of their answer.", "sink", "class")
	for _, v := range classes {
		o.attempts[v] = attempts.WithLabelValues(sink, v)
	}
	leases := vec("leases_total", "Leases of lanes asked for, by result.", "result")
	o.leases[true], o.leases[false] = leases.WithLabelValues("granted"), leases.WithLabelValues("none")
	o.duration = auto.NewHistogramVec(prometheus.HistogramOpts{Name: "sluice_push_duration_seconds",
		Help: "Duration of pushes.", Buckets: pushBuckets}, []string{"sink"}).WithLabelValues(sink)
	o.remaining = auto.NewHistogramVec(prometheus.HistogramOpts{Name: "sluice_tokens_remaining",
		Help: "Whole tokens that keys had left when an event of theirs asked, of the limit with the fewest.", Buckets: levelBuckets},
		[]string{"tier"}) // one series for each tier that has limits, however many events name
	o.remaining.WithLabelValues("")
	latency := auto.NewHistogramVec(prometheus.HistogramOpts{Name: "sluice_event_latency_seconds",
		Help: "From an event's arrival in the source to its delivery, by path.", Buckets: latencyBuckets}, []string{"path"})
	for _, v := range pipeline.Paths {
		o.latency[v] = latency.WithLabelValues(string(v))
	}
}

// Skipped registers the count of the messages of the source of one kind that nobody meant as events.
func Skipped(reg prometheus.Registerer, kind string, count func() float64) {
	promauto.With(reg).NewCounterFunc(prometheus.CounterOpts{Name: "sluice_source_skipped_total",
		Help: "Messages of the source that are no events, by kind: marker (of a deletion), schedule.", ConstLabels: prometheus.Labels{"kind": kind}}, count)
}

// Received counts a delivery from the source.
func (o *Observer) Received(redelivered bool) {
	o.received.Inc()
	if redelivered {
		o.redelivered.Inc()
	}
}

// Decided notes how busy the event's key is, and the tokens it has left where the decision knows them.
func (o *Observer) Decided(ev *pipeline.Event, dec limiter.Decision) {
	waits := dec.Verdict == limiter.Park || dec.Verdict == limiter.Overflow
	o.hot.received(ev.Key, ev.Tier, waits, time.Now())
	left, known := dec.Left()
	if known && dec.Reason != limiter.Paused && left != math.MaxInt64 { // else nothing is counted
		o.remaining.WithLabelValues(o.tierOf(ev)).Observe(float64(left))
	}
}

// tierOf is the tier whose limits rule the event's key; "" if it is none.
func (o *Observer) tierOf(ev *pipeline.Event) string {
	if r := o.limits.Resolve(ev.Key, ev.Tier); r.Source == limiter.SourceTier {
		return r.Name
	}
	return ""
}

// HotKeys are the busiest keys of this worker.
func (o *Observer) HotKeys() *HotKeys { return o.hot }

// Throttled counts an event that could not go at once.
func (o *Observer) Throttled(reason limiter.Reason) { o.throttled[reason].Inc() }

// Parked counts an event put into its lane.
func (o *Observer) Parked() { o.parked.Inc() }

// Buried counts a dead letter.
func (o *Observer) Buried(reason pipeline.DeadReason) { o.buried[reason].Inc() }

// Settled counts an event that came to its end.
func (o *Observer) Settled(outcome pipeline.Outcome) {
	o.settled[outcome].Inc()
	if outcome == pipeline.Delivered {
		o.lastDelivered.SetToCurrentTime()
	}
}

// Pushed counts an attempt.
func (o *Observer) Pushed(ev *pipeline.Event, err error, took time.Duration) {
	o.hot.pushed(ev.Key, time.Now())
	o.attempts[o.class(err)].Inc()
	o.duration.Observe(took.Seconds())
}

// Latency observes a delivered event.
func (o *Observer) Latency(path pipeline.Path, d time.Duration) { o.latency[path].Observe(d.Seconds()) }

// LaneWait observes the first push of an event out of its lane.
func (o *Observer) LaneWait(d time.Duration) { o.laneWait.Observe(d.Seconds()) }

// InFlight counts pushes that begin and end.
func (o *Observer) InFlight(delta int) { o.inFlight.Add(float64(delta)) }

// HeldNow counts events that begin and end waiting for a slot in memory.
func (o *Observer) HeldNow(delta int) { o.held.Add(float64(delta)) }

// Late counts a token that had become too old.
func (o *Observer) Late() { o.late.Inc() }

// Leased counts a lease asked for.
func (o *Observer) Leased(granted bool) { o.leases[granted].Inc() }
