package verify

import (
	"encoding/json"
	"math"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/promql/parser"
)

// mayBeZero is what queries, or the names of alerts, contain of which a seeded run need not show anything but zero. They
// have to find something all the same.
var mayBeZero = map[string]string{
	"sluice_fallback_decisions_total":      "Redis is never away",
	"sluice_limiter_breaker_state":         "Redis is never away",
	"sluice_limiter_errors_total":          "no call fails",
	"sluice_redis_up":                      "asked for workers that Redis is away from",
	"sluice_nats_up":                       "asked for workers that NATS is away from",
	"sluice_lane_rebuilds_total":           "the index is never lost",
	"sluice_orphans_total":                 "the index is never lost",
	"sluice_source_redeliveries_total":     "nobody holds an event for as long as the source waits",
	"sluice_source_skipped_total":          "the source holds nothing but events",
	"sluice_late_tokens":                   "only a busy machine makes tokens late",
	"sluice_limits_faults":                 "the operator makes no mistake",
	"SluiceLimitsDiffer":                   "both workers go by the same limits",
	"sluice_fleet_eligible_events":         "two workers keep up",
	"sluice_fleet_oldest_eligible_seconds": "two workers keep up",
	"sluice_pushes_in_flight":              "at the moment of the scrape there may be none",
	"sluice_events_held":                   "at the moment of the scrape there may be none",
}

// Two workers between real servers get events of every sort. What is then asked of Prometheus, by a dashboard, a rule or
// an alert, has to have an answer: a query of a label that no worker has finds nothing and says so nowhere.
func TestEveryQueryShowsSomethingOfASeededRun(t *testing.T) {
	t.Parallel()
	r := startRun(t)
	b := newBench(t, rules(t))
	r.scrape(b)
	r.publish()
	r.settle()
	now := r.scrape(b).UnixMilli()
	b.evaluate(now)

	for _, rule := range b.rules {
		if rule.Record != "" {
			b.shows(rule.Record, rule.Expr, now)
			continue
		}
		for _, operand := range operands(t, rule.Expr) {
			b.shows(rule.Alert, operand, now)
		}
	}
	for name, d := range dashboards(t) {
		chosen := b.variables(name, d)
		for _, p := range d.Panels {
			for _, target := range p.Targets {
				b.shows(name+": "+p.Title, strings.NewReplacer(chosen...).Replace(target.Expr), now)
				b.shows(name+": "+p.Title+" of all", strings.NewReplacer("$namespace", ".*", "$job", ".*").Replace(target.Expr), now)
			}
		}
	}
}

// shows fails the test if a query finds nothing, or no number, or nothing but zero where the run made more.
func (b *bench) shows(what, query string, at int64) {
	b.t.Helper()
	numbers, zero := 0, true
	for _, sample := range b.ask(query, at) {
		if !math.IsNaN(sample.F) && !math.IsInf(sample.F, 0) {
			numbers++
			zero = zero && sample.F == 0
		}
	}
	for text := range mayBeZero {
		zero = zero && !strings.Contains(what+": "+query, text)
	}
	switch {
	case numbers == 0:
		b.t.Errorf("%s finds nothing: %s", what, query)
	case zero:
		b.t.Errorf("%s shows only zero: %s", what, query)
	}
}

var labelValues = regexp.MustCompile(`^label_values\((\w+), (\w+)\)$`)

// variables asks for the values that a dashboard offers for its variables and chooses one of each: pairs of name and value.
func (b *bench) variables(name string, d dashboard) (chosen []string) {
	b.t.Helper()
	for _, v := range d.Templating.List {
		if v.Type != "query" {
			continue
		}
		var query struct{ Query string }
		if err := json.Unmarshal(v.Query, &query); err != nil {
			b.t.Fatalf("%s: %s: %v", name, v.Name, err)
		}
		parts := labelValues.FindStringSubmatch(query.Query)
		if parts == nil {
			b.t.Fatalf("%s: %s is no query of label values: %s", name, v.Name, query.Query)
		}
		value := ""
		for _, s := range b.memory {
			if s.labels.Get(model.MetricNameLabel) == parts[1] {
				value = s.labels.Get(parts[2])
			}
		}
		if value == "" {
			b.t.Fatalf("%s: there is no %s to choose", name, v.Name)
		}
		chosen = append(chosen, "$"+v.Name, value)
	}
	return chosen
}

// operands are what an alert compares: its expression without the comparisons, which find nothing while all is well.
func operands(t *testing.T, alert string) (queries []string) {
	t.Helper()
	expr, err := parser.ParseExpr(alert)
	if err != nil {
		t.Fatal(err)
	}
	switch e := expr.(type) {
	case *parser.BinaryExpr:
		if e.Op.IsSetOperator() {
			return append(operands(t, e.LHS.String()), operands(t, e.RHS.String())...)
		}
	case *parser.Call:
		if e.Func.Name == "absent" {
			return operands(t, e.Args[0].String())
		}
	}
	return []string{compared(expr).String()}
}

// compared replaces each comparison with its left side.
func compared(expr parser.Expr) parser.Expr {
	switch e := expr.(type) {
	case *parser.BinaryExpr:
		if e.Op.IsComparisonOperator() && !e.ReturnBool {
			return compared(e.LHS)
		}
		e.LHS, e.RHS = compared(e.LHS), compared(e.RHS)
	case *parser.AggregateExpr:
		e.Expr = compared(e.Expr)
	case *parser.ParenExpr:
		e.Expr = compared(e.Expr)
	}
	return expr
}
