package verify

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
)

const rulesFile = "deploy/prometheus/rules.yml"

func rules(t *testing.T) []rulefmt.Rule {
	t.Helper()
	groups, errs := rulefmt.ParseFile(filepath.Join(top, rulesFile), false, model.LegacyValidation)
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	var all []rulefmt.Rule
	for _, g := range groups.Groups {
		all = append(all, g.Rules...)
	}
	return all
}

func TestRulesDoWhatTheirUnitTestsSay(t *testing.T) {
	t.Parallel()
	var file unitTests
	strictly(t, "rules_test.yml", read(t, "deploy/prometheus/rules_test.yml"), &file)
	if len(file.RuleFiles) != 1 || file.RuleFiles[0] != filepath.Base(rulesFile) {
		t.Errorf("the tests are of %v", file.RuleFiles)
	}
	all := rules(t)
	fired, quiet := map[string]bool{}, map[string]bool{}
	for _, test := range file.Tests {
		t.Run(test.Name, func(t *testing.T) {
			runUnit(t, test, all, time.Duration(file.EvaluationInterval))
		})
		for _, a := range test.AlertRuleTests {
			fired[a.AlertName] = fired[a.AlertName] || len(a.ExpAlerts) > 0
			quiet[a.AlertName] = quiet[a.AlertName] || len(a.ExpAlerts) == 0
		}
	}
	for _, rule := range all {
		if rule.Alert != "" && (!fired[rule.Alert] || !quiet[rule.Alert]) {
			t.Errorf("no test of when %s fires, or none of when it doesn't", rule.Alert)
		}
	}
}

func runUnit(t *testing.T, test unitTest, all []rulefmt.Rule, interval time.Duration) {
	b := newBench(t, all)
	for _, s := range test.InputSeries {
		b.load(s.Series, s.Values, time.Duration(test.Interval))
	}
	last := time.Duration(0)
	for _, a := range test.AlertRuleTests {
		last = max(last, time.Duration(a.EvalTime))
	}
	for _, e := range test.ExprTests {
		last = max(last, time.Duration(e.EvalTime))
	}
	for at := time.Duration(0); at <= last; at += interval {
		b.evaluate(at.Milliseconds())
		for _, a := range test.AlertRuleTests {
			if time.Duration(a.EvalTime) != at {
				continue
			}
			want := make([]alert, 0, len(a.ExpAlerts))
			for _, e := range a.ExpAlerts {
				want = append(want, alert{e.ExpLabels, e.ExpAnnotations})
			}
			sameAlerts(t, fmt.Sprintf("%s at %v", a.AlertName, at), b.fires[a.AlertName], want)
		}
		for _, e := range test.ExprTests {
			if time.Duration(e.EvalTime) != at {
				continue
			}
			got, want := map[string]float64{}, map[string]float64{}
			for _, sample := range b.ask(e.Expr, at.Milliseconds()) {
				got[sample.Metric.String()] = sample.F
			}
			for _, s := range e.ExpSamples {
				l := labels.EmptyLabels()
				if s.Labels != "{}" {
					var err error
					if l, err = parser.ParseMetric(s.Labels); err != nil {
						t.Fatal(err)
					}
				}
				want[l.String()] = s.Value
			}
			if !maps.EqualFunc(got, want, func(a, b float64) bool { return a-b < 1e-6 && b-a < 1e-6 }) {
				t.Errorf("%s at %v: got %v, want %v", e.Expr, at, got, want)
			}
		}
	}
}

func sameAlerts(t *testing.T, what string, got, want []alert) {
	t.Helper()
	text := func(alerts []alert) []string {
		var lines []string
		for _, a := range alerts {
			lines = append(lines, fmt.Sprint(a.labels, a.annotations))
		}
		slices.Sort(lines)
		return lines
	}
	if g, w := text(got), text(want); !slices.Equal(g, w) {
		t.Errorf("%s: got\n%s\nwant\n%s", what, strings.Join(g, "\n"), strings.Join(w, "\n"))
	}
}

