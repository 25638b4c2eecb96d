package redisstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"sluice/integration/testenv"
	"sluice/pipeline"
)

// rights is the file that operators are given.
const rights = "../../deploy/acl/redis.acl"

// rightsLine is the one line of the file that isn't a comment.
func rightsLine(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(rights)
	if err != nil {
		t.Fatal(err)
	}
	_, line, found := strings.Cut(string(text), "\nuser sluice ")
	if !found || strings.Count(line, "\n") != 1 {
		t.Fatalf("%s doesn't end with the line of the user", rights)
	}
	return "user sluice " + strings.TrimSpace(line)
}

func TestProbeTriesEveryCommandOfTheScripts(t *testing.T) {
	t.Parallel()
	probed := map[string]bool{}
	for _, m := range regexp.MustCompile(`saw\('([A-Z]+)'`).FindAllStringSubmatch(probeLua, -1) {
		probed[m[1]] = true
	}
	for name, body := range map[string]string{
		"base": baseLua, "common": commonLua, "take": takeLua, "reserve": reserveLua, "park": parkLua, "claim": claimLua, "lease": leaseLua, "settle": settleLua,
		"epoch": epochLua, "verify": verifyLua, "charge": chargeLua,
		"measure": measureLua, "mend": mendLua, "waiting": waitingLua, "levels": levelsLua, "explain": explainLua,
		"purge": purgeLua, "reset": resetLua,
	} {
		for _, m := range regexp.MustCompile(`\bp?call\('([A-Z]+)'`).FindAllStringSubmatch(body, -1) {
			if !probed[m[1]] {
				t.Errorf("%s.lua uses %s, which probe.lua doesn't try", name, m[1])
			}
		}
	}
}

func TestReadmeHasTheLeastRights(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), "\n"+rightsLine(t)+"\n") {
		t.Errorf("README.md lacks the line of %s", rights)
	}
}

// permitted are the commands that the file permits.
func permitted(t *testing.T) []string {
	t.Helper()
	var commands []string
	for _, rule := range strings.Fields(rightsLine(t)) {
		if command, ok := strings.CutPrefix(rule, "+"); ok {
			commands = append(commands, command)
		}
	}
	return commands
}

func include(t *testing.T) []string {
	t.Helper()
	path, err := filepath.Abs(rights)
	if err != nil {
		t.Fatal(err)
	}
	return []string{"--include", path}
}

func asSluice(address Address) Address {
	const username, password = "sluice", "CHANGE-ME"
	if o := address.Single; o != nil {
		o.Username, o.Password = username, password
	}
	if o := address.Cluster; o != nil {
		o.Username, o.Password = username, password
	}
	return address
}

func TestLeastRightsSuffice(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t, include(t)...)
	conforms(t, place{func(t *testing.T) Address { return asSluice(singleAt(server.URL())(t)) }, only(server)})
}

// Whoever adds a command to a script has to permit it, too, and the other way round.
func TestLeastRightsAreWhatTheScriptsUse(t *testing.T) {
	t.Parallel()
	want := []string{"asking", "cluster|slots", "eval", "evalsha", "info", "ping"} // by the client
	files, err := filepath.Glob("*.lua")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, call := range regexp.MustCompile(`\bp?call\('([A-Z]+)'`).FindAllStringSubmatch(string(text), -1) {
			want = append(want, strings.ToLower(call[1]))
		}
		if n := bytes.Count(text, []byte("call(")); n != len(regexp.MustCompile(`\bp?call\('[A-Z]+'`).FindAll(text, -1)) {
			t.Errorf("%s calls a command that isn't written out", file)
		}
	}
	slices.Sort(want)
	want = slices.Compact(want)
	got := permitted(t)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("%s permits\n%v\nthe code needs\n%v", rights, got, want)
	}
}

func TestNoneOfTheLeastRightsIsSuperfluous(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t, append(include(t), "--maxmemory-policy", "allkeys-lru")...)
	admin := server.Client()
	try := func() error {
		return errors.Join(admin.FlushAll(t.Context()).Err(), admin.ScriptFlush(t.Context()).Err(),
			worksFromTheStart(t, asSluice(singleAt(server.URL())(t))))
	}
	if err := try(); err != nil {
		t.Fatal(err)
	}
	for _, command := range permitted(t) {
		if command == "cluster|slots" || command == "asking" { // see the tests of Clusters
			continue
		}
		if err := admin.Do(t.Context(), "acl", "setuser", "sluice", "-"+command).Err(); err != nil {
			t.Fatal(err)
		}
		if err := try(); err == nil {
			t.Errorf("all works without %s", command)
		}
		if err := admin.Do(t.Context(), "acl", "setuser", "sluice", "+"+command).Err(); err != nil {
			t.Fatal(err)
		}
	}
	if err := try(); err != nil {
		t.Error(err)
	}
}

