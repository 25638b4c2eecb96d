package main

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/redis/go-redis/v9"

	"sluice/limiter"
	"sluice/limiter/redisstore"
	"sluice/pipeline/metrics"
	"sluice/pipeline/stream"
	"sluice/sink"
)

const readme = "../../README.md"

func readReadme(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(readme)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// settingsTable is the table of README.md as the code has it.
func settingsTable() string {
	var b strings.Builder
	b.WriteString("| variable | default | meaning |\n|---|---|---|\n")
	for _, v := range variables {
		preset := "-"
		if v.preset != "" {
			preset = "`" + v.preset + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", v.name, preset, v.help)
	}
	return b.String()
}

// With SLUICE_UPDATE_README=1 the table is written instead of compared.
func TestReadmeHasTheSettingsOfTheCode(t *testing.T) {
	text := readReadme(t)
	part := regexp.MustCompile(`(?s)(<!-- settings:[^\n]*-->\n)(.*?)(<!-- /settings -->)`)
	found := part.FindStringSubmatch(text)
	if found == nil {
		t.Fatal("README.md has no settings between its marks")
	}
	want := settingsTable()
	if found[2] == want {
		return
	}
	if os.Getenv("SLUICE_UPDATE_README") == "" {
		t.Fatal("the settings in README.md differ from the code; run SLUICE_UPDATE_README=1 go test ./cmd/sluice -run Readme")
	}
	text = strings.Replace(text, found[0], found[1]+want+found[3], 1)
	if err := os.WriteFile(readme, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// workerMetrics are all that a worker has.
func workerMetrics(t *testing.T) *prometheus.Registry {
	t.Helper()
	reg := newRegistry()
	w := &worker{reg: reg}
	w.registerUp()
	w.registerLimits(&stream.Limits{})
	w.registerSource(&stream.Source{})
	metrics.New(reg, limiter.Fixed(nil), "webhook", sink.Classes, sink.Class)
	fleet := metrics.NewFleet(reg, time.Hour)
	for f := metrics.Eligible; f <= metrics.Workers; f++ {
		fleet.Set(f, 1)
	}
	limit, err := limiter.ParseLimits("1/s")
	if err != nil {
		t.Fatal(err)
	}
	rdb := redis.NewClient(&redis.Options{})
	defer func() { _ = rdb.Close() }()
	if _, err := redisstore.New(rdb, redisstore.Options{Name: "sluice", Limits: limiter.Fixed(limit), Registry: reg}); err != nil {
		t.Fatal(err)
	}
	metrics.RegisterKeyTokens(reg, []string{"alice"}, func([]string) map[string]int64 { return map[string]int64{"alice": 1} })
	return reg
}

func TestMetricsOfAWorkerPassPrometheusLint(t *testing.T) {
	problems, err := testutil.GatherAndLint(workerMetrics(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		if strings.HasPrefix(p.Metric, "sluice_") {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
}

func TestReadmeNamesEveryMetricAndNoOther(t *testing.T) {
	families, err := workerMetrics(t).Gather()
	if err != nil {
		t.Fatal(err)
	}
	text := readReadme(t)
	exist := map[string]bool{}
	for _, f := range families {
		if name := f.GetName(); strings.HasPrefix(name, "sluice_") {
			exist[name] = true
			if !strings.Contains(text, name) {
				t.Errorf("README.md doesn't name %s", name)
			}
		}
	}
	for _, name := range regexp.MustCompile(`sluice_[a-z_]+`).FindAllString(text, -1) {
		if !exist[name] && !strings.HasSuffix(name, "_limits") && !strings.HasSuffix(name, "_state") {
			t.Errorf("README.md names %s, which doesn't exist", name)
		}
	}
}
