package main

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"sluice/limiter"
	"sluice/pipeline/stream"
)

// ruleRig is a server with a bucket of limits.
type ruleRig struct {
	*letterRig
	kv jetstream.KeyValue
}

func newRuleRig(t *testing.T) *ruleRig {
	t.Helper()
	r := &ruleRig{letterRig: newLetterRig(t, server.Options{})}
	var err error
	if r.kv, err = r.js.KeyValue(t.Context(), "sluice_limits"); err != nil {
		t.Fatal(err)
	}
	return r
}

// sluice runs a command line, without waiting for workers, and returns what it prints.
func (r *ruleRig) sluice(wantCode int, args ...string) (stdout, stderr string) {
	r.t.Helper()
	return r.stdin(wantCode, "", args...)
}

func (r *ruleRig) stdin(wantCode int, stdin string, args ...string) (stdout, stderr string) {
	r.t.Helper()
	code, stdout, stderr := execute(r.t, r.t.Context(), stdin, args...)
	if code != wantCode {
		r.t.Errorf("%q: exit %d, want %d; %s%s", args, code, wantCode, stdout, stderr)
	}
	return stdout, stderr
}

// writes is how often anything was stored in the bucket.
func (r *ruleRig) writes() uint64 {
	r.t.Helper()
	s, err := r.js.Stream(r.t.Context(), "KV_sluice_limits")
	if err != nil {
		r.t.Fatal(err)
	}
	return s.CachedInfo().State.LastSeq
}

// live runs the heartbeats of workers with these ids, and lets them follow the limits or not.
func (r *ruleRig) live(follow bool, ids ...string) {
	r.t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	r.t.Cleanup(func() { stop(); running.Wait() })
	for _, id := range ids {
		nc, err := nats.Connect(r.url)
		if err != nil {
			r.t.Fatal(err)
		}
		r.t.Cleanup(nc.Close)
		fleet, err := stream.JoinFleet(nc, r.cfg, stream.WorkerInfo{ID: id, Build: "v1.0.0", Settings: "0a1b2c3d"})
		if err != nil {
			r.t.Fatal(err)
		}
		running.Go(func() { fleet.Run(ctx) })
		if !follow {
			continue
		}
		js, err := jetstream.New(nc)
		if err != nil {
			r.t.Fatal(err)
		}
		limits, err := stream.OpenLimits(r.t.Context(), js, r.cfg, limiter.NewBook(nil), newLogger(Config{}, r.t.Output()), fleet.RunsLimits)
		if err != nil {
			r.t.Fatal(err)
		}
		running.Go(func() { limits.Run(ctx) })
	}
}

func TestChangeIsToldWhenEveryWorkerRunsIt(t *testing.T) {
	r := newRuleRig(t)
	if stdout, _ := r.sluice(0, "limits", "set", "alice", "5/s", "burst", "10"); stdout != "alice: - -> 5/s burst 10, version 1\nno worker is live; those that start will run it\n" {
		t.Errorf("without workers it prints %q", stdout)
	}
	r.live(true, "host-1", "host-2")
	start := time.Now()
	stdout, _ := r.sluice(0, "limits", "set", "alice", "6/s", "--comment", "more")
	if stdout != "alice: 5/s burst 10 -> 6/s, version 2\nall 2 workers run it\n" {
		t.Errorf("with workers it prints %q", stdout)
	}
	t.Logf("it takes %s", time.Since(start).Round(time.Millisecond))
	r.live(false, "host-3")
	stdout, stderr := r.sluice(1, "pause", "--all", "--json", "--comment", "fire", "--wait", "1500ms")
	c := decodeInto[struct {
		Was, Is ruleJSON
		Changed bool
		arrivalJSON
	}](t, stdout)
	if !c.Changed || !c.Is.Paused || c.Is.Source != "all" || c.Is.Version != 3 || c.Is.Comment != "fire" || c.Is.By == "" ||
		c.Workers != 3 || len(c.Behind) != 1 || c.Behind[0] != "host-3" {
		t.Errorf("as JSON it prints %s", stdout)
	}
	if stderr != "sluice: version 3 is stored, but 1 of 3 workers don't run it after 1.5s: host-3 (runs none)\n" {
		t.Errorf("with a worker that doesn't follow it says %q", stderr)
	}
}

