package limiter

import (
	"math"
	"strings"
	"testing"
	"time"
)

// mustLimits reads limits that the test knows to be right.
func mustLimits(t testing.TB, s string) Limits {
	t.Helper()
	ls, err := ParseLimits(s)
	if err != nil {
		t.Fatal(err)
	}
	return ls
}

func TestParseLimitsReadsEveryKind(t *testing.T) {
	t.Parallel()
	const sec = time.Second
	tests := []struct {
		in   string
		want Limits
		text string // the canonical text
	}{
		{"10/s burst 20", Limits{{Events: 10, Period: sec, Burst: 20}}, "10/s burst 20"},
		{"10/s window", Limits{{Events: 10, Period: sec, Burst: 10, Kind: Window}}, "10/s window"},
		{"10/s Window BURST 15", Limits{{Events: 10, Period: sec, Burst: 15, Kind: Window}}, "10/s burst 15 window"},
		{"10/s burst 10 window", Limits{{Events: 10, Period: sec, Burst: 10, Kind: Window}}, "10/s window"},
		{"10/s leaky", Limits{{Events: 10, Period: sec, Burst: 1, Kind: Leaky}}, "10/s leaky"},
		{"1/s leaky", Limits{{Events: 1, Period: sec, Burst: 1, Kind: Leaky}}, "1/s leaky"},
		{"10000000000/365d leaky", Limits{{Events: 1e10, Period: MaxPeriod, Burst: 1, Kind: Leaky}}, "10000000000/365d leaky"},
		{"1000/24h sliding", Limits{{Events: 1000, Period: day, Burst: 1000, Kind: Sliding}}, "1000/d sliding"},
		{"2147483648/365d sliding", Limits{{Events: MaxBurst, Period: MaxPeriod, Burst: MaxBurst, Kind: Sliding}}, "2147483648/365d sliding"},
		{"1/1000000s", Limits{{Events: 1, Period: 1e6 * sec, Burst: 1}}, "1/1000000s"},
		{"10/s burst 20, 1000/d sliding",
			Limits{{Events: 10, Period: sec, Burst: 20}, {Events: 1000, Period: day, Burst: 1000, Kind: Sliding}},
			"10/s burst 20, 1000/d sliding"},
		{"5/s sliding,5/s leaky,5/s window,5/s,5/m",
			Limits{
				{Events: 5, Period: sec, Burst: 5},
				{Events: 5, Period: sec, Burst: 5, Kind: Window},
				{Events: 5, Period: sec, Burst: 1, Kind: Leaky},
				{Events: 5, Period: sec, Burst: 5, Kind: Sliding},
				{Events: 5, Period: time.Minute, Burst: 5},
			}, "5/s, 5/s window, 5/s leaky, 5/s sliding, 5/m"},
		{"0", Limits{{}}, "0"},
		{"0/s sliding", Limits{{}}, "0"},
		{"0 burst 5", Limits{{Burst: 5}}, "0 burst 5"},
		{"10/s, 0, 5/d", Limits{{}}, "0"},
		{" unlimited ", Limits{{Unlimited: true}}, "unlimited"},
	}
	for _, tt := range tests {
		got, err := ParseLimits(tt.in)
		if err != nil || !got.Equal(tt.want) {
			t.Errorf("ParseLimits(%q) = %+v, %v; want %+v", tt.in, got, err, tt.want)
		}
		if got.String() != tt.text {
			t.Errorf("ParseLimits(%q).String() = %q, want %q", tt.in, got, tt.text)
		}
		if again, err := ParseLimits(tt.text); err != nil || !again.Equal(tt.want) {
			t.Errorf("ParseLimits(%q) = %+v, %v; want %+v", tt.text, again, err, tt.want)
		}
	}
}

func TestOrderOfLimitsChangesNothing(t *testing.T) {
	t.Parallel()
	a, b := mustLimits(t, "1000/d sliding, 60/60s window, 10/s burst 20"), mustLimits(t, "10/s burst 20,60/min window,1000/24h sliding")
	if !a.Equal(b) || a.String() != b.String() {
		t.Errorf("%q and %q should be the same", a, b)
	}
}

