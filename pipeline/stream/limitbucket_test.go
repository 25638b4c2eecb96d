package stream

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"sluice/limiter"
)

func TestStoredRulesAreReadAsTheyAreWritten(t *testing.T) {
	t.Parallel()
	limits, err := limiter.ParseLimits("5/s, 100/h sliding")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []StoredRule{
		{Place: limiter.Place{Source: limiter.SourceAll}, Rule: limiter.Rule{Paused: true}},
		{Place: limiter.Place{Source: limiter.SourceDefault}, Rule: limiter.Rule{Limits: limits}},
		{Place: limiter.Place{Source: limiter.SourceDefault}, Removed: true},
		{Place: limiter.Place{Source: limiter.SourceTier, Name: "gold.eu"}, Rule: limiter.Rule{Limits: limits, Paused: true}},
		{Place: limiter.Place{Source: limiter.SourcePattern, Name: "te am-*\xff"}, Rule: limiter.Rule{Limits: limits}},
		{Place: limiter.Place{Source: limiter.SourceKey, Name: "%=./\x00ü"}, Rule: limiter.Rule{Limits: limits, Tier: "gold"}},
		{Place: limiter.Place{Source: limiter.SourceKey, Name: strings.Repeat("\xff", limiter.MaxKey)}, Rule: limiter.Rule{Tier: "gold"}},
	} {
		r.By, r.Comment, r.Key = "me@here", "because <it> is & so", limitKey(r.Place)
		value, err := encodeRule(r.Rule, r.By, r.Comment)
		if err != nil {
			t.Fatal(err)
		}
		got := storedRule(fakeEntry{key: r.Key, value: value})
		if got.Fault != nil || got.Place != r.Place || !got.Rule.Equal(r.Rule) || got.By != r.By || got.Comment != r.Comment || got.Removed != r.Removed {
			t.Errorf("%+v\nis stored as %s %s\nand read as %+v", r, r.Key, value, got)
		}
	}
}

// fakeEntry is an entry of a bucket.
type fakeEntry struct {
	jetstream.KeyValueEntry
	key   string
	value []byte
}

func (e fakeEntry) Key() string                     { return e.key }
func (e fakeEntry) Value() []byte                   { return e.value }
func (e fakeEntry) Revision() uint64                { return 1 }
func (e fakeEntry) Created() time.Time              { return time.Unix(0, 0) }
func (e fakeEntry) Operation() jetstream.KeyValueOp { return jetstream.KeyValuePut }

func TestEntriesThatMeanNothingAreFaults(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ key, value, want string }{
		{"key.a", "", "is empty"},
		{"key.a", "fast", "not a whole number"},
		{"key.a", "{}", "says nothing"},
		{"key.a", `{"limits":"5/s","burst":3}`, "unknown field"},
		{"key.a", `{"limits":"5/s"}x`, "JSON of one rule"},
		{"key.a", `{"limits":"5/s"`, "isn't the JSON"},
		{"key.a", `{"limits":"5/s","removed":true}`, "is removed, and says something"},
		{"key.a", `{"tier":"a b"}`, "not the name of a tier"},
		{"tier.gold", `{"tier":"silver"}`, "only a key can be in a tier"},
		{"all", "5/s", "can only be paused"},
		{"a", "5/s", "none of key"},
		{"key", "5/s", "keys have 1 to"},
		{"key.", "5/s", "isn't an encoded name"},
		{"key.a/b", "5/s", "isn't an encoded name"},
		{"key.=41", "5/s", "isn't an encoded name"},
		{"default.x", "5/s", "has no names"},
		{"pattern.x", "5/s", "holds no *"},
	} {
		got := storedRule(fakeEntry{key: c.key, value: []byte(c.value)})
		if got.Fault == nil || !strings.Contains(got.Fault.Error(), c.want) || !got.Rule.None() {
			t.Errorf("%s %q: fault %v, want one that says %q", c.key, c.value, got.Fault, c.want)
		}
	}
}