func TestRulesAreSetPausedAndTakenBack(t *testing.T) {
	r := newRuleRig(t)
	for _, c := range []struct{ args, want string }{
		{"limits set tier:gold 100/s", "tier:gold: - -> 100/s, version 1\n"},
		{"limits set alice tier:gold", "alice: - -> tier:gold, version 2\n"},
		{"pause alice", "alice: tier:gold -> paused (tier:gold), version 3\n"},
		{"limits set alice 5/s; tier:gold", "alice: paused (tier:gold) -> paused (5/s; tier:gold), version 4\nit is still paused; 'sluice resume' lets it go on\n"},
		{"resume alice", "alice: paused (5/s; tier:gold) -> 5/s; tier:gold, version 5\n"},
		{"resume alice", "alice: 5/s; tier:gold, as before\n"},
		{"resume bob", "bob: -, as before\n"},
		{"pause --all", "all: - -> paused, version 6\n"},
		{"resume --all", "all: paused -> -, version 7\n"},
		{"limits rm alice --yes", "alice: 5/s; tier:gold -> -, version 8\n"},
		{"limits rm alice --yes", "alice: -, as before\n"},
		{"limits set key:all 0", "all: - -> 0, version 9\n"},
		{"limits set pattern:team-* 50/s", "pattern:team-*: - -> 50/s, version 10\n"},
		{"limits set default unlimited", "default: - -> unlimited, version 11\n"},
	} {
		if stdout, _ := r.sluice(0, append(strings.Fields(c.args), "--wait", "0")...); stdout != c.want {
			t.Errorf("%s prints %q, want %q", c.args, stdout, c.want)
		}
	}
	for _, c := range []struct{ args, want string }{
		{"limits set alice tier:glod", "sluice: there is no tier glod; there are gold\n"},
	} {
		if _, stderr := r.sluice(1, append(strings.Fields(c.args), "--wait", "0")...); stderr != c.want {
			t.Errorf("%s says %q, want %q", c.args, stderr, c.want)
		}
	}
	stdout, _ := r.sluice(0, "limits", "history", "all", "--json")
	lines := strings.Split(strings.TrimSpace(stdout), "\n")
	if len(lines) != 2 || !decodeInto[ruleJSON](t, lines[0]).Paused || !decodeInto[ruleJSON](t, lines[1]).Removed || decodeInto[ruleJSON](t, lines[1]).By != changedBy() {
		t.Errorf("the history of the brake is\n%s", stdout)
	}
}

func TestWrongArgumentsOfLimitsAreUsageErrors(t *testing.T) {
	setEnvironment(t, "SLUICE_NATS_URL=nats://127.0.0.1:1") // nobody is asked
	for _, c := range []struct{ args, want string }{
		{"limits set alice", "requires at least 2 arg(s)"},
		{"limits set alice fast", `limit "fast": `},
		{"limits set team-* 5/s", `"team-*" holds a *; write pattern:team-*`},
		{"limits set tier:gold tier:silver", "only a key can be in a tier"},
		{"limits set alice tier:", "tier: names no tier"},
		{"limits set alice 5/s;6/s", "says limits or a tier twice"},
		{"limits set all 5/s", "all can only be paused, by 'sluice pause --all'"},
		{"limits set alice 5/s --wait 1s", "--wait 1s is too short to hear all workers; use at least 1.5s, or 0"},
		{"limits rm alice", "give --yes to take back what is said of alice"},
		{"limits ls --source user", `--source "user" is not known`},
		{"limits get alice --tier a:b", `--tier: "a:b" is not the name of a tier`},
		{"limits apply", "-f is missing"},
		{"pause", "name what to pause, or --all for everything"},
		{"pause alice --all", "name what to pause, or --all for everything"},
		{"resume all", `write --all for everything, or key:all for the key "all"`},
	} {
		code, _, stderr := execute(t, t.Context(), "", strings.Fields(c.args)...)
		if code != exitUsage || !strings.HasPrefix(stderr, "sluice: "+c.want) {
			t.Errorf("%s: exit %d, %s", c.args, code, stderr)
		}
	}
}

