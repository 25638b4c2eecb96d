package verify

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/types"
)

func composeProject(t *testing.T) *types.Project {
	t.Helper()
	project, err := loader.LoadWithContext(t.Context(), types.ConfigDetails{
		WorkingDir:  top,
		ConfigFiles: []types.ConfigFile{{Filename: "docker-compose.yml", Content: read(t, "docker-compose.yml")}},
		Environment: types.Mapping{},
	})
	if err != nil {
		t.Fatal(err)
	}
	return project
}

func TestComposeFileHasAllThatIsToBeSeen(t *testing.T) {
	t.Parallel()
	project := composeProject(t)
	got := slices.Sorted(maps.Keys(project.Services))
	want := []string{"grafana", "nats", "producer", "prometheus", "receiver", "redis", "worker"}
	if !slices.Equal(got, want) {
		t.Errorf("services %q, want %q", got, want)
	}
	if n := project.Services["worker"].Deploy.Replicas; n == nil || *n != 2 {
		t.Error("there aren't two workers")
	}
}

func TestComposeServicesAreBoundedPinnedAndPrivate(t *testing.T) {
	t.Parallel()
	pinned := regexp.MustCompile(`:v?\d+\.\d+\.\d+(-alpine)?$`)
	for name, s := range composeProject(t).Services {
		if s.Build == nil && !pinned.MatchString(s.Image) {
			t.Errorf("%s: image %s isn't of one version", name, s.Image)
		}
		if s.Deploy == nil || s.Deploy.Resources.Limits == nil || s.Deploy.Resources.Limits.MemoryBytes == 0 || s.Deploy.Resources.Limits.NanoCPUs == 0 {
			t.Errorf("%s has no limits of memory and CPU", name)
		}
		if !s.ReadOnly || !slices.Contains(s.CapDrop, "ALL") {
			t.Errorf("%s may write to its image or has capabilities", name)
		}
		for _, p := range s.Ports {
			if p.HostIP != "127.0.0.1" {
				t.Errorf("%s: port %s is open to the network", name, p.Published)
			}
		}
		// The image of the worker has a check of its own; nobody waits for the others.
		if s.HealthCheck == nil && !slices.Contains([]string{"worker", "producer"}, name) {
			t.Errorf("%s has no health check", name)
		}
	}
}

func TestComposeWorkersTakeTheirSettings(t *testing.T) {
	t.Parallel()
	worker := composeProject(t).Services["worker"]
	settings := map[string]string{}
	for name, value := range worker.Environment {
		settings[name] = *value
	}
	takes(t, settings)
	drain := duration(t, settings, "DRAIN_TIMEOUT")
	if grace := worker.StopGracePeriod; grace == nil || timeOf(*grace) < drain+closing {
		t.Errorf("stop_grace_period is %v, draining takes %v and closing up to %v", grace, drain, closing)
	}
	for server, url := range map[string]string{"nats": "SLUICE_NATS_URL", "redis": "SLUICE_REDIS_URL", "receiver": "SLUICE_WEBHOOK_URL"} {
		if !strings.Contains(settings[url], "://"+server+":") {
			t.Errorf("%s=%s isn't the service %s", url, settings[url], server)
		}
		if worker.DependsOn[server].Condition != types.ServiceConditionHealthy {
			t.Errorf("workers don't wait for %s to be healthy", server)
		}
	}
}

func TestComposeServersKeepWhatTheyAreGiven(t *testing.T) {
	t.Parallel()
	services := composeProject(t).Services
	if redis := strings.Join(services["redis"].Command, " "); !strings.Contains(redis, "--maxmemory-policy noeviction") ||
		!strings.Contains(redis, "--appendonly yes") {
		t.Errorf("Redis may forget: %s", redis)
	}
	if nats := strings.Join(services["nats"].Command, " "); !strings.Contains(nats, "--store_dir /data") {
		t.Errorf("NATS doesn't store on the volume: %s", nats)
	}
	for _, name := range []string{"redis", "nats"} {
		volumes := services[name].Volumes
		if len(volumes) != 1 || volumes[0].Type != types.VolumeTypeVolume || volumes[0].Target != "/data" {
			t.Errorf("%s has no volume at /data", name)
		}
	}
}

func timeOf(d types.Duration) time.Duration { return time.Duration(d) }

func TestPrometheusFindsTheWorkersAndTheRules(t *testing.T) {
	t.Parallel()
	var config struct {
		Global struct {
			ScrapeInterval     string `json:"scrape_interval"`
			EvaluationInterval string `json:"evaluation_interval"`
		} `json:"global"`
		RuleFiles     []string `json:"rule_files"`
		ScrapeConfigs []struct {
			JobName      string `json:"job_name"`
			DNSSDConfigs []struct {
				Names           []string `json:"names"`
				Type            string   `json:"type"`
				Port            uint32   `json:"port"`
				RefreshInterval string   `json:"refresh_interval"`
			} `json:"dns_sd_configs"`
		} `json:"scrape_configs"`
	}
	strictly(t, "prometheus.yml", read(t, "deploy/prometheus/prometheus.yml"), &config)
	services := composeProject(t).Services
	workers := config.ScrapeConfigs[0].DNSSDConfigs[0]
	if services["worker"].Name != workers.Names[0] || services["worker"].Ports[0].Target != workers.Port {
		t.Errorf("%v at port %d are scraped", workers.Names, workers.Port)
	}
	mounted := services["prometheus"].Volumes[0]
	if mounted.Target != "/etc/prometheus" || !strings.HasSuffix(mounted.Source, "/deploy/prometheus") || !slices.Equal(config.RuleFiles, []string{"rules.yml"}) {
		t.Errorf("%s is mounted at %s, rules are %v", mounted.Source, mounted.Target, config.RuleFiles)
	}
}
