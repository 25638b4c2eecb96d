package metrics

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"sluice/limiter"
	"sluice/pipeline"
)

func TestBusiestKeysAreFoundAmongAMillion(t *testing.T) {
	t.Parallel()
	h := NewHotKeys()
	now := h.start
	draw := rand.New(rand.NewPCG(1, 2))
	const perSecond = 4000
	for range 60 * perSecond {
		now = now.Add(time.Second / perSecond)
		switch n := draw.IntN(100); {
		case n < 5: // 200/s, all throttled
			h.received("mallory", "gold", true, now)
		case n < 8: // 120/s, pushed, too
			h.received("alice", "", false, now)
			h.pushed("alice", now)
		default:
			h.received(fmt.Sprint("user", draw.IntN(1_000_000)), "", false, now)
		}
	}
	busy := h.busiest(10, now)
	if len(busy) != 2 || busy[0].Key != "alice" || busy[1].Key != "mallory" {
		t.Fatalf("the busiest are %v, want alice (240/s in all) and mallory (200/s) and nobody else", busy)
	}
	near := func(got, want float64) bool { return math.Abs(got-want) < want/6 }
	if a := busy[0]; !near(a.Received, 120) || !near(a.Pushed, 120) || a.Throttled != 0 {
		t.Errorf("alice: %+v, want 120/s received and pushed", a)
	}
	if m := busy[1]; !near(m.Received, 200) || m.Throttled != m.Received || m.Pushed != 0 || m.Tier != "gold" {
		t.Errorf("mallory: %+v, want 200/s, all throttled, in its tier", m)
	}
	if busy := h.busiest(10, now.Add(5*time.Minute)); len(busy) != 0 {
		t.Errorf("after five idle minutes the busiest are %v", busy)
	}
}

func TestRatesHoldFromTheBeginningAndForAWeek(t *testing.T) {
	t.Parallel()
	h := NewHotKeys()
	for _, after := range []time.Duration{0, 20 * time.Second, 7 * 24 * time.Hour} {
		now := h.start.Add(after)
		for range 4 * 20 { // 4/s for 20 s
			now = now.Add(time.Second / 4)
			h.received("alice", "", false, now)
		}
		if after > 0 { // of which the time since the start is only a part
			for range 4 * 40 {
				now = now.Add(time.Second / 4)
				h.received("alice", "", false, now)
			}
		}
		busy := h.busiest(1, now)
		if len(busy) != 1 || math.Abs(busy[0].Received-4) > 0.3 {
			t.Errorf("begun after %v: %v, want alice at 4/s", after, busy)
		}
	}
}

func TestAMillionKeysMakeNoSeriesAndTakeNoMemory(t *testing.T) {
	reg := prometheus.NewRegistry()
	o := New(reg, limiter.Fixed(nil), "webhook", []string{"2xx", "5xx"}, classOf)
	decided := func(key string) {
		o.Decided(&pipeline.Event{Key: key}, limiter.Decision{Verdict: limiter.Go, Remaining: 3})
	}
	for i := range 10_000 {
		decided(fmt.Sprint("first", i))
		o.Pushed(&pipeline.Event{Key: fmt.Sprint("second", i)}, nil, time.Millisecond)
	}
	count := func() int {
		n, err := testutil.GatherAndCount(reg)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	memory := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	series, heap := count(), memory()
	for i := range 1_000_000 {
		decided(strconv.Itoa(i))
	}
	if n := count(); n != series {
		t.Errorf("%d series became %d", series, n)
	}
	if grown := int64(memory()) - int64(heap); grown > 1<<20 {
		t.Errorf("the heap grew by %d bytes", grown)
	}
	runtime.KeepAlive(o)
}

func TestLevelsThatAreNotKnownAreNotObserved(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		dec  limiter.Decision
		seen uint64
	}{
		{"a token", limiter.Decision{Verdict: limiter.Go, Remaining: 3}, 1},
		{"a slot", limiter.Decision{Verdict: limiter.Hold, Reason: limiter.Throttled}, 1},
		{"throttled", limiter.Decision{Verdict: limiter.Park, Reason: limiter.Throttled}, 1},
		{"unlimited", limiter.Decision{Verdict: limiter.Go, Remaining: math.MaxInt64}, 0},
		{"known to have a lane", limiter.Decision{Verdict: limiter.Park, Reason: limiter.LaneAhead}, 0},
		{"redelivered", limiter.Decision{Verdict: limiter.Park, Reason: limiter.Redeliver}, 0},
		{"too dear", limiter.Decision{Verdict: limiter.Never}, 0},
	}
	for _, test := range tests {
		reg := prometheus.NewRegistry()
		New(reg, limiter.Fixed(nil), "webhook", []string{"2xx", "5xx"}, classOf).Decided(&pipeline.Event{Key: "alice"}, test.dec)
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			if f.GetName() != "sluice_tokens_remaining" {
				continue
			}
			m := f.GetMetric()[0]
			if m.GetLabel()[0].GetName() != "tier" || m.GetHistogram().GetSampleCount() != test.seen {
				t.Errorf("%s: %v, want %d observed, by tier", test.name, m, test.seen)
			}
		}
	}
}