func TestGetTellsWhyAKeyHasItsLimits(t *testing.T) {
	r := newRuleRig(t)
	for _, args := range []string{
		"limits set tier:gold 100/s", "limits set tier:free 2/s", "limits set pattern:al* 50/s", "limits set pattern:a* 60/s", "limits set alice tier:gold",
	} {
		r.sluice(0, append(strings.Fields(args), "--wait", "0")...)
	}
	get := func(args ...string) (first string, rows []string) {
		stdout, _ := r.sluice(0, append([]string{"limits", "get"}, args...)...)
		first, rest, _ := strings.Cut(stdout, "\n")
		for line := range strings.Lines(rest) {
			if fields := strings.Fields(line); len(fields) > 0 && fields[0] != "place" {
				row := strings.Join(fields[:2], " ")
				if fields[0] == ">" {
					row = strings.Join(fields[:3], " ")
				}
				rows = append(rows, row)
			}
		}
		return first, rows
	}
	for _, c := range []struct {
		before, args, first, rows string
	}{
		{"", "alice", "alice: 100/s (by tier:gold)", "key:alice tier:gold, > tier:gold 100/s, pattern:al* 50/s, pattern:a* 60/s, SLUICE_LIMIT 10/s"},
		{"", "bob", "bob: 10/s burst 20 (by SLUICE_LIMIT)", "> SLUICE_LIMIT 10/s"},
		{"", "bob --tier free", "bob: 2/s (by tier:free)", "> tier:free 2/s, SLUICE_LIMIT 10/s"},
		{"", "anna --tier free", "anna: 60/s (by pattern:a*)", "> pattern:a* 60/s, tier:free 2/s, SLUICE_LIMIT 10/s"},
		{"limits set alice 5/s", "alice", "alice: 5/s (by key:alice)", "> key:alice 5/s, pattern:al* 50/s, pattern:a* 60/s, SLUICE_LIMIT 10/s"},
		{"pause alice", "alice", "alice: paused, nothing passes (by key:alice)", "> key:alice paused, pattern:al* 50/s, pattern:a* 60/s, SLUICE_LIMIT 10/s"},
		{"pause --all", "bob", "bob: paused, nothing passes (by all)", "> all paused, SLUICE_LIMIT 10/s"},
		{"resume --all", "bob", "bob: 10/s burst 20 (by SLUICE_LIMIT)", "> SLUICE_LIMIT 10/s"},
		{"limits set default 0", "bob", "bob: paused, nothing passes (by default)", "> default 0, SLUICE_LIMIT 10/s"},
	} {
		if c.before != "" {
			r.sluice(0, append(strings.Fields(c.before), "--wait", "0")...)
		}
		first, rows := get(strings.Fields(c.args)...)
		if got := strings.Join(rows, ", "); first != c.first || got != c.rows {
			t.Errorf("%s\ngot  %s\n     %s\nwant %s\n     %s", c.args, first, got, c.first, c.rows)
		}
	}
	if _, err := r.kv.PutString(t.Context(), "key.alice", "fast"); err != nil {
		t.Fatal(err)
	}
	stdout, _ := r.sluice(0, "limits", "get", "alice")
	if !strings.Contains(stdout, "alice: paused, nothing passes (by key:alice)") || !strings.Contains(stdout, ">  key:alice") || !strings.Contains(stdout, "not understood") {
		t.Errorf("of a bad value it says\n%s", stdout)
	}
	// What rules in place of a value that can't be understood is what is named: the last good one, or what follows.
	put := func(place string, values ...string) {
		for _, value := range values {
			if _, err := r.kv.PutString(t.Context(), place, value); err != nil {
				t.Fatal(err)
			}
		}
	}
	put("tier.silver", "7/s")
	put("key.zoe", `{"tier":"silver"}`, "fast")
	if err := r.kv.Purge(t.Context(), "default"); err != nil {
		t.Fatal(err)
	}
	put("default", "often")
	for _, c := range []struct{ args, first string }{{"zoe", "zoe: 7/s (by tier:silver)"}, {"zack", "zack: 10/s burst 20 (by SLUICE_LIMIT)"}} {
		if stdout, _ := r.sluice(0, "limits", "get", c.args); !strings.HasPrefix(stdout, c.first+"\n") || strings.Count(stdout, "\n>") != 1 {
			t.Errorf("beside a bad value it says\n%s\nwant %s", stdout, c.first)
		}
	}
	if stdout, _ := r.sluice(0, "limits", "get", "zoe"); !strings.Contains(stdout, "not understood, so tier:si") {
		t.Errorf("of the key it says\n%s", stdout)
	}
	put("tier.silver", "slow")
	if stdout, _ := r.sluice(0, "limits", "get", "tier:silver"); !strings.Contains(stdout, "not understood, so 7/s as before: ") {
		t.Errorf("of the tier it says\n%s", stdout)
	}
	stdout, _ = r.sluice(0, "limits", "get", "anna", "--json")
	if got := decodeInto[struct{ Key, Limits, From string }](t, stdout); got.Key != "anna" || got.Limits != "60/s" || got.From != "pattern:a*" {
		t.Errorf("as JSON: %s", stdout)
	}
}

