package statuspage

import (
	"math"
	"slices"
	"time"

	"sluice/pipeline"
)

const (
	historyPoints = 600 // of a second each: ten minutes
	windowSamples = 61  // so that the newest and the oldest are a minute apart

	// latencySpan is the time that a point's latency is of, in samples: in a second there may be few events.
	latencySpan = 10
)

// point is a moment in the charts: the Unix time in milliseconds, rates per second since the point before, and the 99th
// percentile of the latency in seconds by path (nil: nothing was delivered on it).
type point struct {
	At          int64      `json:"t"`
	Received    float64    `json:"received"`
	Delivered   float64    `json:"delivered"`
	Parked      float64    `json:"parked"`
	Failed      float64    `json:"failed"`      // pushes that were not answered with 2xx
	Undelivered float64    `json:"undelivered"` // events that ended without a delivery, for whatever reason
	Latency     []*float64 `json:"latency"`     // in the order of pipeline.Paths
}

// history keeps what happened lately. The zero history is empty.
type history struct {
	points []point // the last ones, oldest first
	number int64   // of the last point, counted from 1
	window []sample
}

// add appends a sample, and a point if there was one before.
func (h *history) add(s sample) {
	if len(h.window) > 0 {
		h.points = append(h.points, pointOf(h.back(0), h.back(latencySpan-1), s))
		h.number++
		if len(h.points) > historyPoints {
			h.points = slices.Delete(h.points, 0, len(h.points)-historyPoints)
		}
	}
	h.window = append(h.window, s)
	if len(h.window) > windowSamples {
		h.window = slices.Delete(h.window, 0, len(h.window)-windowSamples)
	}
}

// back is the sample n before the last one, or the oldest.
func (h *history) back(n int) sample { return h.window[max(0, len(h.window)-1-n)] }

// last is the newest sample, and the one a minute before it; both empty if there is none.
func (h *history) last() (newest, before sample) {
	if len(h.window) == 0 {
		return sample{}, sample{}
	}
	return h.back(0), h.back(windowSamples)
}

// after are copies of the points after number seen, and the number of the newest.
func (h *history) after(seen int64) ([]point, int64) {
	fresh := min(h.number-seen, int64(len(h.points)))
	return slices.Clone(h.points[len(h.points)-int(fresh):]), h.number
}

func pointOf(before, earlier, now sample) point {
	per := perSecond(before, now)
	p := point{
		At:          now.at.UnixMilli(),
		Received:    per(before.received, now.received),
		Delivered:   per(before.settled[string(pipeline.Delivered)], now.settled[string(pipeline.Delivered)]),
		Parked:      per(before.parked, now.parked),
		Failed:      per(before.failed(), now.failed()),
		Undelivered: per(before.undelivered(), now.undelivered()),
	}
	for _, path := range pipeline.Paths {
		var p99 *float64
		if d := now.latency[string(path)].since(earlier.latency[string(path)]); d.count > 0 {
			v := round(d.quantile(0.99))
			p99 = &v
		}
		p.Latency = append(p.Latency, p99)
	}
	return p
}

// perSecond makes rates of counters that were read in two samples.
func perSecond(before, now sample) func(a, b float64) float64 {
	seconds := now.at.Sub(before.at).Seconds()
	return func(a, b float64) float64 {
		if seconds <= 0 {
			return 0
		}
		return round((b - a) / seconds)
	}
}

// round keeps four digits, for short messages.
func round(x float64) float64 {
	if x == 0 || math.IsNaN(x) || math.IsInf(x, 0) {
		return 0
	}
	unit := math.Pow(10, 3-math.Floor(math.Log10(math.Abs(x))))
	return math.Round(x*unit) / unit
}

// sample is what the metrics said at a moment.
type sample struct {
	at       time.Time
	received float64
	parked   float64
	settled  map[string]float64 // by outcome
	reasons  map[string]float64 // throttled, by reason
	answers  map[string]float64 // pushes, by class
	latency  map[string]distribution
	gauges   map[string]float64 // by name
}

// failed are the pushes that were not answered with 2xx.
func (s sample) failed() float64 { return sum(s.answers) - s.answers["2xx"] }

// undelivered are the events that ended without a delivery, for whatever reason.
func (s sample) undelivered() float64 { return sum(s.settled) - s.settled[string(pipeline.Delivered)] }

func sum(values map[string]float64) (total float64) {
	for _, v := range values {
		total += v
	}
	return total
}
