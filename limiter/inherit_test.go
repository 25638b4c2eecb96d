package limiter

import "testing"

// What was spent stays spent when a limit takes the place of another one of its kind, whatever their units.
func TestChangeOfTheUnitGivesNothing(t *testing.T) {
	t.Parallel()
	type step struct {
		limits string
		at     int64 // us
		want   int64 // of 10,000 that come then
	}
	for name, steps := range map[string][]step{
		"bucket, the same by another unit": {
			{"60/m burst 60", 0, 60}, {"1/s burst 60", 0, 0}, {"1/s burst 60", 5_000_000, 5}, {"60/m burst 60", 5_000_000, 0}, {"60/m burst 60", 65_000_000, 60},
		},
		"bucket, to and fro":       {{"10/s burst 20", 0, 20}, {"600/m burst 20", 1_000_000, 10}, {"10/s burst 20", 1_000_000, 0}, {"600/m burst 20", 1_500_000, 5}},
		"bucket, to a slower one":  {{"10/s burst 20", 0, 15}, {"1000/d", 0, 5}, {"1000/d", 86_400_000, 1}},
		"bucket, beside a new one": {{"10/s burst 20", 0, 20}, {"10/s burst 20, 5/m", 1_000_000, 5}},
		"bucket, the one used last": {
			{"10/s burst 20", 0, 20}, {"100/m burst 9", 10_000_000, 9}, {"5/h", 10_000_000, 0}, {"5/h", 730_000_000, 1},
		},
		"bucket, through a pause":   {{"60/m burst 60", 0, 60}, {"0", 0, 0}, {"1/s burst 60", 1_000_000, 1}},
		"of another kind":           {{"60/m burst 60", 0, 60}, {"60/m burst 60 window", 0, 60}, {"60/m leaky", 0, 1}, {"60/m sliding", 0, 60}},
		"leaky":                     {{"60/m leaky", 0, 1}, {"1/s leaky", 0, 0}, {"1/s leaky", 1_000_000, 1}},
		"window, to a longer one":   {{"60/m window", 0, 60}, {"3600/h window", 30_000_000, 0}, {"3600/h window", 60_000_000, 3600}, {"3600/h window", 3659_000_000, 0}},
		"window, to a shorter one":  {{"3600/h window", 0, 3600}, {"60/m window", 30_000_000, 0}, {"60/m window", 60_000_000, 60}},
		"sliding, to a longer one":  {{"60/m sliding", 0, 40}, {"100/h sliding", 30_000_000, 60}, {"100/h sliding", 3_779_000_000, 0}, {"100/h sliding", 3_780_000_000, 100}},
		"sliding, to a shorter one": {{"100/h sliding", 1, 40}, {"60/m sliding", 20_000_000, 20}, {"60/m sliding", 190_000_000, 60}},
	} {
		m, err := NewModel(nil)
		if err != nil {
			t.Fatal(err)
		}
		for i, s := range steps {
			limits, err := ParseLimits(s.limits)
			if err == nil {
				err = m.SetLimits(limits)
			}
			if err != nil {
				t.Fatal(err)
			}
			n := int64(10_000)
			if i == 0 {
				n = s.want // some leave a rest
			}
			const start = 1_800_000_000_000_000
			if got := m.Reserve(start+s.at, n, 1, 0).Granted; got != s.want {
				t.Errorf("%s, step %d: by %s at %d us %d go, want %d", name, i, s.limits, s.at, got, s.want)
			}
		}
	}
}