func TestTablesOfLimitsAtWidth80(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 3, 1, 14, 4, 5, 0, time.UTC)
	limits := func(text string) limiter.Rule {
		l, err := limiter.ParseLimits(text)
		if err != nil {
			t.Fatal(err)
		}
		return limiter.Rule{Limits: l}
	}
	rules := []stream.StoredRule{
		{Place: limiter.Place{Source: limiter.SourceAll}, Rule: limiter.Rule{Paused: true}, By: "root@host-1", Comment: "receiver on fire", At: at, Revision: 9},
		{Place: limiter.Place{Source: limiter.SourceTier, Name: "gold"}, Rule: limits("100/s burst 200, 10000/h sliding"), By: "deploy@ci-runner-17", At: at, Revision: 2},
		{Place: limiter.Place{Source: limiter.SourceKey, Name: "alice\x1b[31m"}, Rule: limits("5/s"), By: "me@here", Comment: "asked us to slow down after the incident of last Friday", At: at, Revision: 7},
		{Key: "alice", Fault: fmt.Errorf("none of key, pattern")},
	}
	workers := roll{last: stream.LimitsVersion{Bucket: 1, Seq: 17}, workers: []stream.WorkerInfo{
		{ID: "sluice-worker-7d9c5b9f6-abcde-1-K3JH2XYZ", Limits: stream.LimitsVersion{Bucket: 1, Seq: 17}, Settings: "0a1b2c3d", Build: "v1.2.0", Since: at},
		{ID: "sluice-worker-7d9c5b9f6-fghij-1-ABCDEFGH", Limits: stream.LimitsVersion{Bucket: 1, Seq: 15}, Settings: "0a1b2c3d", Build: "v1.2.0", Since: at, Away: true},
		{ID: "vm-17-4211-QRSTUVWX", Limits: stream.LimitsVersion{}, Settings: "ffffffff"},
	}}
	alice := rules[2]
	diff := ruleDiff{unchanged: 3, changes: []ruleStep{
		{is: rules[1]}, {was: alice, is: stream.StoredRule{Place: alice.Place, Rule: limits("6/s")}}, {was: alice, is: stream.StoredRule{Place: alice.Place}},
	}}
	for _, c := range []struct {
		name  string
		print func(*bytes.Buffer) error
		want  string
	}{
		{"ls", func(out *bytes.Buffer) error { return printRules(out, rules, stream.LimitsVersion{Seq: 9}) }, `
place            says             since (UTC)  by               comment
all              paused           03-01 14:04  root@host-1      receiver on fire
tier:gold        100/s burst 20…  03-01 14:04  deploy@ci-runn…
"key:alice\x1b…  5/s              03-01 14:04  me@here          asked us to slo…
alice            not understood…  -
4 rules, version 9
`},
		{"history", func(out *bytes.Buffer) error { return printHistory(out, rules[0].Place, rules[:2], false) }, `
version  when (UTC)   by                   said                 comment
9        03-01 14:04  root@host-1          paused               receiver on fire
2        03-01 14:04  deploy@ci-runner-17  100/s burst 200, 1…
`},
		{"history of nothing", func(out *bytes.Buffer) error { return printHistory(out, rules[2].Place, nil, false) }, `
nothing was ever said of "alice\x1b[31m"
`},
		{"workers", func(out *bytes.Buffer) error { return workers.print(out) }, `
worker                              limits  settings  build   redis  since (UTC)
sluice-worker-7d9c5b9f6-abcde-1-K…  17      0a1b2c3d  v1.2.0  yes    03-01 14:04
sluice-worker-7d9c5b9f6-fghij-1-A…  15      0a1b2c3d  v1.2.0  no     03-01 14:04
vm-17-4211-QRSTUVWX                 none    ffffffff  -       yes    -
behind version 17 of the limits: sluice-worker-7d9c5b9f6-fghij-1-ABCDEFGH, vm-17-4211-QRSTUVWX
without Redis: sluice-worker-7d9c5b9f6-fghij-1-ABCDEFGH
other settings than 0a1b2c3d: vm-17-4211-QRSTUVWX
other build than v1.2.0: vm-17-4211-QRSTUVWX
`},
		{"one worker", func(out *bytes.Buffer) error { return roll{workers.workers[:1], workers.last}.print(out) }, `
worker                              limits  settings  build   redis  since (UTC)
sluice-worker-7d9c5b9f6-abcde-1-K…  17      0a1b2c3d  v1.2.0  yes    03-01 14:04
1 worker, limits are at version 17
`},
		{"no worker", func(out *bytes.Buffer) error { return roll{}.print(out) }, `
no worker is live
`},
		{"diff", func(out *bytes.Buffer) error { return diff.tell(out, false, false, &arrival{}, 12) }, `
   place                says
+  tier:gold            100/s burst 200, 10000/h sliding
~  "key:alice\x1b[31m"  5/s -> 6/s
-  "key:alice\x1b[31m"  5/s
1 added, 1 changed, 1 removed, 3 as before; version 12
`},
	} {
		var out bytes.Buffer
		if err := c.print(&out); err != nil {
			t.Fatal(err)
		}
		if got := "\n" + out.String(); got != c.want {
			t.Errorf("%s: got%swant%s", c.name, got, c.want)
		}
		for line := range strings.Lines(out.String()) {
			if n := len([]rune(strings.TrimSuffix(line, "\n"))); n > 80 && !strings.Contains(line, ": ") {
				t.Errorf("%s: %d columns: %s", c.name, n, line)
			}
		}
	}
}

