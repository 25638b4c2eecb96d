package stream

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"sluice/limiter"
)

// limitsRig is a bucket, hands on it, and a worker's book that follows it.
type limitsRig struct {
	t      *testing.T
	js     jetstream.JetStream
	cfg    Config
	kv     jetstream.KeyValue
	book   *limiter.Book
	limits *Limits
	log    logged

	mu       sync.Mutex
	versions []LimitsVersion
}

// quickPace looks far more often than usual.
var quickPace = limitsPace{compare: 100 * time.Millisecond, missing: 50 * time.Millisecond, idle: 2 * time.Second, retry: 20 * time.Millisecond}

// slowPace never compares within a test.
var slowPace = limitsPace{compare: time.Hour, missing: 50 * time.Millisecond, idle: 2 * time.Second, retry: 20 * time.Millisecond}

func newLimitsRig(t *testing.T, js jetstream.JetStream, cfg Config, pace limitsPace) *limitsRig {
	t.Helper()
	r := &limitsRig{t: t, js: js, cfg: cfg}
	r.open(pace)
	return r
}

func (r *limitsRig) open(pace limitsPace) {
	r.t.Helper()
	one, err := limiter.ParseLimits("1/s")
	if err != nil {
		r.t.Fatal(err)
	}
	r.book = limiter.NewBook(one)
	r.limits, err = openLimits(r.t.Context(), r.js, r.cfg, r.book, r.log.log(), r.told, pace)
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { r.limits.Run(ctx); close(ended) }()
	r.t.Cleanup(func() { stop(); <-ended })
	r.bind()
}

func (r *limitsRig) bind() {
	r.kv, _ = r.js.KeyValue(r.t.Context(), "sluice_limits")
}

func (r *limitsRig) told(v LimitsVersion) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.versions = append(r.versions, v)
}

func (r *limitsRig) put(key, value string) uint64 {
	r.t.Helper()
	rev, err := r.kv.PutString(r.t.Context(), key, value)
	if err != nil {
		r.t.Fatal(err)
	}
	return rev
}

// has waits until key is ruled by limits.
func (r *limitsRig) has(key, limits string) {
	r.t.Helper()
	eventually(r.t, fmt.Sprintf("%s has %s", key, limits), func() bool { return r.book.Resolve(key, "").Limits.String() == limits })
}

func TestLimitsAreReadAndFollowed(t *testing.T) {
	t.Parallel()
	js, cfg := newServer(t)
	kv, err := js.KeyValue(t.Context(), "sluice_limits")
	if err != nil {
		t.Fatal(err)
	}
	for key, value := range map[string]string{"default": "2/s", "tier.gold": `{"limits":"9/s","by":"me"}`, "key.a=40b=2Ec": "3/s", "key.x": `{"tier":"gold"}`} {
		if _, err := kv.PutString(t.Context(), key, value); err != nil {
			t.Fatal(err)
		}
	}
	r := newLimitsRig(t, js, cfg, slowPace)
	for key, want := range map[string]string{"bob": "2/s", "a@b.c": "3/s", "x": "9/s"} {
		if got := r.book.Resolve(key, "").Limits.String(); got != want {
			t.Errorf("%s begins with %s, want %s", key, got, want)
		}
	}
	var mu sync.Mutex
	var affected []func(string) bool
	r.book.Subscribe(func(fn func(string) bool) { mu.Lock(); affected = append(affected, fn); mu.Unlock() })
	start := time.Now()
	r.put("key.bob", "7/s")
	r.has("bob", "7/s")
	took := time.Since(start)
	t.Logf("a change takes %s", took)
	if took > time.Second {
		t.Errorf("a change takes %s, want less than a second", took)
	}
	mu.Lock()
	if len(affected) != 1 || !affected[0]("bob") || affected[0]("x") {
		t.Errorf("%d changes are told, want one that affects bob only", len(affected))
	}
	mu.Unlock()
	r.put("all", `{"paused":true}`)
	r.has("x", "0")
	r.put("all", `{"removed":true}`)
	r.has("x", "9/s")
	if err := r.kv.Delete(t.Context(), "key.bob"); err != nil {
		t.Fatal(err)
	}
	r.has("bob", "2/s")
	if err := r.kv.Purge(t.Context(), "default"); err != nil {
		t.Fatal(err)
	}
	r.has("bob", "1/s")
	eventually(t, "the version is 9", func() bool { return r.limits.Version().Seq == 9 })
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, v := range r.versions {
		if i > 0 && !v.Covers(r.versions[i-1]) || v.Bucket == 0 {
			t.Errorf("the versions told are %v", r.versions)
		}
	}
}