// worksFromTheStart goes through everything that a worker asks of an empty Redis which may evict.
func worksFromTheStart(t *testing.T, address Address) error {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	var told bytes.Buffer
	ended, end := context.WithCancel(ctx)
	defer end()
	log := slog.New(&endsOn{Handler: slog.NewTextHandler(&told, nil), text: "cannot reach", end: end})
	rdb, err := Connect(ended, address, "the test's Redis", log)
	if err != nil {
		return err
	}
	defer func() { _ = rdb.Close() }()
	if !strings.Contains(told.String(), "allkeys-lru") {
		return errors.New("no warning of the eviction")
	}
	b := &bodies{created: 7, events: []*pipeline.Event{{Key: keyOf(9), Cost: 1, Source: pipeline.SourceID{Seq: 1}}}}
	one, two := storeOn(t, rdb, b, "one"), storeOn(t, rdb, b, "two")
	if err := errors.Join(one.Open(ctx), two.Open(ctx)); err != nil {
		return err
	}
	for _, step := range []error{
		grantsBurst(one, keyOf(0)), drains(ctx, one, keyOf(1)), fences(ctx, one, two, keyOf(2)),
	} {
		if step != nil {
			return step
		}
	}
	if _, err := one.Backlog(); err != nil {
		return err
	}
	if _, err := one.Inspect(ctx, shortPatience); err != nil {
		return err
	}
	one.now = 0
	if _, err := one.Reserve(ctx, keyOf(3), "", 1, 0); err != nil {
		return fmt.Errorf("by Redis' own clock: %w", err)
	}
	one.now = start
	if lease, err := one.Lease(ctx, pipeline.LeaseRequest{Key: keyOf(9), Max: 1, Horizon: time.Second}); err != nil || len(lease.Events) != 1 {
		return fmt.Errorf("leased %+v of the rebuilt lane, %w", lease, err)
	}
	b.created++ // the lane stream was made anew
	return one.Open(ctx)
}

// endsOn is a log that calls end when it is told text.
type endsOn struct {
	slog.Handler
	text string
	end  func()
}

func (h *endsOn) Handle(ctx context.Context, r slog.Record) error {
	if strings.Contains(r.Message, h.text) {
		h.end()
	}
	return h.Handler.Handle(ctx, r)
}

func TestLeastRightsSufficeInACluster(t *testing.T) {
	t.Parallel()
	cluster := testenv.RedisCluster(t, include(t)...)
	p := clusterPlace(cluster)
	conforms(t, place{func(t *testing.T) Address { return asSluice(p.address(t)) }, p.servers})
	for _, node := range p.servers() {
		if stats := node.Info(t.Context(), "commandstats").Val(); strings.Contains(stats, "cmdstat_command:") {
			t.Error("COMMAND was asked in vain")
		}
		if err := node.Do(t.Context(), "acl", "setuser", "sluice", "-cluster|slots").Err(); err != nil {
			t.Fatal(err)
		}
	}
	rdb := asSluice(p.address(t)).client()
	defer func() { _ = rdb.Close() }()
	if err := ping(t.Context(), rdb); !redis.IsPermissionError(err) {
		t.Errorf("without cluster|slots: %v, want that it isn't permitted", err)
	}
}

// A check finds out about the one right that is needed only while slots move, before they do.
func TestCheckOfAClusterTriesAsking(t *testing.T) {
	t.Parallel()
	cluster := testenv.RedisCluster(t, include(t)...)
	rdb := asSluice(clusterAt(cluster.URL())(t)).client()
	defer func() { _ = rdb.Close() }()
	facts, err := Examine(t.Context(), rdb, "sluice")
	if err != nil || len(facts.Denied) > 0 {
		t.Fatalf("with the least rights: %v, %v", facts.Denied, err)
	}
	if err := cluster.Nodes()[2].Client().Do(t.Context(), "acl", "setuser", "sluice", "-asking").Err(); err != nil {
		t.Fatal(err)
	}
	if facts, err = Examine(t.Context(), rdb, "sluice"); err != nil || !slices.Equal(facts.Denied, []string{"ASKING"}) {
		t.Errorf("without asking on one node: %v, %v", facts.Denied, err)
	}
}
