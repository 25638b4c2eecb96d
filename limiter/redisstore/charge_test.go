package redisstore

import (
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"sluice/limiter"
	"sluice/pipeline"
)

func TestChargeTakesWhatIsThereAndAtMostASecondsWorthMore(t *testing.T) {
	r := newRig(t, "10/s burst 20, 100/m window, 50/h sliding")
	r.at(0)
	ruling := r.rule("", "").ruling
	r.index("lane", 1) // what waits doesn't matter
	for _, key := range []string{"some", "all", "lane"} {
		d := debt{key: key, ruling: ruling, tokens: []int64{5, 6, 7}}
		if key == "all" {
			d.tokens = []int64{100, 1000, 100}
		}
		if err := r.charge([]debt{d}); err != nil {
			t.Fatal(err)
		}
	}
	if h := r.hash("some"); h["tokens"] != "15" || h["window/1m:tokens"] != "94" || h["sliding/1h:counts"][:2] != "7," {
		t.Errorf("some was taken: %v", h)
	}
	if h := r.hash("all"); h["tokens"] != "-10" || h["window/1m:tokens"] != "0" || h["sliding/1h:counts"][:3] != "50," {
		t.Errorf("all was taken: %v, want at most a second's worth of debt", h)
	}
	if err := r.charge([]debt{{key: "all", ruling: ruling, tokens: []int64{1, 1, 1}}}); err != nil {
		t.Fatal(err)
	}
	if h := r.hash("all"); h["tokens"] != "-10" {
		t.Errorf("more was taken: %v", h)
	}
	if h := r.hash("lane"); h["tokens"] != "15" {
		t.Errorf("of a key with a lane: %v", h)
	}
	r.at(2_000_000)
	if d, err := r.Reserve(t.Context(), "some", "", 1, 0); err != nil || d.Verdict != limiter.Go {
		t.Errorf("afterwards: %+v, %v", d, err)
	}
}

func TestManyKeysAreChargedAndIndexedAtOnce(t *testing.T) {
	r := newRig(t, "10/s burst 20")
	var debts []debt
	var parks []pipeline.ParkRequest
	const keys = 1.5 * limiter.Shards * maxKeys // so that most shards need two calls
	for i := range int(keys) {
		key := fmt.Sprint("key", i)
		debts = append(debts, debt{key: key, ruling: r.rule(key, "").ruling, tokens: []int64{1}})
		parks = append(parks, pipeline.ParkRequest{Key: key, Entry: pipeline.Entry{BodyID: pipeline.BodyID{Seq: uint64(i + 1)}, Order: uint64(i + 1), Cost: 1}})
	}
	// A call that takes a second is given up, and some pause after three such, which a busy machine may well need. What was given up
	// may have been carried out.
	charges, left := int64(1), parks
	deadline := time.Now().Add(time.Minute)
	for err := r.charge(debts); err != nil; err = r.charge(debts) {
		if charges++; !away(err) && !errors.Is(err, errAway) || time.Now().After(deadline) {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond)
	}
	for len(left) > 0 { // as after an outage
		var err error
		if left, err = r.Store.index(left); err != nil && !away(err) && !errors.Is(err, errAway) || time.Now().After(deadline) {
			t.Fatal(err, len(left))
		} else if err != nil {
			time.Sleep(100 * time.Millisecond)
		}
	}
	for _, i := range []int{0, keys / 2, keys - 1} {
		key := parks[i].Key
		tokens, err := strconv.ParseInt(r.hash(key)["tokens"], 10, 64)
		if err != nil || tokens > 19 || tokens < 20-charges || len(r.zset("lane", key)) != 1 {
			t.Errorf("%s: %v, %v after %d charges", key, r.hash(key), r.zset("lane", key), charges)
		}
	}
	redis.SetLogger(quiet{})
	r.server.Kill()
	if left, err := r.Store.index(parks); err == nil || len(left) != len(parks) {
		t.Errorf("without Redis %d of %d are left, %v", len(left), len(parks), err)
	}
}

