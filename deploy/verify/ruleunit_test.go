package verify

import (
	"context"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/template"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/util/annotations"
)

// unitTests is the part of the format of `promtool test rules` that is used here.
type unitTests struct {
	RuleFiles          []string       `json:"rule_files"`
	EvaluationInterval model.Duration `json:"evaluation_interval"`
	Tests              []unitTest     `json:"tests"`
}

type unitTest struct {
	Name        string         `json:"name"`
	Interval    model.Duration `json:"interval"`
	InputSeries []struct {
		Series string `json:"series"`
		Values string `json:"values"`
	} `json:"input_series"`
	AlertRuleTests []struct {
		EvalTime  model.Duration `json:"eval_time"`
		AlertName string         `json:"alertname"`
		ExpAlerts []struct {
			ExpLabels      map[string]string `json:"exp_labels"`
			ExpAnnotations map[string]string `json:"exp_annotations"`
		} `json:"exp_alerts"`
	} `json:"alert_rule_test"`
	ExprTests []struct {
		Expr       string         `json:"expr"`
		EvalTime   model.Duration `json:"eval_time"`
		ExpSamples []struct {
			Labels string  `json:"labels"`
			Value  float64 `json:"value"`
		} `json:"exp_samples"`
	} `json:"promql_expr_test"`
}

// memory is a storage of a few series.
type memory map[string]*series

type series struct {
	labels  labels.Labels
	samples []chunks.Sample
}

// point is a sample of a float.
type point struct {
	at    int64 // milliseconds
	value float64
}

func (p point) T() int64                      { return p.at }
func (p point) F() float64                    { return p.value }
func (p point) H() *histogram.Histogram       { return nil }
func (p point) FH() *histogram.FloatHistogram { return nil }
func (p point) Type() chunkenc.ValueType      { return chunkenc.ValFloat }
func (p point) Copy() chunks.Sample           { return p }

func (m memory) add(l labels.Labels, at int64, value float64) {
	s := m[l.String()]
	if s == nil {
		s = &series{labels: l}
		m[l.String()] = s
	}
	s.samples = append(s.samples, point{at, value})
}

// Querier implements [storage.Queryable].
func (m memory) Querier(int64, int64) (storage.Querier, error) { return querier{memory: m}, nil }

// querier selects series; PromQL asks for nothing else.
type querier struct {
	storage.LabelQuerier
	memory memory
}

func (q querier) Close() error { return nil }

func (q querier) Select(_ context.Context, _ bool, _ *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
	var found []storage.Series
	for _, name := range slices.Sorted(maps.Keys(q.memory)) {
		s := q.memory[name]
		if !slices.ContainsFunc(matchers, func(m *labels.Matcher) bool { return !m.Matches(s.labels.Get(m.Name)) }) {
			found = append(found, storage.NewListSeries(s.labels, s.samples))
		}
	}
	return &seriesSet{all: found}
}

type seriesSet struct {
	all []storage.Series
	now storage.Series
}

func (s *seriesSet) Next() bool {
	if len(s.all) == 0 {
		return false
	}
	s.now, s.all = s.all[0], s.all[1:]
	return true
}

func (s *seriesSet) At() storage.Series                { return s.now }
func (s *seriesSet) Err() error                        { return nil }
func (s *seriesSet) Warnings() annotations.Annotations { return nil }

// bench evaluates rules over series, as Prometheus does, from second 0.
type bench struct {
	t      *testing.T
	engine *promql.Engine
	memory memory
	rules  []rulefmt.Rule
	since  map[string]map[string]int64 // by alert and labels, when it began
	fires  map[string][]alert          // by alert, at the last evaluation
}

type alert struct {
	labels, annotations map[string]string
}

func newBench(t *testing.T, rules []rulefmt.Rule) *bench {
	return &bench{
		t: t, rules: rules, memory: memory{}, since: map[string]map[string]int64{},
		engine: promql.NewEngine(promql.EngineOpts{MaxSamples: 1e6, Timeout: time.Minute, LookbackDelta: 5 * time.Minute}),
	}
}

// load adds series in the notation of promtool.
func (b *bench) load(notation, values string, interval time.Duration) {
	b.t.Helper()
	l, sequence, err := parser.ParseSeriesDesc(notation + " " + values)
	if err != nil {
		b.t.Fatalf("%s %s: %v", notation, values, err)
	}
	for i, v := range sequence {
		if !v.Omitted {
			b.memory.add(l, int64(i)*interval.Milliseconds(), v.Value)
		}
	}
}

func (b *bench) ask(expr string, at int64) promql.Vector {
	b.t.Helper()
	query, err := b.engine.NewInstantQuery(b.t.Context(), b.memory, nil, expr, time.UnixMilli(at))
	if err != nil {
		b.t.Fatalf("%s: %v", expr, err)
	}
	defer query.Close()
	result := query.Exec(b.t.Context())
	vector, err := result.Vector()
	if err != nil {
		b.t.Fatalf("%s: %v", expr, err)
	}
	return slices.Clone(vector)
}

// evaluate evaluates all rules once, in their order.
func (b *bench) evaluate(at int64) {
	b.t.Helper()
	b.fires = map[string][]alert{}
	for _, rule := range b.rules {
		vector := b.ask(rule.Expr, at)
		if rule.Record != "" {
			for _, sample := range vector {
				l := labels.NewBuilder(sample.Metric).Set(model.MetricNameLabel, rule.Record).Labels()
				b.memory.add(l, at, sample.F)
			}
			continue
		}
		began := map[string]int64{}
		for _, sample := range vector {
			id := sample.Metric.DropReserved(func(n string) bool { return n == model.MetricNameLabel }).String()
			began[id] = at
			if before, ok := b.since[rule.Alert][id]; ok {
				began[id] = before
			}
			if at-began[id] >= time.Duration(rule.For).Milliseconds() {
				b.fires[rule.Alert] = append(b.fires[rule.Alert], b.alert(rule, sample, at))
			}
		}
		b.since[rule.Alert] = began
	}
}

// alert expands the annotations of a rule that fires.
func (b *bench) alert(rule rulefmt.Rule, sample promql.Sample, at int64) alert {
	l := sample.Metric.Map()
	delete(l, model.MetricNameLabel)
	data := template.AlertTemplateData(l, nil, "", sample)
	a := alert{labels: maps.Clone(rule.Labels), annotations: map[string]string{}}
	maps.Copy(a.labels, l)
	const prefix = "{{$labels := .Labels}}{{$value := .Value}}" // as Prometheus does
	for name, text := range rule.Annotations {
		expanded, err := template.NewTemplateExpander(b.t.Context(), prefix+text, rule.Alert, data, model.Time(at), nil, nil, nil).Expand()
		if err != nil {
			b.t.Errorf("%s: %s: %v", rule.Alert, name, err)
		}
		a.annotations[name] = expanded
	}
	return a
}
