package limiter

import (
	"strings"
	"testing"
	"time"
)

func TestParseLimitReadsEveryForm(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	tests := []struct {
		in   string
		want Limit
		text string // the canonical text
	}{
		{"10/s burst 20", Limit{Events: 10, Period: time.Second, Burst: 20}, "10/s burst 20"},
		{"10/s", Limit{Events: 10, Period: time.Second, Burst: 10}, "10/s"},
		{"10/s burst 10", Limit{Events: 10, Period: time.Second, Burst: 10}, "10/s"},
		{"10/sec", Limit{Events: 10, Period: time.Second, Burst: 10}, "10/s"},
		{"007/1s", Limit{Events: 7, Period: time.Second, Burst: 7}, "7/s"},
		{"3/ms", Limit{Events: 3, Period: time.Millisecond, Burst: 3}, "3/ms"},
		{"3/100ms", Limit{Events: 3, Period: 100 * time.Millisecond, Burst: 3}, "3/100ms"},
		{"1/1500ms", Limit{Events: 1, Period: 1500 * time.Millisecond, Burst: 1}, "1/1500ms"},
		{"100/5m", Limit{Events: 100, Period: 5 * time.Minute, Burst: 100}, "100/5m"},
		{"100/min", Limit{Events: 100, Period: time.Minute, Burst: 100}, "100/m"},
		{"100/60s", Limit{Events: 100, Period: time.Minute, Burst: 100}, "100/m"},
		{"100/90m", Limit{Events: 100, Period: 90 * time.Minute, Burst: 100}, "100/90m"},
		{"5/h burst 1", Limit{Events: 5, Period: time.Hour, Burst: 1}, "5/h burst 1"},
		{"5/24h", Limit{Events: 5, Period: day, Burst: 5}, "5/d"},
		{"1/365d", Limit{Events: 1, Period: 365 * day, Burst: 1}, "1/365d"},
		{"1000000/s", Limit{Events: 1e6, Period: time.Second, Burst: 1e6}, "1000000/s"},
		{"1000/ms burst 2147483648", Limit{Events: 1000, Period: time.Millisecond, Burst: MaxBurst}, "1000/ms burst 2147483648"},
		{"10/s bucket", Limit{Events: 10, Period: time.Second, Burst: 10}, "10/s"},
		{"10/s burst 20 bucket", Limit{Events: 10, Period: time.Second, Burst: 20}, "10/s burst 20"},
		{"10/s bucket burst 20", Limit{Events: 10, Period: time.Second, Burst: 20}, "10/s burst 20"},
		{" \t10 /  S   BURST 20\n", Limit{Events: 10, Period: time.Second, Burst: 20}, "10/s burst 20"},
		{"10/ 5 Min burst 3", Limit{Events: 10, Period: 5 * time.Minute, Burst: 3}, "10/5m burst 3"},
		{"0", Limit{}, "0"},
		{"0/s", Limit{}, "0"},
		{"0/d burst 5", Limit{Burst: 5}, "0 burst 5"},
		{"0 burst 5", Limit{Burst: 5}, "0 burst 5"},
		{"Unlimited", Limit{Unlimited: true}, "unlimited"},
	}
	for _, tt := range tests {
		got, err := ParseLimit(tt.in)
		if err != nil || got != tt.want {
			t.Errorf("ParseLimit(%q) = %+v, %v; want %+v", tt.in, got, err, tt.want)
		}
		if got.String() != tt.text {
			t.Errorf("ParseLimit(%q).String() = %q, want %q", tt.in, got, tt.text)
		}
	}
}

