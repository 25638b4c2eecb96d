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

// userRig has all that a worker writes of keys, without a worker.
type userRig struct {
	*letterRig
	rdb   *redis.Client
	lanes *stream.Lanes
	store *redisstore.Store
	seq   uint64
}

func newUserRig(t *testing.T) *userRig {
	t.Helper()
	r := &userRig{letterRig: newLetterRig(t, server.Options{})}
	redisServer := testenv.Redis(t)
	t.Setenv("SLUICE_REDIS_URL", redisServer.URL())
	t.Setenv("SLUICE_LIMIT", "10/h burst 20")
	r.rdb = redisServer.Client()
	var err error
	if r.lanes, err = stream.OpenLanes(t.Context(), r.js, r.cfg); err != nil {
		t.Fatal(err)
	}
	r.store, err = redisstore.New(r.rdb, redisstore.Options{
		Name: "sluice", Worker: "host-1", Limits: limiter.Fixed(mustLimits(t, "10/h burst 20")), Bodies: r.lanes, Log: slog.New(slog.DiscardHandler),
	})
	if err == nil {
		err = r.store.Open(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// spend takes n tokens of alice.
func (r *userRig) spend(n int) {
	r.t.Helper()
	for range n {
		if d, err := r.store.Reserve(r.t.Context(), "alice", "", 1, 0); err != nil || d.Verdict != limiter.Go {
			r.t.Fatalf("%+v, %v", d, err)
		}
	}
}

// wait puts n events of key into its lane, after an attempt if that has failed.
func (r *userRig) wait(key string, n int, attempt pipeline.ParkRequest) {
	r.t.Helper()
	for range n {
		r.seq++
		ev := &pipeline.Event{
			ID: fmt.Sprintf("order-%d", r.seq), Key: key, Subject: "events." + key, Time: time.Now(), Cost: 1,
			Source: pipeline.SourceID{Stream: "EVENTS", Created: 1, Seq: r.seq},
		}
		body, err := r.lanes.Append(r.t.Context(), ev)
		if err != nil {
			r.t.Fatal(err)
		}
		attempt.Key, attempt.Entry = key, pipeline.Entry{BodyID: body, Order: r.seq, Cost: 1}
		if attempt.Failure != "" {
			attempt.Entry.Attempt, attempt.Entry.First = 1, time.Now()
		}
		if _, err := r.store.Park(r.t.Context(), attempt); err != nil {
			r.t.Fatal(err)
		}
	}
}

func (r *userRig) user(wantCode int, args ...string) (stdout, stderr string) {
	r.t.Helper()
	code, stdout, stderr := execute(r.t, r.t.Context(), "", append([]string{"user"}, args...)...)
	if code != wantCode {
		r.t.Errorf("%q: exit %d, want %d; %s%s", args, code, wantCode, stdout, stderr)
	}
	return stdout, stderr
}

// says checks how alice is said to stand.
func (r *userRig) says(want situation, text string) userJSON {
	r.t.Helper()
	stdout, _ := r.user(0, "alice", "--json")
	u := decodeInto[userJSON](r.t, stdout)
	if u.Situation != want || !strings.Contains(u.Summary, text) {
		r.t.Errorf("it says %s: %s\nwant %s: %s", u.Situation, u.Summary, want, text)
	}
	plain, _ := r.user(0, "alice")
	if first := strings.Join(strings.Fields(strings.SplitN(plain, "\n\n", 2)[0]), " "); !strings.Contains(first, strings.Fields(text)[0]) {
		r.t.Errorf("without --json it says %s", first)
	}
	return u
}

func TestUserIsToldWhyItGetsWhatItGets(t *testing.T) {
	r := newUserRig(t)
	if u := r.says(unknown, "nothing is known of alice"); u.Key != "alice" || u.From != "SLUICE_LIMIT" || u.Limits != "10/h burst 20" || len(u.DeadLetters) != 0 {
		t.Errorf("%+v", u)
	}
	r.spend(1)
	if u := r.says(idle, "a token was"); len(u.Levels) != 1 || u.Levels[0].Tokens != 19 || u.Levels[0].Burst != 20 {
		t.Errorf("%+v", u)
	}
	r.spend(19)
	r.wait("alice", 3, pipeline.ParkRequest{})
	u := r.says(throttled, "alice is throttled: 3 events wait, the next goes in ")
	if u.Waiting != 3 || u.Next == nil || *u.Next < 300_000 || *u.Next > 360_000 || u.Oldest == nil || u.Oldest.ID != "order-1" || u.Oldest.Attempts != 0 {
		t.Errorf("%+v", u)
	}

	r.wait("alice", 1, pipeline.ParkRequest{After: time.Hour, Failure: "status 500"})
	if u := r.says(throttled, "4 events wait"); u.Retrying != 1 || u.Failure != "status 500" || u.Retry < 3_500_000 {
		t.Errorf("%+v", u)
	}
	r.bury(pipeline.Rejected, "alice", 7, "")
	r.bury(pipeline.Rejected, "bob", 8, "")
	r.wait("alice", 1, pipeline.ParkRequest{Sleep: time.Minute, Failure: "status 429"})
	u = r.says(cooling, "alice is cooling down for ")
	if u.Fails != 1 || u.Cooling < 50_000 || !strings.Contains(u.Summary, ": status 429; 5 events wait") || u.DeadLetters[pipeline.Rejected] != 1 {
		t.Errorf("%+v", u)
	}

	for _, args := range []string{"limits set tier:gold 100/s", "limits set alice tier:gold"} {
		if code, _, stderr := execute(t, t.Context(), "", append(strings.Fields(args), "--wait", "0")...); code != 0 {
			t.Fatal(stderr)
		}
	}
	if stdout, _ := r.user(0, "alice", "pause", "--comment", "fire", "--wait", "0"); stdout != "alice: tier:gold -> paused (tier:gold), version 3\n" {
		t.Errorf("pause prints %q", stdout)
	}
	if u := r.says(paused, ": fire); 5 events wait"); !u.Paused || u.From != "key:alice" || u.Next != nil || len(u.Rules) != 2 || u.Rules[0].Comment != "fire" {
		t.Errorf("%+v", u)
	}
	if stdout, _ := r.user(0, "alice", "resume", "--wait", "0"); stdout != "alice: paused (tier:gold) -> tier:gold, version 4\n" {
		t.Errorf("resume prints %q", stdout)
	}
	if u := r.says(cooling, "5 events wait"); u.From != "tier:gold" || u.Limits != "100/s" {
		t.Errorf("%+v", u)
	}
}

func TestUserIsReset(t *testing.T) {
	r := newUserRig(t)
	heard := make(chan string, 10)
	stop, err := stream.NewGossip(r.js.Conn(), r.cfg).Subscribe(func(key string, d time.Duration) { heard <- fmt.Sprint(key, " ", d) })
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	if err := r.js.Conn().Flush(); err != nil {
		t.Fatal(err)
	}
	if stdout, _ := r.user(0, "alice", "reset", "--yes"); !strings.Contains(stdout, "there is nothing to forget") {
		t.Errorf("of an unknown key it prints %q", stdout)
	}
	r.spend(20)
	r.wait("alice", 2, pipeline.ParkRequest{Sleep: time.Hour, Failure: "status 503"})
	r.says(cooling, "2 events wait")
	if _, stderr := r.user(2, "alice", "reset"); !strings.Contains(stderr, "one burst more") {
		t.Errorf("without a terminal it says %q", stderr)
	}
	r.says(cooling, "2 events wait")
	if stdout, _ := r.user(0, "alice", "reset", "--yes"); !strings.HasPrefix(stdout, "alice is as new; up to one burst more") {
		t.Errorf("it prints %q", stdout)
	}
	if u := r.says(ready, "2 events wait, and the next may go now"); u.Levels[0].Tokens != 20 || u.Failure != "" {
		t.Errorf("%+v", u)
	}
	for range 2 {
		if got := <-heard; got != "alice 0s" {
			t.Errorf("workers hear %q", got)
		}
	}
}

func TestUserIsPurged(t *testing.T) {
	r := newUserRig(t)
	r.spend(20)
	r.wait("alice", 70, pipeline.ParkRequest{})
	r.wait("bob", 3, pipeline.ParkRequest{})
	if _, stderr := r.user(2, "alice", "purge"); !strings.Contains(stderr, "lost for good; give --yes, or --dry-run") {
		t.Errorf("without a terminal it says %q", stderr)
	}
	if stdout, _ := r.user(0, "alice", "purge", "--dry-run"); stdout != "would delete 70 waiting events of alice\n" {
		t.Errorf("it prints %q", stdout)
	}
	r.says(throttled, "70 events wait")
	if stdout, _ := r.user(0, "alice", "purge", "--yes"); stdout != "deleted 70 of 70 waiting events of alice\n" {
		t.Errorf("it prints %q", stdout)
	}
	r.says(idle, "no event waits")
	if held := r.held("SLUICE_LANES"); held != 3 {
		t.Errorf("%d messages are stored, want those of bob", held)
	}
	if stdout, _ := r.user(0, "bob", "purge", "--yes", "--json"); stdout != `{"key":"bob","waiting":3,"purged":3}`+"\n" {
		t.Errorf("as JSON it prints %s", stdout)
	}
	if stdout, _ := r.user(0, "alice", "purge", "--yes"); stdout != "no event of alice waits\n" {
		t.Errorf("once more it prints %q", stdout)
	}
}

func TestWrongArgumentsOfUserAreUsageErrors(t *testing.T) {
	setEnvironment(t, "SLUICE_NATS_URL=nats://127.0.0.1:1") // nobody is asked
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, "accepts between 1 and 2 arg(s), received 0"},
		{[]string{""}, "a key of 0 bytes; keys have 1 to 256"},
		{[]string{"alice", "pauze"}, `"pauze" is none of pause, resume, purge, reset`},
		{[]string{"alice", "--yes"}, "--yes: not for user KEY"},
		{[]string{"alice", "reset", "--dry-run", "--comment", "x"}, "--comment, --dry-run: not for user KEY reset"},
		{[]string{"alice", "--tier", "a:b"}, `--tier: "a:b" is not the name of a tier`},
		{[]string{"alice", "pause", "--wait", "1s"}, "--wait 1s is too short"},
	} {
		code, _, stderr := execute(t, t.Context(), "", append([]string{"user"}, c.args...)...)
		if code != exitUsage || !strings.HasPrefix(stderr, "sluice: "+c.want) {
			t.Errorf("%q: exit %d, %s", c.args, code, stderr)
		}
	}
}

func TestUserWithoutStateIsAFailure(t *testing.T) {
	r := newUserRig(t)
	r.rdb.FlushAll(t.Context())
	if _, stderr := r.user(1, "alice"); !strings.Contains(stderr, "look at the key: the state in Redis is being rebuilt: a worker does that, see 'sluice workers'") {
		t.Errorf("it says %q", stderr)
	}
}
