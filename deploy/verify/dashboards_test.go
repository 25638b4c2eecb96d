package verify

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
)

// dashboard is what is looked at of a dashboard of Grafana.
type dashboard struct {
	UID        string `json:"uid"`
	Title      string `json:"title"`
	Templating struct {
		List []struct {
			Name  string          `json:"name"`
			Type  string          `json:"type"`
			Query json.RawMessage `json:"query"`
		} `json:"list"`
	} `json:"templating"`
	Panels []struct {
		ID      int    `json:"id"`
		Type    string `json:"type"`
		Title   string `json:"title"`
		GridPos struct{ X, Y, W, H int }
		Targets []struct {
			Expr string `json:"expr"`
		} `json:"targets"`
	} `json:"panels"`
}

func dashboards(t *testing.T) map[string]dashboard {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(top, "deploy/grafana/dashboards/*.json"))
	if err != nil || len(files) < 4 {
		t.Fatalf("%d dashboards, %v", len(files), err)
	}
	all := map[string]dashboard{}
	for _, file := range files {
		name := filepath.Base(file)
		var d dashboard
		if err := json.Unmarshal(read(t, "deploy/grafana/dashboards/"+name), &d); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		all[strings.TrimSuffix(name, ".json")] = d
	}
	return all
}

func TestDashboardsAskForMetricsThatExist(t *testing.T) {
	t.Parallel()
	asked := ""
	for name, d := range dashboards(t) {
		for _, p := range d.Panels {
			if len(p.Targets) == 0 && p.Type != "alertlist" {
				t.Errorf("%s: %s asks nothing", name, p.Title)
			}
			for _, target := range p.Targets {
				exist(t, name+": "+p.Title, target.Expr, nil)
				asked += target.Expr
				if strings.Count(target.Expr, "{") != strings.Count(target.Expr, `{namespace=~"$namespace", job=~"$job"`) {
					t.Errorf("%s: %s doesn't keep to the chosen pipeline: %s", name, p.Title, target.Expr)
				}
			}
		}
	}
	for _, metric := range metricsOf(t) {
		if !strings.Contains(asked, metric) && metric != "sluice_build_info" && metric != "sluice_tokens_remaining" {
			t.Errorf("no dashboard shows %s", metric)
		}
	}
}

func TestDashboardsAreFoundAndFitTheScreen(t *testing.T) {
	t.Parallel()
	type place struct{ x, y int }
	for name, d := range dashboards(t) {
		if d.UID != "sluice-"+name || d.Title == "" || len(d.Templating.List) != 3 {
			t.Errorf("%s: uid %s, title %q, %d variables", name, d.UID, d.Title, len(d.Templating.List))
		}
		ids, taken := map[int]bool{}, map[place]string{}
		for _, p := range d.Panels {
			if ids[p.ID] {
				t.Errorf("%s: two panels are %d", name, p.ID)
			}
			ids[p.ID] = true
			for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
				for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
					if other := taken[place{x, y}]; other != "" || x >= 24 {
						t.Fatalf("%s: %s covers %s", name, p.Title, other)
					}
					taken[place{x, y}] = p.Title
				}
			}
		}
	}
	// What the Compose file gives Grafana has to be where its provisioning looks.
	provisioning := string(read(t, "deploy/grafana/provisioning/dashboards/sluice.yml"))
	grafana := composeProject(t).Services["grafana"]
	path, _, _ := strings.Cut(*grafana.Environment["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"], "/on-call.json")
	if !strings.Contains(provisioning, "path: "+path+"\n") || grafana.Volumes[1].Target != path {
		t.Errorf("dashboards are mounted at %s, looked for at %s", grafana.Volumes[1].Target, path)
	}
}