func TestParseLimitsSaysWhatToWriteInstead(t *testing.T) {
	t.Parallel()
	tests := []struct {
		in   string
		want []string // parts of the error
	}{
		{"", []string{"is empty", `"10/s burst 20"`}},
		{"10/s,", []string{"no limit on one side"}},
		{",", []string{"no limit on one side"}},
		{"10/s, ten/m", []string{`"ten/m"`, "not a whole number"}},
		{"10/s, 20/s", []string{`"10/s" and "20/s"`, "one kind and one unit", "write one of them"}},
		{"10/m window, 5/60s burst 7 window", []string{`"5/m burst 7 window"`, "write one of them"}},
		{"10/s, unlimited", []string{`"unlimited"`, "write it alone"}},
		{"unlimited, 0", []string{`"unlimited"`, "write it alone"}},
		{"unlimited sliding", []string{`write "unlimited" alone`}},
		{"10/s burst 5 leaky", []string{"no burst", `"10/s leaky"`, `"10/s burst 5"`}},
		{"10/s sliding burst 20", []string{"no burst", `"10/s sliding"`, `"10/s burst 20"`}},
		{"10/s burst 5 window", []string{"burst of 5 is less than the 10", "write burst 10 or more"}},
		{"10/s window leaky", []string{"window and leaky", "write one"}},
		{"10/s window window", []string{`"window" stands there twice`}},
		{"3000000000/h window", []string{"more than the most, 2147483648", "3000000000/h burst 2147483648"}},
		{"3000000000/h sliding", []string{"more than the most, 2147483648", "3000000000/h burst 2147483648"}},
		{"1/365d window burst 1000", []string{"too large for so slow a rate", "write burst 100 or less"}},
		{"2/365d window burst 1000", []string{"write burst 200 or less"}},
		{"1000001/s sliding", []string{"1000000/s"}},
		{"1/366d sliding", []string{"365d"}},
		{"10/s burst 1,000", []string{"comma", "1000", `"1, 000"`}}, // not a burst of 1, and a pause
		{"1,000/s", []string{"comma", "write 1000"}},
		{"1,000,000/d sliding", []string{"comma"}},
		{"1/s,1/m,1/h,1/d,1/2s,1/3s,1/4s,1/5s,1/6s", []string{"9 limits", "8"}},
	}
	for _, tt := range tests {
		ls, err := ParseLimits(tt.in)
		if err == nil {
			t.Errorf("ParseLimits(%q) = %v, want an error", tt.in, ls)
			continue
		}
		for _, part := range append(tt.want, "limit ") {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("ParseLimits(%q): the error %q does not say %q", tt.in, err, part)
			}
		}
		if ls != nil || len(err.Error()) > 400 {
			t.Errorf("ParseLimits(%q) returns %v beside an error of %d bytes", tt.in, ls, len(err.Error()))
		}
	}
}

// A limit's state is found by its name, so that the number of events and the burst may change and the unit's spelling
// doesn't matter.
func TestNameOfLimitIsItsKindAndPeriod(t *testing.T) {
	t.Parallel()
	tests := map[string]string{
		"10/s": "bucket/1s", "99/1000ms burst 7": "bucket/1s", "10/m window": "window/1m", "10/5m leaky": "leaky/5m",
		"10/24h sliding": "sliding/1d", "10/36h": "bucket/36h", "1/ms": "bucket/1ms", "0": "paused", "unlimited": "unlimited",
	}
	for in, want := range tests {
		if got := mustLimits(t, in)[0].Name(); got != want {
			t.Errorf("the name of %q is %q, want %q", in, got, want)
		}
	}
	if got := (Limit{Events: 1, Period: 1500 * time.Microsecond, Burst: 1}).Name(); got != "bucket/1500us" {
		t.Errorf("the name of a limit per 1.5 ms is %q, want bucket/1500us", got)
	}
}