func TestRuleIsEditedOnceByEachOfManyAtATime(t *testing.T) {
	t.Parallel()
	js, cfg := newServer(t)
	b, err := OpenLimitBucket(t.Context(), js, cfg)
	if err != nil {
		t.Fatal(err)
	}
	place := limiter.Place{Source: limiter.SourceKey, Name: "a b"}
	var editing sync.WaitGroup
	edit := func(fn func(*limiter.Rule)) {
		editing.Go(func() {
			for {
				_, _, err := b.Edit(t.Context(), place, "me", "why", func(r limiter.Rule) (limiter.Rule, error) { fn(&r); return r, nil })
				if errors.Is(err, ErrConflict) {
					continue
				}
				if err != nil {
					t.Error(err)
				}
				return
			}
		})
	}
	limits, _ := limiter.ParseLimits("5/s")
	edit(func(r *limiter.Rule) { r.Limits = limits })
	edit(func(r *limiter.Rule) { r.Tier = "gold" })
	edit(func(r *limiter.Rule) { r.Paused = true })
	editing.Wait()
	edit(func(*limiter.Rule) {}) // writes nothing
	editing.Wait()
	history, err := b.History(t.Context(), place)
	if err != nil || len(history) != 3 {
		t.Fatalf("%d values, %v; want 3", len(history), err)
	}
	if got := history[2]; got.Rule.String() != "paused (5/s; tier:gold)" || got.By != "me" || got.Comment != "why" || time.Since(got.At) > time.Minute {
		t.Errorf("the last value is %+v", got)
	}
	if _, err := b.Put(t.Context(), StoredRule{Place: place, Revision: history[1].Revision}); !errors.Is(err, ErrConflict) {
		t.Errorf("a change of an old value gives %v, want a conflict", err)
	}
	if got, err := b.Get(t.Context(), limiter.Place{Source: limiter.SourceKey, Name: "other"}); err != nil || !got.Removed || got.Revision != 0 {
		t.Errorf("of an unknown key it says %+v, %v", got, err)
	}
}

func TestWithoutBucketCommandsSayWhatToDo(t *testing.T) {
	t.Parallel()
	cfg := testConfig(startServer(t, serverOptions(t)))
	_, err := OpenLimitBucket(t.Context(), connect(t, cfg), cfg)
	wantText(t, err, "there is no KV bucket sluice_limits", "sluice setup")
}

func TestBucketThatForgetsIsRefused(t *testing.T) {
	t.Parallel()
	cfg := testConfig(startServer(t, serverOptions(t)))
	js := connect(t, cfg)
	if _, err := js.CreateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: "sluice_limits", TTL: time.Hour}); err != nil {
		t.Fatal(err)
	}
	_, err := Setup(t.Context(), js, cfg)
	wantText(t, err, "KV bucket sluice_limits can't keep limits", "ttl is 1h0m0s, wanted none")
}

func TestMusterTellsWhoRunsWhichLimits(t *testing.T) {
	t.Parallel()
	cfg := testConfig(startServer(t, serverOptions(t)))
	m, err := CallMuster(t.Context(), rawConn(t, cfg.URLs), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	var fleets []*Fleet
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	for _, id := range []string{"b", "a"} {
		f, err := JoinFleet(rawConn(t, cfg.URLs), cfg, WorkerInfo{ID: id, Build: "v1", Settings: "x" + id})
		if err != nil {
			t.Fatal(err)
		}
		running.Go(func() { f.Run(ctx) })
		fleets = append(fleets, f)
	}
	defer running.Wait()
	defer stop()
	v := LimitsVersion{Bucket: 7, Seq: 3}
	fleets[0].RunsLimits(LimitsVersion{Bucket: 7, Seq: 4})
	fleets[1].RunsLimits(LimitsVersion{Bucket: 6, Seq: 9}) // of a bucket that was deleted
	all, behind := m.Await(t.Context(), v, 1500*time.Millisecond)
	if len(all) != 2 || all[0].ID != "a" || all[1].Settings != "xb" || len(behind) != 1 || behind[0].ID != "a" {
		t.Errorf("heard %v, behind are %v", all, behind)
	}
	fleets[1].RunsLimits(v)
	start := time.Now()
	if _, behind = m.Await(t.Context(), v, 5*time.Second); len(behind) != 0 || time.Since(start) > time.Second {
		t.Errorf("%v are behind after %s", behind, time.Since(start))
	}
	if ids := m.Workers(t.Context()); len(ids) != 2 {
		t.Errorf("the workers are %v", ids)
	}
}