// notOurs are metrics that every program in Go has.
var notOurs = []string{"process_cpu_seconds_total"}

// exist reports names in a query that are neither metrics of the program nor recorded by a rule, and figures of the whole
// pipeline, which every worker shows, of which not the max is taken.
func exist(t *testing.T, what, query string, recorded []string) {
	t.Helper()
	expr, err := parser.ParseExpr(query)
	if err != nil {
		t.Errorf("%s: %v", what, err)
		return
	}
	known := slices.Concat(metricsOf(t), notOurs, recorded)
	parser.Inspect(expr, func(node parser.Node, above []parser.Node) error {
		selector, ok := node.(*parser.VectorSelector)
		if !ok {
			return nil
		}
		base := selector.Name
		for _, suffix := range []string{"_bucket", "_sum", "_count"} {
			base = strings.TrimSuffix(base, suffix)
		}
		if !slices.Contains(known, selector.Name) && !slices.Contains(known, base) {
			t.Errorf("%s: there is no metric %s", what, selector.Name)
		}
		if strings.HasPrefix(selector.Name, "sluice_fleet_") && !isMax(above) {
			t.Errorf("%s: every worker shows %s: take the max", what, selector.Name)
		}
		return nil
	})
}

// isMax says whether the closest aggregation is max.
func isMax(above []parser.Node) bool {
	for _, node := range slices.Backward(above) {
		if a, ok := node.(*parser.AggregateExpr); ok {
			return a.Op == parser.MAX
		}
	}
	return false
}

func TestRulesNameMetricsThatExist(t *testing.T) {
	t.Parallel()
	var recorded []string
	for _, rule := range rules(t) { // in order: a rule reads only what was recorded before
		exist(t, rule.Record+rule.Alert, rule.Expr, recorded)
		if rule.Record != "" {
			recorded = append(recorded, rule.Record)
		}
	}
}

func TestEveryAlertHasItsParagraphInTheRunbook(t *testing.T) {
	t.Parallel()
	book := string(read(t, "deploy/prometheus/RUNBOOK.md"))
	alerts := 0
	for _, rule := range rules(t) {
		if rule.Alert == "" {
			continue
		}
		alerts++
		_, paragraph, found := strings.Cut(book, "\n## "+rule.Alert+"\n\n")
		if paragraph, _, _ = strings.Cut(paragraph, "\n## "); !found || len(paragraph) < 200 {
			t.Errorf("%s has no paragraph", rule.Alert)
		}
		if want := "deploy/prometheus/RUNBOOK.md#" + strings.ToLower(rule.Alert); rule.Annotations["runbook"] != want {
			t.Errorf("%s: runbook is %q, want %q", rule.Alert, rule.Annotations["runbook"], want)
		}
		if s := rule.Labels["severity"]; (s != "page" && s != "ticket") || rule.Annotations["summary"] == "" {
			t.Errorf("%s has severity %q and summary %q", rule.Alert, s, rule.Annotations["summary"])
		}
	}
	if n := strings.Count(book, "\n## "); n != alerts {
		t.Errorf("%d paragraphs for %d alerts", n, alerts)
	}
}

func TestRunbookKnowsEveryReasonOfDeadLetters(t *testing.T) {
	t.Parallel()
	_, list, _ := strings.Cut(string(read(t, "README.md")), "\nReasons of dead letters: ")
	list, _, found := strings.Cut(list, ". ")
	if !found {
		t.Fatal("README.md doesn't list the reasons")
	}
	book := string(read(t, "deploy/prometheus/RUNBOOK.md"))
	for reason := range strings.SplitSeq(list, ", ") {
		if !strings.Contains(book, reason) {
			t.Errorf("the runbook doesn't say what to do about %s", reason)
		}
	}
}
