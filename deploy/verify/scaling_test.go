package verify

import (
	"math"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestFleetGrowsByWhatCouldBePushedOnly(t *testing.T) {
	t.Parallel()
	spec := render(t, "overlays/production").scaled.Spec
	if len(spec.Triggers) != 1 || spec.Triggers[0].Type != "prometheus" || spec.Triggers[0].MetricType != "AverageValue" {
		t.Fatalf("triggers are %+v", spec.Triggers)
	}
	trigger := spec.Triggers[0].Metadata
	exist(t, "the trigger", trigger["query"], nil)
	if trigger["ignoreNullValues"] != "false" || spec.Fallback.Replicas == 0 {
		t.Error("without figures the fleet shrinks")
	}
	threshold, err := strconv.ParseFloat(trigger["threshold"], 64)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		what                string
		eligible, throttled string
		workers             int // that KEDA asks for
	}{
		{"an idle pipeline", "0", "0", 1},
		{"5,000 events that wait for their limit", "0", "5000", 1},
		{"the same million of them, and a few on their way", "50", "1000000", 1},
		{"9,000 events that nobody has taken yet", "9000", "0", 5},
		{"more than ever will be", "1000000", "0", int(*spec.MaxReplicaCount)},
	} {
		b := newBench(t, nil)
		for _, worker := range []string{"a", "b", "c"} { // all show the same
			about := `{namespace="sluice", job="sluice", pod="` + worker + `"}`
			b.load("sluice_fleet_eligible_events"+about, c.eligible+"x10", time.Minute)
			b.load("sluice_fleet_throttled_events"+about, c.throttled+"x10", time.Minute)
			b.load("sluice_fleet_lanes"+about, c.throttled+"x10", time.Minute)
			b.load("sluice_fleet_eligible_events"+strings.Replace(about, "sluice", "other", 1), "77777x10", time.Minute)
		}
		value := b.ask(trigger["query"], (5 * time.Minute).Milliseconds())
		if len(value) != 1 {
			t.Fatalf("the query gives %d values, KEDA takes one", len(value))
		}
		workers := int(math.Ceil(value[0].F / threshold))
		workers = min(max(workers, int(*spec.MinReplicaCount)), int(*spec.MaxReplicaCount))
		if workers != c.workers {
			t.Errorf("%s: %d workers, want %d", c.what, workers, c.workers)
		}
	}
}

func TestNobodyElseSaysHowManyWorkersThereAre(t *testing.T) {
	t.Parallel()
	c := render(t, "overlays/production")
	if c.deployment.Spec.Replicas != nil || c.scaled.Spec.ScaleTargetRef.Name != c.deployment.Name {
		t.Errorf("the deployment has %v replicas, KEDA scales %s", c.deployment.Spec.Replicas, c.scaled.Spec.ScaleTargetRef.Name)
	}
	if n := render(t, "overlays/small").deployment.Spec.Replicas; n == nil || *n != 2 {
		t.Error("without KEDA the overlay has to say it")
	}
}

func TestMetricsOfTheManifestsAreScraped(t *testing.T) {
	t.Parallel()
	c := render(t, "overlays/production")
	for key, value := range c.monitor.Spec.Selector.MatchLabels {
		if c.service.Labels[key] != value {
			t.Errorf("the monitor looks for services with %s=%s, there is one with %v", key, value, c.service.Labels)
		}
	}
	end, port := c.monitor.Spec.Endpoints[0], c.service.Spec.Ports[0]
	if end.Port != port.Name || end.Path != "/metrics" {
		t.Errorf("the monitor scrapes %s at port %s, the service has %s", end.Path, end.Port, port.Name)
	}
	if named := c.deployment.Spec.Template.Spec.Containers[0].Ports[0]; port.TargetPort.StrVal != named.Name || named.ContainerPort != 7780 {
		t.Errorf("the service leads to %s, the pods have %s at %d", port.TargetPort.StrVal, named.Name, named.ContainerPort)
	}
}
