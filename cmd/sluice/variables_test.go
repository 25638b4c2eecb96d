package main

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kelseyhightower/envconfig"
)

func TestTableAndEnvironmentHoldTheSameVariables(t *testing.T) {
	t.Parallel()
	var read strings.Builder
	if err := envconfig.Usagef("SLUICE", &environment{}, &read, "{{range .}}{{usage_key .}}\n{{end}}"); err != nil {
		t.Fatal(err)
	}
	var table []string
	for _, v := range variables {
		table = append(table, prefix+v.name)
		if v.help == "" {
			t.Errorf("%s has no help", v.name)
		}
	}
	fields := strings.Fields(read.String())
	slices.Sort(fields)
	slices.Sort(table)
	if !slices.Equal(fields, table) {
		t.Errorf("the struct reads\n%v\nthe table has\n%v", fields, table)
	}
	for _, name := range []string{"SLUICE_NATS_URL", "SLUICE_NATS_TLS_CA", "SLUICE_NATS_JS_DOMAIN", "SLUICE_KEY_MAX_WAITING",
		"SLUICE_DLQ_MAX_BYTES", "SLUICE_WEBHOOK_URL", "SLUICE_RETRY_FOR", "SLUICE_NATS_NKEY"} {
		if !slices.Contains(fields, name) {
			t.Errorf("%s is not read", name)
		}
	}
}

func TestHelpListsEveryVariable(t *testing.T) {
	t.Parallel()
	help := configHelp()
	for _, v := range variables {
		if !strings.Contains(help, "  "+prefix+v.name+" ") || !strings.Contains(help, v.help) {
			t.Errorf("the help lacks %s or its meaning", v.name)
		}
	}
}

func TestKubernetesVariablesAreIgnored(t *testing.T) {
	t.Parallel()
	cases := []struct {
		pair    string
		ignored bool
	}{
		{"SLUICE_SERVICE_HOST=10.0.0.1", true},
		{"SLUICE_SERVICE_PORT=7780", true},
		{"SLUICE_SERVICE_PORT_HTTP_ADMIN=7780", true},
		{"SLUICE_PORT=tcp://10.0.0.1:7780", true},
		{"SLUICE_PORT_7780_TCP=tcp://10.0.0.1:7780", true},
		{"SLUICE_PORT_7780_TCP_PROTO=tcp", true},
		{"SLUICE_PORT_7780_TCP_PORT=7780", true},
		{"SLUICE_PORT_7780_TCP_ADDR=10.0.0.1", true},
		{"SLUICE_REDIS_SERVICE_HOST=10.0.0.2", true},
		{"SLUICE_REDIS_MASTER_SERVICE_PORT_TCP_REDIS=6379", true},
		{"SLUICE_REDIS_PORT=tcp://10.0.0.2:6379", true},
		{"SLUICE_DNS_PORT_53_UDP_ADDR=10.0.0.3", true},
		{"SLUICE_MAX_WAIT=", true},
		{"SLUICE_UNKNOWN=", true}, // empty counts as unset
		{"OTHER_PORT=1", true},

		{"SLUICE_PORT=7780", false},
		{"SLUICE_ADMIN_PORT=7780", false},
		{"SLUICE_NATS_URLS=tcp://10.0.0.1:1", false},
		{"SLUICE_REDIS_HOST=10.0.0.1", false},
		{"SLUICE_SERVICE=10.0.0.1", false},
		{"SLUICE_PORT_X_TCP=tcp://10.0.0.1:1", false},
	}
	for _, c := range cases {
		var r reader
		checkNames(&r, []string{c.pair})
		if ignored := len(r.faults) == 0; ignored != c.ignored {
			t.Errorf("%s: ignored is %v, want %v; %v", c.pair, ignored, c.ignored, r.faults)
		}
	}
	for _, v := range variables {
		if injected(prefix+v.name, "tcp://10.0.0.1:1") {
			t.Errorf("%s is taken for one of Kubernetes'", v.name)
		}
	}
}

func TestMisspeltNameGetsTheNearestOne(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"SLUICE_NAT_URL":      "did you mean SLUICE_NATS_URL?",
		"SLUICE_LIMITS":       "did you mean SLUICE_LIMIT?",
		"SLUICE_WEBHOOKURL":   "did you mean SLUICE_WEBHOOK_URL?",
		"SLUICE_CONCURENCY":   "did you mean SLUICE_CONCURRENCY?",
		"SLUICE_SUBJECT":      "did you mean SLUICE_SUBJECTS?",
		"SLUICE_UTTERLY_ELSE": "unset it, or see 'sluice worker --help'",
	} {
		if got := suggestion(name); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
}

func TestVariableOfALaterVersionIsRefusedAsSuch(t *testing.T) {
	t.Parallel()
	for _, name := range laterVariables {
		var r reader
		checkNames(&r, []string{prefix + name + "=1"})
		if len(r.faults) != 1 || !strings.Contains(r.faults[0], "not supported by this version") {
			t.Errorf("%s: got %v", name, r.faults)
		}
	}
}

func TestParseDuration(t *testing.T) {
	t.Parallel()
	good := map[string]time.Duration{
		"0": 0, "0s": 0, "500ms": 500 * time.Millisecond, "1h30m": 90 * time.Minute, "1.5h": 90 * time.Minute,
		"1d": 24 * time.Hour, "1d12h": 36 * time.Hour, "106751d": 106751 * 24 * time.Hour, "-5s": -5 * time.Second,
	}
	for text, want := range good {
		if got, err := parseDuration(text); err != nil || got != want {
			t.Errorf("%q: got %v, %v, want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "30", "1.5", "d", "1.5d", "-1d", "+1d", "1d-2h", "1d1d", "1d2", "12h1d", "1 d", "106752d", "106751d24h", "9e9d", "1w"} {
		if got, err := parseDuration(text); err == nil {
			t.Errorf("%q: got %v, want an error", text, got)
		}
	}
}

func FuzzParseDuration(f *testing.F) {
	for _, s := range []string{"1d12h", "106751d23h47m16s", "d", "-1d"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		d, err := parseDuration(s)
		if err == nil && d < 0 && !strings.HasPrefix(s, "-") {
			t.Errorf("%q became %v", s, d)
		}
	})
}