func TestBreakerEndsCallsAfterThreeFailuresAndFindsRedisWithinHalfASecond(t *testing.T) {
	r := newRig(t, "10/s burst 20")
	reserve := func() error {
		_, err := r.Reserve(t.Context(), "k", "", 1, 0)
		return err
	}
	redis.SetLogger(quiet{})
	r.server.Kill()
	for i := range 5 {
		err := reserve()
		if !failing(err) || errors.Is(err, errAway) != (i >= breakAfter) {
			t.Errorf("call %d: %v", i+1, err)
		}
	}
	if r.reachable() {
		t.Error("Redis isn't known to be away")
	}
	select {
	case <-r.turns():
	default:
		t.Error("the turn wasn't told")
	}
	r.server.Start()
	for start := time.Now(); r.try(t.Context()) != nil; time.Sleep(10 * time.Millisecond) {
		if time.Since(start) > time.Second {
			t.Fatal("Redis isn't found again")
		}
	}
	if !r.reachable() {
		t.Error("Redis answers, but no calls are made")
	}
	if err := r.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := reserve(); err != nil {
		t.Errorf("after the return: %v", err)
	}
}

// Looks for due lanes and refusals write nothing, and so are answered by a Redis that takes no writes.
func TestAnswersThatWroteNothingDontHideFailedWrites(t *testing.T) {
	r := newRig(t, "10/s burst 20")
	r.ask("full", 20, 0)
	if err := r.rdb.ConfigSet(t.Context(), "min-replicas-to-write", "1").Err(); err != nil {
		t.Fatal(err)
	}
	for range breakAfter {
		if !r.reachable() {
			t.Fatal("taken for away before it has failed thrice")
		}
		if _, err := r.claimShard("k", 10); err != nil {
			t.Fatal(err)
		}
		if a := r.ask("full", 1, 0); a.granted != 0 {
			t.Fatalf("%+v, want a refusal", a)
		}
		if _, err := r.Reserve(t.Context(), "k", "", 1, 0); err == nil {
			t.Fatal("it takes writes")
		}
	}
	if r.reachable() {
		t.Error("taken for a good one, since it answers")
	}
}

func TestBreakerCountsARedisThatTakesNoWritesAsAway(t *testing.T) {
	t.Parallel()
	r := newRig(t, "10/s burst 20")
	set := func(name, value string) {
		t.Helper()
		if err := r.rdb.ConfigSet(t.Context(), name, value).Err(); err != nil {
			t.Fatal(err)
		}
	}
	set("min-replicas-to-write", "1")
	for range 4 {
		_, _ = r.Reserve(t.Context(), "k", "", 1, 0)
	}
	if r.reachable() {
		t.Error("a Redis without its replicas is taken for a good one")
	}
	time.Sleep(trialEvery + 10*time.Millisecond)
	if r.try(t.Context()) == nil {
		t.Error("the try didn't write")
	}
	set("min-replicas-to-write", "0")
	time.Sleep(trialEvery + 10*time.Millisecond)
	if err := r.try(t.Context()); err != nil || !r.reachable() {
		t.Errorf("it takes writes again: %v", err)
	}
	set("maxmemory", "1")
	for range 4 {
		_, _ = r.Reserve(t.Context(), "k", "", 1, 0)
	}
	if r.reachable() {
		t.Error("a Redis without memory is taken for a good one")
	}
	set("maxmemory", "0")
	time.Sleep(trialEvery + 10*time.Millisecond)
	if err := r.try(t.Context()); err != nil {
		t.Error(err)
	}
	r.shards[0].lose(r.shards[0].epoch)
	for range 10 {
		_, _ = r.shards[0].run(reserveScript, nil, nil) // without an epoch: no call, so no failure
	}
	if !r.reachable() {
		t.Error("a lost epoch counts as a failure")
	}
}