func TestWorkersTellsWhoIsLive(t *testing.T) {
	r := newRuleRig(t)
	r.sluice(0, "limits", "set", "alice", "5/s", "--wait", "0")
	r.live(true, "host-1", "host-2")
	stdout, _ := r.sluice(0, "workers")
	lines := strings.Split(strings.TrimSpace(stdout), "\n")
	if len(lines) != 4 || !strings.HasPrefix(lines[1], "host-1  1       0a1b2c3d  v1.0.0  yes") || lines[3] != "2 workers agree, limits are at version 1" {
		t.Errorf("it prints\n%s", stdout)
	}
	stdout, _ = r.sluice(0, "workers", "--json")
	first, _, _ := strings.Cut(stdout, "\n")
	if w := decodeInto[struct {
		ID             string
		Limits         int
		Current, Redis bool
	}](t, first); w.ID != "host-1" || w.Limits != 1 || !w.Current || !w.Redis {
		t.Errorf("as JSON it prints\n%s", stdout)
	}
}

func TestPlacesAreCompleted(t *testing.T) {
	r := newRuleRig(t)
	r.sluice(0, "limits", "set", "tier:gold", "5/s", "--wait", "0")
	r.sluice(0, "limits", "set", "pattern:team-*", "5/s", "--wait", "0")
	stdout, _ := r.sluice(0, "__complete", "limits", "get", "ti")
	if !strings.HasPrefix(stdout, "tier:gold\t5/s\n") || strings.Contains(stdout, "team") {
		t.Errorf("it offers %q", stdout)
	}
}
