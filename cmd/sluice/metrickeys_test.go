package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"sluice/limiter"
)

func TestKeysOfMetricsAreFewAndMayHoldAnything(t *testing.T) {
	twenty := strings.TrimPrefix(strings.Repeat(",%s", 20), ",")
	names := make([]any, 20)
	for i := range names {
		names[i] = "k" + strconv.Itoa(i)
	}
	tests := []struct {
		value string
		want  []string
		fault string
	}{
		{"", nil, ""},
		{"alice, bob@example.com ,alice", []string{"alice", "bob@example.com"}, ""},
		{"a%2Cb,%FF,100%25", []string{"a,b", "\xff", "100%"}, ""},
		{"100%", nil, "begins no escape"},
		{strings.Repeat("x", limiter.MaxKey+1), nil, "longer than a key"},
		{fmt.Sprintf(twenty, names...) + ",one more", nil, "names 21 keys; use at most 20"},
	}
	for _, test := range tests {
		setEnvironment(t, "SLUICE_SINK=log", "SLUICE_METRIC_KEYS="+test.value)
		cfg, err := loadConfig(workerParts...)
		if test.fault != "" {
			if err == nil || !strings.Contains(err.Error(), test.fault) {
				t.Errorf("%q: %v, want one that says %q", test.value, err, test.fault)
			}
		} else if err != nil || !slices.Equal(cfg.MetricKeys, test.want) {
			t.Errorf("%q: %q, %v, want %q", test.value, cfg.MetricKeys, err, test.want)
		}
	}
}