func TestMaxCostIsTheLeastBurst(t *testing.T) {
	t.Parallel()
	tests := map[string]int64{
		"10/s burst 20": 20, "10/s burst 20, 15/d sliding": 15, "10/s, 5/s leaky": 1, "5/s window burst 7": 7,
		"0": math.MaxInt64, "0 burst 5": math.MaxInt64, "unlimited": math.MaxInt64,
	}
	for in, want := range tests {
		if got := mustLimits(t, in).MaxCost(); got != want {
			t.Errorf("the most that an event may cost under %q is %d, want %d", in, got, want)
		}
	}
}

func TestNoLimitsPause(t *testing.T) {
	t.Parallel()
	var none Limits
	if !none.Paused() || none.Unlimited() || none.String() != "0" {
		t.Errorf("no limits: paused %v, unlimited %v, text %q; want a pause", none.Paused(), none.Unlimited(), none)
	}
}

func TestClassOfEveryKind(t *testing.T) {
	t.Parallel()
	tests := map[string]Class{
		"10/s":                    {1, 100_000, 10, Bucket},
		"10/s leaky":              {1, 100_000, 1, Leaky},
		"10/s burst 15 window":    {10, 1_000_000, 15, Window},
		"1000/d sliding":          {1000, 86_400_000_000, 1000, Sliding},
		"1/365d burst 100 window": {1, 31_536_000_000_000, 100, Window},
	}
	for in, want := range tests {
		if got, err := mustLimits(t, in)[0].Class(); err != nil || got != want {
			t.Errorf("the class of %q is %+v, %v; want %+v", in, got, err, want)
		}
	}
	for _, l := range []Limit{
		{Events: 10, Period: time.Second, Burst: 10, Kind: Leaky},
		{Events: 10, Period: time.Second, Burst: 20, Kind: Sliding},
		{Events: 10, Period: time.Second, Burst: 9, Kind: Window},
		{Events: 10, Period: time.Second, Burst: 10, Kind: Sliding + 1},
	} {
		if c, err := l.Class(); err == nil {
			t.Errorf("the class of %+v is %+v, want an error", l, c)
		}
		if _, err := NewModel(Limits{l}); err == nil {
			t.Errorf("a model of %+v should be refused", l)
		}
	}
}

func TestSlicesPartEveryPeriodOfTheGrammar(t *testing.T) {
	t.Parallel()
	for _, in := range []string{"1/ms sliding", "1/7ms sliding", "1/s sliding", "1/365d sliding"} {
		c, err := mustLimits(t, in)[0].Class()
		if err != nil || c.slice()*Slices != c.Den {
			t.Errorf("%q: %d slices of %d us are not %d us (%v)", in, Slices, c.slice(), c.Den, err)
		}
	}
}

func FuzzParseLimitsRoundTrip(f *testing.F) {
	for _, s := range []string{
		"10/s burst 20, 1000/d sliding", "0", "unlimited", "1/365d window burst 100", "10/5 m leaky,10/s", "1,000/s", "1/s,,",
		"10/s burst 1,000", "2147483648/365d sliding", "0/s window, 5/s", "1/s,1/m,1/h,1/d,1/2s,1/3s,1/4s,1/5s,1/6s",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		ls, err := ParseLimits(s)
		if err != nil {
			return
		}
		text := ls.String()
		again, err := ParseLimits(text)
		if err != nil || !again.Equal(ls) || again.String() != text {
			t.Fatalf("%q is %+v, whose text %q is read as %+v, %v", s, ls, text, again, err)
		}
		if _, err := NewModel(ls); err != nil {
			t.Fatalf("%q is accepted and has no model: %v", s, err)
		}
		names := map[string]bool{}
		for _, l := range ls {
			if names[l.Name()] {
				t.Fatalf("%q has two limits of the name %s", s, l.Name())
			}
			names[l.Name()] = true
		}
	})
}
