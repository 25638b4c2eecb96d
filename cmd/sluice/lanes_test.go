package main

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/redis/go-redis/v9"

	"sluice/integration/testenv"
	"sluice/limiter"
	"sluice/limiter/redisstore"
	"sluice/pipeline"
	"sluice/pipeline/stream"
)

func TestLanesAreCheckedAndRepaired(t *testing.T) {
	r := newLetterRig(t, server.Options{})
	redisServer := testenv.Redis(t)
	t.Setenv("SLUICE_REDIS_URL", redisServer.URL())
	lanes, err := stream.OpenLanes(t.Context(), r.js, r.cfg)
	if err != nil {
		t.Fatal(err)
	}
	limits, err := limiter.ParseLimits("1/h burst 1")
	if err != nil {
		t.Fatal(err)
	}
	rdb := redisServer.Client()
	store, err := redisstore.New(rdb, redisstore.Options{
		Name: "sluice", Worker: "me", Limits: limiter.Fixed(limits), Bodies: lanes, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		ev := &pipeline.Event{
			ID: fmt.Sprint(i), Key: "alice", Subject: "events.alice", Time: time.Now(), Cost: 1,
			Source: pipeline.SourceID{Stream: "EVENTS", Created: 1, Seq: uint64(100 + i)},
		}
		body, err := lanes.Append(t.Context(), ev)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := store.Park(t.Context(), pipeline.ParkRequest{Key: ev.Key, Entry: pipeline.Entry{BodyID: body, Order: ev.Source.Seq, Cost: 1}}); err != nil {
			t.Fatal(err)
		}
	}
	run := func(wantCode int, args ...string) (string, string) {
		t.Helper()
		code, stdout, stderr := execute(t, t.Context(), "", append([]string{"lanes"}, args...)...)
		if code != wantCode {
			t.Errorf("%v: exit %d, want %d; %s%s", args, code, wantCode, stdout, stderr)
		}
		return stdout, stderr
	}
	const well = "20 stored events and 20 places in 1 lane: all is well\n"
	if stdout, _ := run(0, "check"); stdout != well {
		t.Errorf("it prints %q, want %q", stdout, well)
	}
	if _, stderr := run(2, "repair"); !strings.Contains(stderr, "--yes") {
		t.Errorf("without a terminal: %q", stderr)
	}

	lane := "lane:{" + limiter.Tag(limiter.Shard("alice")) + "}:alice"
	rdb.ZRemRangeByRank(t.Context(), lane, 3, 3)
	stray := lastBody(t, lanes).Seq + 999
	rdb.ZAdd(t.Context(), lane, redis.Z{Member: fmt.Sprint(stray), Score: 50})
	stdout, stderr := run(1, "repair", "--dry-run", "--json")
	got := decodeInto[inspectionJSON](t, stdout)
	if len(got.Findings) != 2 || got.Findings[0].Finding != redisstore.NoPlace || got.Findings[1].Finding != redisstore.NoBody ||
		got.Findings[1].Key != "alice" || got.Findings[1].Seq != stray || got.Events != 20 {
		t.Errorf("it prints %s", stdout)
	}
	if want := "2 findings (1 no_body, 1 no_place)"; !strings.Contains(stderr, want) {
		t.Errorf("it says %q, want %q", stderr, want)
	}
	if stdout, _ := run(0, "repair", "--yes"); stdout != "mended; before: 2 findings\n"+well {
		t.Errorf("it prints %q", stdout)
	}

	// What a worker holds is left to it, and said to be left.
	tag := "{" + limiter.Tag(limiter.Shard("alice")) + "}"
	rdb.ZAdd(t.Context(), "busy:"+tag+":alice", redis.Z{Member: fmt.Sprint(stray), Score: 50})
	rdb.HSet(t.Context(), "ratelimit:"+tag+":alice", "token", 1, "until", time.Now().Add(time.Hour).UnixMicro())
	stdout, stderr = run(1, "repair", "--yes")
	if !strings.HasPrefix(stdout, "1 finding not mended; before: 1 finding\n") || !strings.Contains(stderr, "1 finding (1 no_body)") {
		t.Errorf("it prints %q, %q", stdout, stderr)
	}
}

func TestFindingsAreATable(t *testing.T) {
	in := redisstore.Inspection{Bodies: 3, Places: 2, Lanes: 1}
	for i := range findingRows + 5 {
		in.Findings = append(in.Findings, redisstore.Finding{Kind: redisstore.NoPlace, Key: "a\nb", Seq: uint64(i)})
	}
	lines := strings.Split(findingTable(false, in), "\n")
	if len(lines) != findingRows+4 || lines[0] != "finding   key     seq  detail" || lines[1] != `no_place  "a\nb"    -` ||
		lines[findingRows+1] != "and 5 more; --json prints all" || lines[findingRows+2] != "3 stored events and 2 places in 1 lane" {
		t.Errorf("%d lines, such as %q", len(lines), lines[:3])
	}
}

func TestHelpOfLanesNamesAllThatMayBeFound(t *testing.T) {
	for _, kind := range []redisstore.FindingKind{
		redisstore.NoIndex, redisstore.NoPlace, redisstore.NoBody, redisstore.WrongLane, redisstore.WrongOrder, redisstore.Twice,
		redisstore.Unreadable, redisstore.DeadLease, redisstore.NotDue, redisstore.WrongCost, redisstore.DamagedBucket, redisstore.DamagedLane,
	} {
		if !strings.Contains(findingsHelp, "\n  "+string(kind)+" ") {
			t.Errorf("%s isn't explained", kind)
		}
	}
}
