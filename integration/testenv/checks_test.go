package testenv

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// at makes times from offsets in milliseconds.
func at(offsets ...int) []time.Time {
	start := time.Now()
	times := make([]time.Time, len(offsets))
	for i, offset := range offsets {
		times[i] = start.Add(time.Duration(offset) * time.Millisecond)
	}
	return times
}

func TestBoundExcess(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		times     []time.Time
		rate      float64
		burst     int
		allowance time.Duration
		want      float64
	}{
		"nothing leaves all room":                  {at(), 10, 5, 0, -5},
		"one push uses one of the burst":           {at(0), 10, 5, 0, -4},
		"the burst at once is just allowed":        {at(0, 0, 0), 10, 3, 0, 0},
		"one beyond the burst":                     {at(0, 0, 0, 0), 10, 3, 0, 1},
		"exactly at the rate":                      {at(0, 100, 200, 300), 10, 1, 0, 0},
		"half a token early":                       {at(0, 100, 150), 10, 1, 0, 0.5},
		"an allowance of half a token forgives it": {at(0, 100, 150), 10, 1, 50 * time.Millisecond, 0},
		"a pause doesn't save up beyond the burst": {at(0, 60000, 60000, 60000), 10, 2, 0, 1},
		"the order of the record doesn't matter":   {at(60000, 0, 60000, 60000), 10, 2, 0, 1},
		"a worse window in the middle":             {at(0, 1000, 1000, 1010, 1020, 5000), 10, 1, 0, 2.8},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := BoundExcess(test.times, test.rate, test.burst, test.allowance)
			if math.Abs(got-test.want) > 1e-6 {
				t.Errorf("excess %v, want %v", got, test.want)
			}
		})
	}
}

// excessByDefinition looks at every window.
func excessByDefinition(times []time.Time, rate float64, burst int, allowance time.Duration) float64 {
	worst := math.Inf(-1)
	for i := range times {
		for j := i; j < len(times); j++ {
			window := times[j].Sub(times[i]) + allowance
			worst = max(worst, float64(j-i+1)-float64(burst)-rate*window.Seconds())
		}
	}
	return worst
}

func TestBoundExcessAgreesWithItsDefinition(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		times := make([]time.Time, 1+random.IntN(60))
		now := time.Now()
		for i := range times {
			if random.IntN(3) > 0 { // else at the same time as the last one
				now = now.Add(time.Duration(random.IntN(200)) * time.Millisecond)
			}
			times[i] = now
		}
		rate := math.Exp(random.Float64()*10 - 3) // 0.05 to 1,100 a second
		burst := 1 + random.IntN(20)
		allowance := time.Duration(random.IntN(50)) * time.Millisecond
		want := excessByDefinition(times, rate, burst, allowance)
		random.Shuffle(len(times), func(i, j int) { times[i], times[j] = times[j], times[i] })
		if got := BoundExcess(times, rate, burst, allowance); math.Abs(got-want) > 1e-6 {
			t.Fatalf("%d times, rate %v, burst %d, allowance %v: excess %v, want %v", len(times), rate, burst, allowance, got, want)
		}
	}
}

func TestUtilisation(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		times []time.Time
		rate  float64
		burst int
		want  float64
	}{
		"no gap":                    {at(0, 100, 200, 300), 10, 1, 1},
		"a full bucket first":       {at(0, 0, 0, 100, 200), 10, 3, 1},
		"half the rate":             {at(0, 200, 400), 10, 1, 0.5},
		"covered by the burst":      {at(0, 500), 10, 2, 1},
		"faster than allowed":       {at(0, 50, 100), 10, 1, 2},
		"the order doesn't matter":  {at(400, 0, 200), 10, 1, 0.5},
		"a single event has no gap": {at(7), 10, 0, 1},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := Utilisation(test.times, test.rate, test.burst); math.Abs(got-test.want) > 1e-9 {
				t.Errorf("utilisation %v, want %v", got, test.want)
			}
		})
	}
}

func TestInversionsCountsEventsBehindLaterOnes(t *testing.T) {
	t.Parallel()
	tests := []struct {
		orders []uint64
		want   int
	}{
		{nil, 0},
		{[]uint64{1, 2, 5, 9}, 0},
		{[]uint64{1, 3, 3, 4}, 0},
		{[]uint64{2, 1, 3}, 1},
		{[]uint64{9, 1, 2, 3}, 3}, // one early event, three that come behind it
		{[]uint64{1, 5, 2, 6, 3}, 2},
	}
	for _, test := range tests {
		if got := Inversions(test.orders); got != test.want {
			t.Errorf("%v: %d inversions, want %d", test.orders, got, test.want)
		}
	}
}

func TestPercentileIsTheNearestRank(t *testing.T) {
	t.Parallel()
	values := []int{50, 15, 40, 20, 35}
	for p, want := range map[float64]int{0: 15, 5: 15, 30: 20, 40: 20, 50: 35, 99: 50, 100: 50} {
		if got := Percentile(values, p); got != want {
			t.Errorf("percentile %v is %d, want %d", p, got, want)
		}
	}
	if values[0] != 50 {
		t.Error("the caller's values were sorted")
	}
	if got := Percentile([]time.Duration(nil), 99); got != 0 {
		t.Errorf("percentile of nothing is %v", got)
	}
}

func TestMissing(t *testing.T) {
	t.Parallel()
	got := Missing([]string{"c", "a", "b", "a", "d"}, []string{"b", "x", "d", "d"})
	if want := []string{"a", "c"}; !slices.Equal(got, want) {
		t.Errorf("missing %v, want %v", got, want)
	}
	if got := Missing([]string{"a"}, []string{"a"}); len(got) != 0 {
		t.Errorf("missing %v, want nothing", got)
	}
}
