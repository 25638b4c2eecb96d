package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const limitsFile = `# limits
default: 20/s
tiers:
  gold: 100/s burst 200
  free: {limits: 1/s, comment: "as sold"}
patterns:
  "*-eu": 5/s, 100/h sliding
keys:
  alice: tier:gold
  bob: {limits: 5/s, tier: free, paused: true}
  "007": 0
  !!binary /w==: 3/s
`

func TestSameFileAppliedAgainChangesNothing(t *testing.T) {
	r := newRuleRig(t)
	r.sluice(0, "limits", "set", "carol", "1/s", "--wait", "0")
	r.sluice(0, "pause", "alice", "--wait", "0")
	r.sluice(0, "pause", "--all", "--wait", "0")
	file := filepath.Join(t.TempDir(), "limits.yaml")
	if err := os.WriteFile(file, []byte(limitsFile), 0o600); err != nil {
		t.Fatal(err)
	}
	apply := func(args ...string) string {
		t.Helper()
		stdout, _ := r.sluice(0, append([]string{"limits", "apply", "-f", file, "--wait", "0"}, args...)...)
		return stdout
	}
	before := r.writes()
	if stdout := apply("--dry-run"); !strings.HasSuffix(stdout, "\n7 added, 1 changed, 0 removed, 0 as before; nothing was changed\n") || r.writes() != before {
		t.Errorf("a dry run prints\n%s", stdout)
	}
	if stdout := apply(); !strings.HasSuffix(stdout, "\n7 added, 1 changed, 0 removed, 0 as before; version 11\n") {
		t.Errorf("it prints\n%s", stdout)
	}
	applied := r.writes()
	for range 100 {
		if stdout := apply(); stdout != "0 added, 0 changed, 0 removed, 8 as before\n" {
			t.Fatalf("again it prints\n%s", stdout)
		}
	}
	export, _ := r.sluice(0, "limits", "export")
	stdout, _ := r.stdin(0, export, "limits", "apply", "-f", "-", "--prune")
	if stdout != "0 added, 0 changed, 0 removed, 9 as before\n" || r.writes() != applied {
		t.Errorf("its own export applied prints %s%s", export, stdout)
	}
	_, stderr := r.sluice(2, "limits", "apply", "-f", file, "--prune")
	if !strings.Contains(stderr, "--prune takes back 1 rule; give --yes") {
		t.Errorf("without --yes it says %s", stderr)
	}
	if stdout := apply("--prune", "--yes"); !strings.HasSuffix(stdout, "\n0 added, 0 changed, 1 removed, 8 as before; version 12\n") || !strings.Contains(stdout, "-  key:carol  1/s\n") {
		t.Errorf("with --prune it prints\n%s", stdout)
	}
	if stdout := apply("--prune", "--yes", "--json"); stdout != `{"added":0,"changed":0,"removed":0,"unchanged":8,"dry_run":false,"workers":0}`+"\n" {
		t.Errorf("as JSON it prints\n%s", stdout)
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	apply("--prune", "--yes")
	stdout, _ = r.sluice(0, "limits", "ls", "--json")
	if strings.Count(stdout, "\n") != 3 || strings.Count(stdout, `"paused":true`) != 3 {
		t.Errorf("pruning lifted a pause; left are\n%s", stdout)
	}
}

func TestFileFaultsAreToldWithLineAndField(t *testing.T) {
	t.Parallel()
	const text = `default: fast
tier:
  gold: 1/s
tiers:
  gold: {limit: 1/s}
  go ld: 1/s
  free: {tier: gold}
  none:
keys:
  alice: {limits: 1 per second, paused: maybe}
  alice: 1/s
  bob: [1/s]
  carol: {comment: only}
patterns: 5/s
`
	_, err := readRuleFile(strings.NewReader(text))
	if err == nil {
		t.Fatal("it is taken")
	}
	got := strings.Split(err.Error(), "\n")
	want := []string{
		`line 1: default: limit "fast"`, `line 2: tier: is not known; use default, tiers`, `line 5: tiers.gold.limit: is not known; use limits`,
		`line 6: tiers.go ld: "go ld" is not the name of a tier`, `line 7: tiers.free: only a key can be in a tier`, `line 8: tiers.none: is not a mapping`,
		`line 10: keys.alice.limits: limit "1 per second"`, `line 10: keys.alice.paused: is neither true nor false`,
		`line 11: keys: alice stands there twice; first in line 10`, `line 12: keys.bob: is not a mapping`, `line 13: keys.carol: says nothing`,
		`line 14: patterns: is not a mapping`,
	}
	for i := range max(len(got), len(want)) {
		if i >= len(got) || i >= len(want) || !strings.HasPrefix(got[i], want[i]) {
			t.Fatalf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
	for text, want := range map[string]string{
		"a: b\n---\nc: d": "more than one document", "a: 1\n\tx": "line 2", "- x": "line 1: the file: is not a mapping", "keys: {k: {tier: t}}\ndefault: {": "line 2",
	} {
		if _, err := readRuleFile(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want an error that says %q", text, err, want)
		}
	}
	rules, err := readRuleFile(strings.NewReader("keys: {k: {tier: t}}"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := compareRules(rules, nil, false, "", ""); err == nil || err.Error() != "line 1: k: there is no tier t" {
		t.Errorf("a tier that isn't there: %v", err)
	}
}
