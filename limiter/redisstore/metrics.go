package redisstore

import (
	"errors"
	"net"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/redis/go-redis/v9"
)

type metrics struct {
	duration prometheus.Histogram
	keys     prometheus.Histogram
	errors   *prometheus.CounterVec
	rebuilds prometheus.Counter
}

var errorKinds = []string{"timeout", "connection", "refused", "damaged", "lost_writes"}

func newMetrics(reg prometheus.Registerer) *metrics {
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

func errorKind(err error) string {
	if _, ok := errors.AsType[redis.Error](err); ok {
		return "refused"
	}
	if e, ok := errors.AsType[net.Error](err); ok && e.Timeout() {
		return "timeout"
	}
	return "connection"
}