func TestParseLimitSaysWhatToWriteInstead(t *testing.T) {
	t.Parallel()
	tests := []struct {
		in   string
		want []string // parts of the error
	}{
		{"", []string{`"10/s burst 20"`}},
		{"  ", []string{`"10/s burst 20"`}},
		{"ten/s", []string{`"ten"`, "not a whole number"}},
		{"-1/s", []string{`"-1"`, `"0" to pause`}},
		{"+1/s", []string{`"+1"`}},
		{"1.5/s", []string{`"1.5"`, "whole number"}},
		{"1e3/s", []string{`"1e3"`, "whole number"}},
		{"none", []string{`"none"`, `"unlimited"`}},
		{"10", []string{"write 10/s"}},
		{"10/", []string{"write 10/s"}},
		{"10 burst 5", []string{"write 10/s"}},
		{"10/5", []string{`"5"`, "write 5s"}},
		{"1/500us", []string{`"500us"`, "2/ms"}},
		{"1/us", []string{`"us"`, "2/ms"}},
		{"1/0.5ms", []string{`"0.5ms"`, "2/ms"}},
		{"1/1.5s", []string{`"1.5s"`, "write 1500ms"}},
		{"1/1h30m", []string{`"1h30m"`, "write 90m"}},
		{"1/2000us", []string{`"2000us"`, "write 2ms"}},
		{"1/0s", []string{`"0s"`, "write s"}},
		{"1/second", []string{`"second"`, "write s"}},
		{"1/week", []string{`"week"`, "write 7d"}},
		{"1/fortnight", []string{`"fortnight"`, "5m"}},
		{"1/366d", []string{`"366d"`, "365d"}},
		{"1/99999999999999999999d", []string{"too large"}},
		{"99999999999999999999/s", []string{"too large"}},
		{"1000001/s", []string{"1000000/s"}},
		{"1001/ms", []string{"1000000/s"}},
		{"3000000000/h", []string{"3000000000/h burst 2147483648"}},
		{"10/s burst", []string{"10/s burst 20"}},
		{"10/s burst x", []string{`the burst, "x"`}},
		{"10/s burst 0", []string{"burst of 0", "from 1 to 2147483648"}},
		{"10/s burst 2147483649", []string{"2147483649", "from 1 to 2147483648"}},
		{"10/s burst 3 burst 4", []string{`"burst" stands there twice`}},
		{"10/s bucket bucket", []string{`"bucket" stands there twice`}},
		{"10/s burst=3", []string{`"burst=3"`, "burst B"}},
		{"10 per s", []string{"10/s"}},
		{"unlimited burst 3", []string{`"unlimited" alone`}},
		{"10/s window", []string{`"window"`, "only one bucket limit is supported", `write "10/s"`}},
		{"10/s leaky", []string{`"leaky"`, "only one bucket limit is supported", `write "10/s"`}},
		{"10/s burst 20 window", []string{`"window"`, "only one bucket limit is supported", `write "10/s burst 20"`}},
		{"1000/d Sliding", []string{`"sliding"`, "only one bucket limit is supported", `write "1000/d"`}},
		{"10/s burst 20, 1000/d sliding", []string{"only one bucket limit is supported", `"10/s burst 20"`}},
		{"10/s,20/m", []string{"only one bucket limit is supported", `"10/s"`}},
		{"1,000/s", []string{"comma", `write "1000/s"`}},
		{"1/365d burst 1000", []string{"burst of 1000", "known for 36500d", "write burst 100 or less"}},
	}
	for _, tt := range tests {
		l, err := ParseLimit(tt.in)
		if err == nil {
			t.Errorf("ParseLimit(%q) = %v, want an error", tt.in, l)
			continue
		}
		for _, part := range append(tt.want, "limit ") {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("ParseLimit(%q): the error %q does not say %q", tt.in, err, part)
			}
		}
		if l != (Limit{}) {
			t.Errorf("ParseLimit(%q) returns %v beside its error", tt.in, l)
		}
	}
}

func TestParseLimitErrorStaysShort(t *testing.T) {
	t.Parallel()
	for _, in := range []string{"10/" + strings.Repeat("x", 1e5), strings.Repeat("9", 1e5) + "/s", strings.Repeat("1,", 1e4)} {
		if _, err := ParseLimit(in); err == nil || len(err.Error()) > 400 {
			t.Errorf("ParseLimit of %d bytes: error of %d bytes, want one of at most 400", len(in), len(err.Error()))
		}
	}
}

func TestBurstThatTheErrorAdvisesIsAccepted(t *testing.T) {
	t.Parallel()
	for _, in := range []string{"1/365d burst 100", "3/100d burst 1095", "1/d burst 36500"} {
		l, err := ParseLimit(in)
		if err != nil {
			t.Errorf("ParseLimit(%q): %v", in, err)
		}
		more := Limit{Events: l.Events, Period: l.Period, Burst: l.Burst + 1}
		if _, err := more.Class(); err == nil {
			t.Errorf("%v fits; the largest burst that fits should have been %d", more, l.Burst)
		}
	}
}

// fitsUnrounded says that the exact arithmetic has room for the limit as it is.
func fitsUnrounded(l Limit) bool {
	period := int64(l.Period / time.Microsecond)
	g := gcd(l.Events, period)
	return Class{Num: l.Events / g, Den: period / g, Burst: l.Burst}.exact()
}

func TestPausedAndUnlimitedAreDifferent(t *testing.T) {
	t.Parallel()
	var zero Limit
	if !zero.Paused() {
		t.Error("the zero limit should pause")
	}
	if (Limit{Unlimited: true}).Paused() {
		t.Error("unlimited should not pause")
	}
	if (Limit{Events: 1, Period: time.Second, Burst: 1}).Paused() {
		t.Error("1/s should not pause")
	}
}

func FuzzParseLimitRoundTrip(f *testing.F) {
	for _, s := range []string{
		"10/s burst 20", "0", "0/s burst 3", "unlimited", "1/365d", "1000000/s", "7/1500ms burst 2147483648", "10/5 m bucket",
		"1,000/s", "1/1h30m", "10/s window", "31535999999999/365d burst 1", "\u212a/s",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		l, err := ParseLimit(s)
		if err != nil {
			return
		}
		text := l.String()
		again, err := ParseLimit(text)
		if err != nil || again != l {
			t.Fatalf("%q is %+v, whose text %q is read as %+v, %v", s, l, text, again, err)
		}
		if again.String() != text {
			t.Fatalf("%q has the texts %q and %q", s, text, again)
		}
		if l.Unlimited {
			return
		}
		if _, err := l.Class(); err != nil {
			t.Fatalf("%q is accepted and has no class: %v", s, err)
		}
	})
}
