package statuspage

import (
	"slices"
	"time"

	dto "github.com/prometheus/client_model/go"
)

// newSample reads what the page shows from the metrics, so that it can't differ from them.
func newSample(now time.Time, families []*dto.MetricFamily) sample {
	s := sample{at: now, gauges: map[string]float64{}}
	for _, f := range families {
		name, all := f.GetName(), f.GetMetric()
		switch name {
		case "sluice_events_received_total":
			s.received = sum(byLabel(all))
		case "sluice_events_parked_total":
			s.parked = sum(byLabel(all))
		case "sluice_events_settled_total":
			s.settled = byLabel(all)
		case "sluice_events_throttled_total":
			s.reasons = byLabel(all)
		case "sluice_push_attempts_total":
			s.answers = byLabel(all)
		case "sluice_event_latency_seconds":
			s.latency = map[string]distribution{}
			for _, m := range all {
				s.latency[labelOf(m)] = distributionOf(m.GetHistogram())
			}
		default:
			if f.GetType() == dto.MetricType_GAUGE && len(all) == 1 {
				s.gauges[name] = all[0].GetGauge().GetValue()
			}
		}
	}
	return s
}

// labelOf is the value of a metric's last label: the one that tells its siblings apart.
func labelOf(m *dto.Metric) string {
	labels := m.GetLabel()
	for _, l := range slices.Backward(labels) {
		if l.GetName() != "sink" {
			return l.GetValue()
		}
	}
	return ""
}

func byLabel(all []*dto.Metric) map[string]float64 {
	values := make(map[string]float64, len(all))
	for _, m := range all {
		values[labelOf(m)] += m.GetCounter().GetValue()
	}
	return values
}

// distribution is a histogram: so many values up to each bound, of all smaller ones too.
type distribution struct {
	count  uint64
	bounds []float64
	upTo   []uint64
}

func distributionOf(h *dto.Histogram) distribution {
	d := distribution{count: h.GetSampleCount()}
	for _, b := range h.GetBucket() {
		d.bounds, d.upTo = append(d.bounds, b.GetUpperBound()), append(d.upTo, b.GetCumulativeCount())
	}
	return d
}

// since is what came after before, an earlier state of the same.
func (d distribution) since(before distribution) distribution {
	if len(before.upTo) != len(d.upTo) {
		return d
	}
	after := distribution{count: d.count - before.count, bounds: d.bounds, upTo: slices.Clone(d.upTo)}
	for i, n := range before.upTo {
		after.upTo[i] -= n
	}
	return after
}

// quantile estimates the value that the share q of all don't exceed, as Prometheus does: evenly within a bucket, and the
// last bound for what lies beyond it. There must be values.
func (d distribution) quantile(q float64) float64 {
	rank := q * float64(d.count)
	low, below := 0.0, uint64(0)
	for i, bound := range d.bounds {
		if float64(d.upTo[i]) >= rank && d.upTo[i] > below {
			return low + (bound-low)*(rank-float64(below))/float64(d.upTo[i]-below)
		}
		low, below = bound, d.upTo[i]
	}
	return low
}
