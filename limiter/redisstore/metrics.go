package redisstore

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/redis/go-redis/v9"
	"github.com/sony/gobreaker/v2"
)

type metrics struct {
	duration prometheus.Histogram
	keys     prometheus.Histogram
	errors   *prometheus.CounterVec
	rebuilds prometheus.Counter
	orphans  prometheus.Counter
	fallback *prometheus.CounterVec
}

var errorKinds = []string{"timeout", "connection", "unavailable", "memory", "refused", "damaged", "lost_writes"}

// newMetrics registers all metrics or, with an error, none. reg may be nil. state is the breaker's, ahead what Redis' clock is
// ahead of this machine's.
func newMetrics(reg prometheus.Registerer, state func() gobreaker.State, ahead func() time.Duration) (*metrics, error) {
	if reg == nil {
		return makeMetrics(nil, state, ahead), nil
	}
	all := &allOrNone{Registerer: reg}
	m := makeMetrics(all, state, ahead)
	if err := all.end(); err != nil {
		return nil, fmt.Errorf("registering the limiter's metrics: %w (if reg has those of another limiter, "+
			"give this one prometheus.WrapRegistererWithPrefix)", err)
	}
	return m, nil
}

// allOrNone lets promauto, which panics by itself, register for a constructor that returns errors.
type allOrNone struct {
	prometheus.Registerer
	done []prometheus.Collector
	err  error
}

func (a *allOrNone) MustRegister(collectors ...prometheus.Collector) {
	for _, c := range collectors {
		if err := a.Register(c); err != nil {
			if a.err == nil {
				a.err = err
			}
			continue
		}
		a.done = append(a.done, c)
	}
}

// end answers the first error, and takes back what was registered beside it.
func (a *allOrNone) end() error {
	if a.err != nil {
		for _, c := range a.done {
			a.Unregister(c)
		}
	}
	return a.err
}

func makeMetrics(reg prometheus.Registerer, state func() gobreaker.State, ahead func() time.Duration) *metrics {
	auto := promauto.With(reg)
	m := &metrics{
		duration: auto.NewHistogram(prometheus.HistogramOpts{
			Name:    "sluice_limiter_call_duration_seconds",
			Help:    "Duration of the script calls to Redis.",
			Buckets: []float64{.0001, .0002, .0005, .001, .002, .005, .01, .02, .05, .1, .2, .5, 1},
		}),
		keys: auto.NewHistogram(prometheus.HistogramOpts{
			Name:    "sluice_limiter_batch_keys",
			Help:    "Number of keys in one script call to Redis.",
			Buckets: prometheus.ExponentialBuckets(1, 2, 9),
		}),
		errors: auto.NewCounterVec(prometheus.CounterOpts{
			Name: "sluice_limiter_errors_total",
			Help: "Script calls to Redis that went wrong, by kind.",
		}, []string{"kind"}),
		rebuilds: auto.NewCounter(prometheus.CounterOpts{
			Name: "sluice_lane_rebuilds_total",
			Help: "Rebuilds of the lane index from the stored bodies.",
		}),
	}
	m.orphans = auto.NewCounter(prometheus.CounterOpts{
		Name: "sluice_orphans_total",
		Help: "Stored events that had lost their place in the lane index and got a new one.",
	})
	m.fallback = auto.NewCounterVec(prometheus.CounterOpts{
		Name: "sluice_fallback_decisions_total",
		Help: "Decisions made without Redis, by policy.",
	}, []string{"policy"})
	auto.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "sluice_redis_clock_ahead_seconds",
		Help: "What Redis' clock is ahead of this worker's; below 0: behind.",
	}, func() float64 { return ahead().Seconds() })
	auto.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "sluice_limiter_breaker_state",
		Help: "State of the breaker before Redis: 0 closed (calls are made), 1 half open (one is tried), 2 open (none is).",
	}, func() float64 { return float64(state()) })
	for _, p := range []Policy{Local, Open} {
		m.fallback.WithLabelValues(string(p))
	}
	for _, k := range errorKinds {
		m.errors.WithLabelValues(k)
	}
	return m
}

func (m *metrics) observe(d time.Duration, err error) {
	m.duration.Observe(d.Seconds())
	if err != nil {
		m.errors.WithLabelValues(errorKind(err)).Inc()
	}
}

// errorKind says where a call failed: on the way (timeout, connection: it may have run), at a server that can't work now
// (unavailable, memory), or at one that will refuse it again (refused).
func errorKind(err error) string {
	if redis.IsOOMError(err) {
		return "memory"
	}
	if unavailable(err) {
		return "unavailable"
	}
	if _, ok := errors.AsType[redis.Error](err); ok {
		return "refused"
	}
	if e, ok := errors.AsType[net.Error](err); ok && e.Timeout() {
		return "timeout"
	}
	return "connection"
}

// unavailable says that a server refused, for as long as it starts, follows another or changes places in its Cluster.
func unavailable(err error) bool {
	return redis.IsLoadingError(err) || redis.IsReadOnlyError(err) || redis.IsMasterDownError(err) || redis.IsClusterDownError(err) ||
		redis.IsNoReplicasError(err) || redis.IsMaxClientsError(err) || redis.HasErrorPrefix(err, "BUSY ") || moving(err)
}

// moving says that the slot of a call's keys is on its way to another node of the Cluster, which takes no calls of several keys
// meanwhile. Nothing was run, but for a script that emptied a key and then asked for it: repeating the call does the rest.
func moving(err error) bool {
	if err == nil {
		return false
	}
	_, moved := redis.IsMovedError(err)
	_, ask := redis.IsAskError(err)
	return moved || ask || redis.IsTryAgainError(err) || strings.Contains(err.Error(), "attempted to access a non local key")
}

// away says whether err means that Redis can't be worked with now, rather than that it dislikes one call or moves a slot.
func away(err error) bool {
	if err == nil || errors.Is(err, redis.Nil) || moving(err) {
		return false
	}
	switch errorKind(err) {
	case "timeout", "connection", "unavailable":
		return true
	}
	return false
}
