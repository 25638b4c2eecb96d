package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"sluice/integration/testenv"
	"sluice/limiter"
	"sluice/pipeline"
	"sluice/pipeline/stream"
)

// What a person may do with the operator's rights of deploy/acl/nats.conf, in the order of a first day.
func TestRightsOfAnOperatorSuffice(t *testing.T) {
	given, err := server.ProcessConfigFile("../../deploy/acl/nats.conf")
	if err != nil {
		t.Fatal(err)
	}
	redis := testenv.Redis(t, "--appendonly", "yes", "--maxmemory-policy", "noeviction")
	url := startNATS(t, server.Options{Users: given.Users}).ClientURL()
	setEnvironment(t, "SLUICE_NATS_URL="+url, "SLUICE_NATS_USER=sluice-operator", "SLUICE_NATS_PASSWORD=CHANGE-ME",
		"SLUICE_NATS_INBOX_PREFIX=_SLUICE_OPERATOR", "SLUICE_REDIS_URL="+redis.URL(), "SLUICE_SETUP=all")
	events := filepath.Join(t.TempDir(), "events.ndjson")
	if err := os.WriteFile(events, []byte(`{"key": "alice", "data": 1}`+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	const noIndex = exitFailed // what lanes check says where no worker has ever been
	do := func(want int, line ...string) string {
		t.Helper()
		var out, errs bytes.Buffer
		if code := run(t.Context(), line, strings.NewReader(""), &out, &errs); code != want || strings.Contains(errs.String(), "ermission") {
			t.Errorf("sluice %s: exit code %d\n%s%s", strings.Join(line, " "), code, &out, &errs)
		}
		return out.String()
	}
	do(exitOK, "setup")
	do(exitOK, "publish", "events.alice", "hello", "--id", "order-17")
	do(exitOK, "publish", "-f", events)
	buryAs(t, url, "order-18")
	if said := do(exitOK, "dlq", "ls"); !strings.Contains(said, "order-18") {
		t.Errorf("the dead letter isn't listed: %s", said)
	}
	do(exitOK, "dlq", "show", "1")
	do(exitOK, "dlq", "replay", "--key", "alice")
	buryAs(t, url, "order-19")
	do(exitOK, "dlq", "purge", "--yes")
	do(noIndex, "lanes", "check")
	for _, line := range []string{
		"limits set alice 5/s --wait 0s", "limits get alice", "limits ls", "limits history alice", "pause --all --wait 0s", "workers",
	} {
		do(exitOK, strings.Fields(line)...)
	}
	cfg, err := loadConfig(natsPart)
	if err != nil {
		t.Fatal(err)
	}
	letters, err := openLetters(t.Context(), func(error) {})
	if err != nil {
		t.Fatal(err)
	}
	defer letters.nc.Close()
	lanes, err := stream.OpenLanes(t.Context(), letters.js, cfg.stream())
	if err != nil {
		t.Fatal(err)
	}
	// As if a worker had been there.
	redis.Client().HSet(t.Context(), "epoch:{"+limiter.Tag(limiter.Shard("alice"))+"}", "id", "x", "lanes", lanes.Created())
	for _, line := range []string{"user alice", "user alice reset --yes", "user alice purge --yes", "user alice resume --wait 0s"} {
		do(exitOK, strings.Fields(line)...)
	}
}

// buryAs makes a dead letter with a worker's rights.
func buryAs(t *testing.T, url, id string) {
	t.Helper()
	cfg, err := loadConfig(natsPart, sourcePart, ownPart)
	if err != nil {
		t.Fatal(err)
	}
	sc := cfg.stream()
	sc.User, sc.InboxPrefix = "sluice", "_SLUICE"
	nc, err := nats.Connect(url, nats.UserInfo(sc.User, sc.Password), nats.CustomInboxPrefix(sc.InboxPrefix))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := sc.JetStream(nc)
	if err != nil {
		t.Fatal(err)
	}
	letters, err := stream.OpenDeadLetters(t.Context(), js, sc)
	if err != nil {
		t.Fatal(err)
	}
	ev := &pipeline.Event{ID: id, Key: "alice", Subject: "events.alice", Data: []byte("1"), Source: pipeline.SourceID{Stream: "EVENTS", Created: 1, Seq: 1}}
	if err := letters.Bury(t.Context(), ev, pipeline.Rejected, nil); err != nil {
		t.Fatal(err)
	}
}
