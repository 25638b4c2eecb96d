package statuspage

import (
	"encoding/json"
	"errors"
	"math"
	"slices"
	"testing"
	"time"

	"sluice/limiter"
	"sluice/pipeline"
)

func (r *rig) now(t *testing.T) figures {
	t.Helper()
	var f figures
	m, _, _ := r.news(0)
	if err := json.Unmarshal(m.Figures, &f); err != nil {
		t.Fatal(err)
	}
	return f
}

func near(got, want float64) bool { return math.Abs(got-want) <= want/10 }

func TestFiguresAreThoseOfTheMetrics(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.gauge("fleet_dead_letters", 12)
	begun := time.Now()
	r.update(begun)
	for range 60 {
		r.event("alice", pipeline.Direct, 4*time.Millisecond)
		r.event("bob", pipeline.Lane, 40*time.Second)
		r.observer.Pushed(&pipeline.Event{Key: "bob"}, errors.New("no"), time.Millisecond)
	}
	r.observer.Settled(pipeline.DeadLettered)
	r.update(begun.Add(30 * time.Second))
	p := r.history.points[0]
	if p.Received != 4 || p.Delivered != 4 || p.Parked != 2 || p.Failed != 2 || !near(p.Undelivered, 1.0/30) {
		t.Errorf("the point is %+v", p)
	}
	if len(p.Latency) != 3 || !near(*p.Latency[0], 0.005) || p.Latency[1] != nil || !near(*p.Latency[2], 60) {
		t.Errorf("its latencies are %v", p.Latency)
	}
	f := r.now(t)
	if f.Totals["delivered"] != 120 || f.Totals["dead_lettered"] != 1 || f.Totals["dropped"] != 0 {
		t.Errorf("totals %v", f.Totals)
	}
	if len(f.Reasons) != 1 || f.Reasons[string(limiter.Throttled)] != 2 {
		t.Errorf("reasons %v", f.Reasons)
	}
	if len(f.Answers) != 2 || f.Answers["2xx"] != 4 || f.Answers["other"] != 2 {
		t.Errorf("answers %v", f.Answers)
	}
	direct, held, lane := f.Latency[0], f.Latency[1], f.Latency[2]
	if direct.Rate != 2 || !near(direct.Half, 0.00375) || held != (latency{Path: "held"}) || lane.Rate != 2 || lane.Worst < 10 {
		t.Errorf("latency %+v", f.Latency)
	}
	if v, known := f.Gauges["fleet_lanes"]; known || f.Gauges["fleet_dead_letters"] != 12 {
		t.Errorf("gauges %v, of an unknown one %v", f.Gauges, v)
	}
	r.update(begun.Add(95 * time.Second)) // nothing happened meanwhile
	r.update(begun.Add(96 * time.Second))
	if p := r.history.points[2]; p.Received != 0 || p.Latency[0] == nil {
		t.Errorf("an idle second is %+v", p)
	}
}

func TestKeysAreTextWhateverTheyHold(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.begin()
	r.past(names(5), 3, 1)
	f := r.now(t)
	var shown []string
	for _, k := range f.Busy {
		shown = append(shown, k.Key)
	}
	slices.Sort(shown)
	want := []string{"<b>bold</b>&amp;\"'", "Zoë 🙂", "a%25%FF%00%E2%80%AE", "alice@example.com", "mallory"}
	if !slices.Equal(shown, want) {
		t.Errorf("shown %q, want %q", shown, want)
	}
	if f.Worker == "" || len(f.Workers) != 2 {
		t.Errorf("worker %q of %q", f.Worker, f.Workers)
	}
}

func TestManyKeysMakeNoLongMessage(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.begin()
	r.past(names(500), 1, 1)
	if f := r.now(t); len(f.Busy) != mostKeys {
		t.Errorf("%d keys are shown, want %d", len(f.Busy), mostKeys)
	}
	if n := len(r.figures); n > 16<<10 {
		t.Errorf("the figures take %d bytes", n)
	}
}

func TestHistoryIsTenMinutesLong(t *testing.T) {
	t.Parallel()
	var h history
	at := time.Now()
	for i := range historyPoints + 200 {
		h.add(sample{at: at.Add(time.Duration(i) * time.Second), received: float64(3 * i)})
	}
	if len(h.points) != historyPoints || len(h.window) != windowSamples || h.number != historyPoints+199 {
		t.Errorf("%d points, %d samples, %d in all", len(h.points), len(h.window), h.number)
	}
	if newest, before := h.last(); newest.at.Sub(before.at) != time.Minute {
		t.Errorf("the window is %v", newest.at.Sub(before.at))
	}
	for _, test := range []struct {
		seen int64
		want int
	}{{0, historyPoints}, {h.number - 7, 7}, {h.number, 0}} {
		points, newest := h.after(test.seen)
		if len(points) != test.want || newest != h.number {
			t.Errorf("after %d: %d points up to %d", test.seen, len(points), newest)
		}
	}
	if p, _ := h.after(h.number - 1); p[0].Received != 3 {
		t.Errorf("the rate is %v", p[0].Received)
	}
}

func TestQuantilesAreThoseOfPrometheus(t *testing.T) {
	t.Parallel()
	d := distribution{count: 100, bounds: []float64{1, 2, 4, 8}, upTo: []uint64{0, 50, 90, 98}}
	for _, test := range []struct{ q, want float64 }{{0.25, 1.5}, {0.5, 2}, {0.9, 4}, {0.94, 6}, {0.99, 8}, {1, 8}} {
		if got := d.quantile(test.q); math.Abs(got-test.want) > 1e-9 {
			t.Errorf("quantile %v is %v, want %v", test.q, got, test.want)
		}
	}
	earlier := distribution{count: 60, bounds: d.bounds, upTo: []uint64{0, 50, 60, 60}}
	if later := d.since(earlier); later.count != 40 || math.Abs(later.quantile(0.5)-10.0/3) > 1e-9 || len(earlier.upTo) != 4 {
		t.Errorf("since then: %+v, half of them up to %v", later, later.quantile(0.5))
	}
}
