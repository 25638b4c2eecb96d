package metrics

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// A Figure of the whole pipeline, which every worker shows alike: dashboards take the maximum, not the sum.
type Figure int

// The figures.
const (
	Eligible       Figure = iota // events that could be pushed now if there were more workers
	Throttled                    // events that wait for their limit, or their receiver: more workers wouldn't help
	LanesInUse                   // keys with waiting events
	OldestEligible               // seconds for which the oldest eligible event could have been pushed
	DeadLetters                  // in their stream
	Workers                      // alive
	figures
)

var figureDescs = [figures]*prometheus.Desc{
	Eligible:       figureDesc("eligible_events", "Events that could be pushed now if there were more workers. Of the whole pipeline: use max, not sum."),
	Throttled:      figureDesc("throttled_events", "Events that wait for their limit or their receiver: more workers wouldn't help. Of the whole pipeline: use max, not sum."),
	LanesInUse:     figureDesc("lanes", "Keys with waiting events. Of the whole pipeline: use max, not sum."),
	OldestEligible: figureDesc("oldest_eligible_seconds", "For how long the oldest eligible event could have been pushed. Of the whole pipeline: use max, not sum."),
	DeadLetters:    figureDesc("dead_letters", "Dead letters that are kept. Of the whole pipeline: use max, not sum."),
	Workers:        figureDesc("workers", "Workers alive. Of the whole pipeline: use max, not sum."),
}

func figureDesc(name, help string) *prometheus.Desc {
	return prometheus.NewDesc("sluice_fleet_"+name, help, nil, nil)
}

// Fleet shows what was last found out about the whole pipeline. A figure that wasn't for some time is not shown at all:
// nobody should start workers, or stop them, by an old one.
type Fleet struct {
	fresh time.Duration

	mu    sync.Mutex
	value [figures]float64
	until [figures]time.Time
}

// NewFleet registers the figures, each shown for the time fresh after it was set.
func NewFleet(reg prometheus.Registerer, fresh time.Duration) *Fleet {
	f := &Fleet{fresh: fresh}
	reg.MustRegister(f)
	return f
}

// Set tells a figure.
func (f *Fleet) Set(fig Figure, value float64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.value[fig], f.until[fig] = value, time.Now().Add(f.fresh)
}

// Describe implements [prometheus.Collector].
func (f *Fleet) Describe(to chan<- *prometheus.Desc) {
	for _, desc := range figureDescs {
		to <- desc
	}
}

// Collect implements [prometheus.Collector].
func (f *Fleet) Collect(to chan<- prometheus.Metric) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	for fig, desc := range figureDescs {
		if now.Before(f.until[fig]) {
			to <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, f.value[fig])
		}
	}
}
