package statuspage

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"sluice/limiter"
	"sluice/limiter/redisstore"
	"sluice/pipeline"
	"sluice/pipeline/metrics"
)

// mostKeys is how many busy keys are shown.
const mostKeys = 20

// figures is what the page shows of now. Rates are per second; of "the last minute" means since a minute ago, or the start.
type figures struct {
	At      int64             `json:"now"`   // Unix time in milliseconds
	Begun   int64             `json:"begun"` // the same, when this process began
	Name    string            `json:"name"`
	Version string            `json:"version"`
	Worker  string            `json:"worker"` // "": not connected yet
	Ready   bool              `json:"ready"`
	Details map[string]string `json:"details"`
	Hint    string            `json:"hint"`
	Facts   []Fact            `json:"facts"`

	Totals  map[string]float64 `json:"totals"`  // events that ended since the start, by outcome
	Reasons map[string]float64 `json:"reasons"` // events that had to wait in the last minute, by reason
	Answers map[string]float64 `json:"answers"` // pushes in the last minute, by answer
	Latency []latency          `json:"latency"` // of the last minute
	Gauges  map[string]float64 `json:"gauges"`  // by metric, without the prefix

	Busy    []busyKey `json:"keys"`
	Workers []string  `json:"workers"` // of the whole pipeline; none: not known
	Away    int       `json:"away"`    // of them, without Redis
}

// latency is how long events took that were delivered on a path.
type latency struct {
	Path  string  `json:"path"`
	Rate  float64 `json:"rate"`
	Half  float64 `json:"p50"` // seconds; 0: there were none
	Worst float64 `json:"p99"`
}

// busyKey is a key with its rates in this worker, and its bucket and lane, which all workers share.
type busyKey struct {
	Key       string  `json:"key"` // as text: keys are any bytes
	Received  float64 `json:"received"`
	Throttled float64 `json:"throttled"`
	Pushed    float64 `json:"pushed"`
	Known     bool    `json:"known"`   // what follows could be read
	Left      *int64  `json:"left"`    // tokens of the scarcest limit; nil: none are counted
	Burst     int64   `json:"burst"`   // of that limit
	Limits    string  `json:"limits"`  // of the key
	Waiting   int64   `json:"waiting"` // events
	Cooling   float64 `json:"cooling"` // seconds
	Damaged   bool    `json:"damaged"`
}

// shownGauges are the metrics that are shown as they are.
var shownGauges = []string{
	"pushes_in_flight", "events_held", "limiter_breaker_state", "nats_up", "redis_up", "limits_version", "limits_faults",
	"fleet_eligible_events", "fleet_throttled_events", "fleet_lanes", "fleet_oldest_eligible_seconds", "fleet_dead_letters",
}

// encode are the figures of now.
func (p *Page) encode(now time.Time) []byte {
	p.mu.Lock()
	newest, before := p.history.last()
	p.mu.Unlock()
	f := figures{
		At: now.UnixMilli(), Begun: p.begun.UnixMilli(),
		Name: p.cfg.Name, Version: p.cfg.Version, Hint: p.cfg.Hint, Facts: p.cfg.Facts(),
		Totals: newest.settled, Reasons: rates(before, newest, sample.throttled), Answers: rates(before, newest, sample.pushes),
		Gauges: map[string]float64{},
	}
	f.Ready, f.Details = p.cfg.Ready()
	for _, name := range shownGauges {
		if v, ok := newest.gauges["sluice_"+name]; ok {
			f.Gauges[name] = v
		}
	}
	per := perSecond(before, newest)
	for _, path := range pipeline.Paths {
		l := latency{Path: string(path)}
		if d := newest.latency[l.Path].since(before.latency[l.Path]); d.count > 0 {
			l.Rate, l.Half, l.Worst = per(0, float64(d.count)), round(d.quantile(0.5)), round(d.quantile(0.99))
		}
		f.Latency = append(f.Latency, l)
	}
	if parts := p.parts.Load(); parts != nil {
		f.Worker = parts.Worker
		f.Workers, f.Away = parts.Workers()
		f.Busy = p.busyKeys(parts.HotKeys)
	}
	text, err := json.Marshal(f)
	if err != nil {
		panic(err) // plain data without loops; round keeps out what JSON has no number for
	}
	return text
}

func (s sample) throttled() map[string]float64 { return s.reasons }

func (s sample) pushes() map[string]float64 { return s.answers }

// rates are those of the counters of which gives of a sample; the ones at rest are left out.
func rates(before, newest sample, of func(sample) map[string]float64) map[string]float64 {
	per, was := perSecond(before, newest), of(before)
	all := map[string]float64{}
	for name, value := range of(newest) {
		if rate := per(was[name], value); rate > 0 {
			all[name] = rate
		}
	}
	return all
}

// busyKeys are the busiest keys with what was last read of them.
func (p *Page) busyKeys(hot *metrics.HotKeys) []busyKey {
	var busy []busyKey
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, k := range hot.Busiest(mostKeys) {
		row := busyKey{
			Key: limiter.KeyText(k.Key), Received: round(k.Received), Throttled: round(k.Throttled), Pushed: round(k.Pushed),
		}
		level, known := p.levels[k.Key]
		if row.Known = known; known {
			row.Waiting, row.Cooling, row.Damaged = level.Waiting, round(level.Cooling.Seconds()), level.Damaged
			row.Limits = level.Limits.String()
			if left, counted := level.Left(); counted {
				row.Left = &left
				row.Burst = level.Limits[slices.Index(level.Tokens, left)].Burst
			}
		}
		busy = append(busy, row)
	}
	return busy
}

// readLevels reads what the busiest keys have left; nothing while that can't be read.
func (p *Page) readLevels(ctx context.Context) map[string]redisstore.Level {
	parts := p.parts.Load()
	if parts == nil {
		return nil
	}
	var subjects []redisstore.Subject
	for _, k := range parts.HotKeys.Busiest(mostKeys) {
		subjects = append(subjects, redisstore.Subject{Key: k.Key, Tier: k.Tier})
	}
	read, err := parts.Levels(ctx, subjects)
	if err != nil {
		return nil
	}
	levels := make(map[string]redisstore.Level, len(subjects))
	for i, subject := range subjects {
		levels[subject.Key] = read[i]
	}
	return levels
}