func TestLevelsAreByTheTierWhoseLimitsRule(t *testing.T) {
	t.Parallel()
	book := limiter.NewBook(limiter.Limits{})
	limits, err := limiter.ParseLimits("5/s")
	if err != nil {
		t.Fatal(err)
	}
	for place, rule := range map[limiter.Place]limiter.Rule{
		{Source: limiter.SourceTier, Name: "gold"}: {Limits: limits},
		{Source: limiter.SourceKey, Name: "alice"}: {Tier: "gold"},
		{Source: limiter.SourceKey, Name: "bob"}:   {Limits: limits},
	} {
		if err := book.Apply(limiter.Change{Place: place, Rule: rule}); err != nil {
			t.Fatal(err)
		}
	}
	reg := prometheus.NewRegistry()
	o := New(reg, book, "webhook", []string{"2xx", "5xx"}, classOf)
	for _, ev := range []*pipeline.Event{
		{Key: "alice"}, {Key: "carol", Tier: "gold"}, {Key: "bob", Tier: "gold"}, {Key: "dave"}, {Key: "dave", Tier: "made up"},
	} {
		o.Decided(ev, limiter.Decision{Verdict: limiter.Go, Remaining: 3})
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]uint64{}
	for _, f := range families {
		if f.GetName() == "sluice_tokens_remaining" {
			for _, m := range f.GetMetric() {
				got[m.GetLabel()[0].GetValue()] = m.GetHistogram().GetSampleCount()
			}
		}
	}
	if want := map[string]uint64{"gold": 2, "": 3}; !maps.Equal(got, want) {
		t.Errorf("observed by tier: %v, want %v", got, want)
	}
}

func TestHotKeysTakeManyAtATime(t *testing.T) {
	t.Parallel()
	h := NewHotKeys()
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for i := range 2000 {
				h.received(fmt.Sprint(i%3), "", false, time.Now())
				h.Busiest(2)
			}
		})
	}
	all.Wait()
	if busy := h.Busiest(5); len(busy) != 3 {
		t.Errorf("the busiest are %v, want 3 keys", busy)
	}
}

func BenchmarkHotKeys(b *testing.B) {
	for _, keys := range []int{3, 1000, 1_000_000} {
		b.Run(fmt.Sprint(keys), func(b *testing.B) {
			names := make([]string, keys)
			for i := range names {
				names[i] = fmt.Sprint("user", i)
			}
			h := NewHotKeys()
			b.ReportAllocs()
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				for i := rand.IntN(keys); pb.Next(); i = (i + 7919) % keys {
					h.received(names[i], "", false, time.Now())
				}
			})
		})
	}
}
