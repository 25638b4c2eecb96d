package metrics

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

func TestFigureIsShownAsLongAsItIsFresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewRegistry()
		f := NewFleet(reg, 10*time.Second)
		shown := func(want string) {
			t.Helper()
			families, err := reg.Gather()
			if err != nil {
				t.Fatal(err)
			}
			var names []string
			for _, family := range families {
				names = append(names, family.GetName())
			}
			if got := strings.Join(names, " "); got != want {
				t.Errorf("shown: %q, want %q", got, want)
			}
		}
		shown("")
		f.Set(Eligible, 3)
		time.Sleep(9 * time.Second)
		f.Set(Workers, 2)
		shown("sluice_fleet_eligible_events sluice_fleet_workers")
		if err := testutil.GatherAndCompare(reg, strings.NewReader(`
# HELP sluice_fleet_eligible_events Events that could be pushed now if there were more workers. Of the whole pipeline: use max, not sum.
# TYPE sluice_fleet_eligible_events gauge
sluice_fleet_eligible_events 3
`), "sluice_fleet_eligible_events"); err != nil {
			t.Error(err)
		}
		time.Sleep(2 * time.Second)
		shown("sluice_fleet_workers")
	})
}

func TestFiguresPassPrometheusLint(t *testing.T) {
	reg := prometheus.NewRegistry()
	f := NewFleet(reg, time.Hour)
	for fig := range figures {
		f.Set(fig, 1)
	}
	problems, err := testutil.GatherAndLint(reg)
	if n, countErr := testutil.GatherAndCount(reg); n != int(figures) || countErr != nil {
		t.Errorf("%d figures, %v", n, countErr)
	}
	if err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
}