func TestChangeAfterServerRestartIsSeenAtOnce(t *testing.T) {
	t.Parallel()
	opts := serverOptions(t)
	ns := startServer(t, opts)
	cfg := testConfig(ns)
	js := connect(t, cfg)
	if _, err := Setup(t.Context(), js, cfg); err != nil {
		t.Fatal(err)
	}
	r := newLimitsRig(t, js, cfg, slowPace)
	r.put("key.alice", "2/s")
	r.has("alice", "2/s")
	ns.Shutdown()
	ns.WaitForShutdown()
	startServer(t, opts)
	other := connect(t, cfg)
	kv, err := other.KeyValue(t.Context(), "sluice_limits")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kv.PutString(t.Context(), "key.alice", "3/s"); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	r.has("alice", "3/s")
	took := time.Since(start)
	t.Logf("a change right after a restart takes %s", took)
	if took > 4*time.Second { // reconnecting takes up to 2 s
		t.Errorf("a change right after a restart takes %s", took)
	}
	r.kv = kv
	r.put("key.alice", "4/s")
	r.has("alice", "4/s")
}

func TestSilentWatchIsFoundByComparing(t *testing.T) {
	t.Parallel()
	js, cfg := newServer(t)
	r := newLimitsRig(t, js, cfg, quickPace)
	r.put("key.alice", "2/s")
	r.has("alice", "2/s")
	s, err := js.Stream(t.Context(), "KV_sluice_limits")
	if err != nil {
		t.Fatal(err)
	}
	for name := range s.ConsumerNames(t.Context()).Name() {
		if err := s.DeleteConsumer(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	start := time.Now()
	r.put("key.alice", "3/s")
	r.has("alice", "3/s")
	if took := time.Since(start); took > 3*time.Second {
		t.Errorf("it takes %s", took)
	}
}

func TestRulesDeletedOutOfTheHistoryAreForgotten(t *testing.T) {
	t.Parallel()
	js, cfg := newServer(t)
	r := newLimitsRig(t, js, cfg, quickPace)
	r.put("key.alice", "2/s")
	r.put("key.bob", "2/s")
	r.has("bob", "2/s")
	r.open(quickPace) // a worker that has seen how many messages there are
	s, err := js.Stream(t.Context(), "KV_sluice_limits")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Purge(t.Context(), jetstream.WithPurgeSubject("$KV.sluice_limits.key.alice")); err != nil {
		t.Fatal(err)
	}
	r.has("alice", "1/s")
	r.has("bob", "2/s")
}

func TestDeletedBucketLeavesWhatIsKnownUntilItIsBack(t *testing.T) {
	t.Parallel()
	js, cfg := newServer(t)
	r := newLimitsRig(t, js, cfg, quickPace)
	for i := range 5 {
		r.put("key.alice", fmt.Sprintf("%d/s", i+2))
	}
	r.has("alice", "6/s")
	if err := js.DeleteKeyValue(t.Context(), "sluice_limits"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "that it is gone is told", func() bool { return strings.Contains(r.log.String(), "the KV bucket of limits is gone") })
	if got := r.book.Resolve("alice", "").Limits.String(); got != "6/s" {
		t.Errorf("without the bucket alice has %s", got)
	}
	if _, err := Setup(t.Context(), js, cfg); err != nil {
		t.Fatal(err)
	}
	r.bind()
	r.put("key.bob", "8/s")
	r.has("bob", "8/s")
	r.has("alice", "1/s")
	r.put("key.alice", "9/s")
	r.has("alice", "9/s")
	if v := r.limits.Version(); v.Seq != 2 {
		t.Errorf("the version is %d, want that of the new bucket, 2", v.Seq)
	}
}

func TestWithoutBucketSLUICE_LIMITRulesUntilThereIsOne(t *testing.T) {
	t.Parallel()
	cfg := testConfig(startServer(t, serverOptions(t)))
	js := connect(t, cfg)
	r := newLimitsRig(t, js, cfg, quickPace)
	if v := r.limits.Version(); v != (LimitsVersion{}) {
		t.Errorf("the version is %v without a bucket", v)
	}
	r.has("alice", "1/s")
	if _, err := Setup(t.Context(), js, cfg); err != nil {
		t.Fatal(err)
	}
	r.bind()
	r.put("default", "5/s")
	r.has("alice", "5/s")
}

func TestBadValueNeverReplacesAGoodOne(t *testing.T) {
	t.Parallel()
	js, cfg := newServer(t)
	r := newLimitsRig(t, js, cfg, slowPace)
	r.put("key.alice", "2/s")
	r.put("key.alice", "3/s")
	r.has("alice", "3/s")
	r.put("key.alice", "3 per second")
	r.put("key.bob", `{"limit":"2/s"}`)
	r.put("bob", "2/s")
	last := r.put("key.carol", "4/s")
	r.has("carol", "4/s")
	check := func(when string) {
		t.Helper()
		for key, want := range map[string]string{"alice": "3/s", "bob": "1/s"} {
			if got := r.book.Resolve(key, "").Limits.String(); got != want {
				t.Errorf("%s: %s has %s, want %s", when, key, got, want)
			}
		}
		if n := r.limits.Faults(); n != 3 {
			t.Errorf("%s: %d faults are counted, want 3", when, n)
		}
		if v := r.limits.Version().Seq; v != last {
			t.Errorf("%s: the version is %d, want %d", when, v, last)
		}
	}
	check("followed")
	for _, want := range []string{"key=key.alice revision=3", "key=key.bob", "key=bob"} {
		if n := strings.Count(r.log.String(), want); n != 1 {
			t.Errorf("%q is logged %d times, want once:\n%s", want, n, r.log.String())
		}
	}
	r.open(slowPace)
	check("read by another worker")
	r.put("key.alice", "5/s")
	r.has("alice", "5/s")
	if err := r.kv.Delete(t.Context(), "bob"); err != nil {
		t.Fatal(err)
	}
	r.put("key.bob", "6/s")
	r.has("bob", "6/s")
	if n := r.limits.Faults(); n != 0 {
		t.Errorf("%d faults are left", n)
	}
}

func TestMillionRulesAreReadWithinTenSeconds(t *testing.T) {
	if os.Getenv("SLUICE_SOAK") == "" {
		t.Skip("SLUICE_SOAK is not set")
	}
	js, cfg := newServer(t)
	const n = 1_000_000
	for i := range n {
		msg := &nats.Msg{Subject: fmt.Sprintf("$KV.sluice_limits.key.customer-%08d", i), Data: fmt.Appendf(nil, `{"limits":"%d/s","by":"me@here"}`, i%1000+1)}
		if _, err := js.PublishMsgAsync(msg, jetstream.WithStallWait(time.Minute)); err != nil {
			t.Fatal(err)
		}
	}
	<-js.PublishAsyncComplete()
	start := time.Now()
	r := newLimitsRig(t, js, cfg, usualPace)
	took := time.Since(start)
	t.Logf("%d rules are read in %s", n, took)
	if took > 10*time.Second {
		t.Errorf("it takes %s", took)
	}
	if got := r.book.Resolve("customer-00001001", "").Limits.String(); got != "2/s" {
		t.Errorf("a key has %s", got)
	}
}
