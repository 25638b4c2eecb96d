package main

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"sluice/integration/testenv"
	"sluice/pipeline/stream"
)

// checkRig is a healthy set of servers; a test spoils one thing.
type checkRig struct {
	t     *testing.T
	js    jetstream.JetStream
	redis *testenv.RedisServer
	env   map[string]string
}

func newCheckRig(t *testing.T, opts server.Options) *checkRig {
	t.Helper()
	r := &checkRig{t: t, redis: testenv.Redis(t, "--appendonly", "yes", "--maxmemory-policy", "noeviction")}
	receiver := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(receiver.Close)
	r.env = map[string]string{
		"NATS_URL": startNATS(t, opts).ClientURL(), "REDIS_URL": r.redis.URL(), "WEBHOOK_URL": receiver.URL + "/hooks/{key}",
		"WEBHOOK_SECRETS": "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=", "SETUP": "all",
	}
	if len(opts.Users) > 0 {
		r.env["NATS_USER"], r.env["NATS_PASSWORD"] = "admin", "x"
	}
	nc, err := nats.Connect(r.env["NATS_URL"], nats.UserInfo(r.env["NATS_USER"], r.env["NATS_PASSWORD"]))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	if r.js, err = jetstream.New(nc); err != nil {
		t.Fatal(err)
	}
	return r
}

// setUp makes streams and consumer.
func (r *checkRig) setUp() {
	r.t.Helper()
	r.setEnvironment()
	cfg, err := loadConfig(workerParts...)
	if err != nil {
		r.t.Fatal(err)
	}
	if _, err := stream.Setup(r.t.Context(), r.js, cfg.stream()); err != nil {
		r.t.Fatal(err)
	}
}

func (r *checkRig) setEnvironment() {
	var list []string
	for name, value := range r.env {
		list = append(list, "SLUICE_"+name+"="+value)
	}
	setEnvironment(r.t, list...)
}

// check runs the command and returns its findings.
func (r *checkRig) check() (code int, found []finding) {
	r.t.Helper()
	r.setEnvironment()
	var out, errs bytes.Buffer
	code = run(r.t.Context(), []string{"check", "--json"}, nil, &out, &errs)
	if err := json.Unmarshal(out.Bytes(), &found); err != nil {
		r.t.Fatalf("%v in %q; %s", err, &out, &errs)
	}
	return code, found
}

// answers makes the receiver one that gives every request this answer.
func (r *checkRig) answers(status int) {
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }))
	r.t.Cleanup(receiver.Close)
	r.env["WEBHOOK_URL"] = receiver.URL
}

// look is check without the workers, who take a second to be heard.
func (r *checkRig) look() *findings {
	r.t.Helper()
	r.setEnvironment()
	cfg, err := loadConfig(workerParts...)
	if err != nil {
		r.t.Fatal(err)
	}
	f := &findings{show: func(finding) {}}
	for _, look := range []func(context.Context, Config, *findings){checkNATS, checkRedis, checkReceiver} {
		ctx, cancel := context.WithTimeout(r.t.Context(), checkTimeout)
		look(ctx, cfg, f)
		cancel()
	}
	return f
}

func TestCheckOfAHealthyPipelineFindsNothing(t *testing.T) {
	r := newCheckRig(t, server.Options{})
	r.setUp()
	if _, err := r.js.Publish(t.Context(), "events.alice", []byte("{}")); err != nil {
		t.Fatal(err)
	}
	code, found := r.check()
	for _, one := range found {
		if one.Level != fine && one.About != "backlog" { // nobody pulls
			t.Errorf("%+v", one)
		}
	}
	if code != exitOK {
		t.Errorf("exit code %d", code)
	}
	if !slices.ContainsFunc(found, func(f finding) bool { return f.Text == "has the key alice" }) {
		t.Errorf("the key of the newest event isn't shown: %+v", found)
	}
	for _, name := range []string{"SLUICE_LANES", "SLUICE_DLQ"} {
		s, err := r.js.Stream(t.Context(), name)
		if err != nil || s.CachedInfo().State.LastSeq != max(s.CachedInfo().Config.FirstSeq, 1)-1 {
			t.Errorf("check stored something in %s: %v", name, err)
		}
	}
	if keys := r.redis.Client().Keys(t.Context(), "*").Val(); len(keys) > 0 {
		t.Errorf("check left %v in Redis", keys)
	}
	c, err := r.js.Consumer(t.Context(), "EVENTS", "sluice")
	if err != nil || c.CachedInfo().NumAckPending != 0 || c.CachedInfo().NumPending != 1 {
		t.Errorf("check took an event from the consumer: %+v, %v", c.CachedInfo(), err)
	}
}

func TestCheckFindsWhatIsWrong(t *testing.T) {
	users := func(deny ...string) server.Options {
		return server.Options{Users: []*server.User{
			{Username: "admin", Password: "x"},
			{Username: "worker", Password: "x", Permissions: &server.Permissions{Publish: &server.SubjectPermission{Deny: deny}}},
		}}
	}
	update := func(r *checkRig, name string, change func(*jetstream.StreamConfig)) {
		r.t.Helper()
		s, err := r.js.Stream(r.t.Context(), name)
		if err != nil {
			r.t.Fatal(err)
		}
		cfg := s.CachedInfo().Config
		change(&cfg)
		if _, err := r.js.UpdateStream(r.t.Context(), cfg); err != nil {
			r.t.Fatal(err)
		}
	}
	publish := func(r *checkRig, subject string, data []byte) {
		r.t.Helper()
		if _, err := r.js.Publish(r.t.Context(), subject, data); err != nil {
			r.t.Fatal(err)
		}
	}
	redis := func(r *checkRig, args ...any) {
		r.t.Helper()
		if err := r.redis.Client().Do(r.t.Context(), args...).Err(); err != nil {
			r.t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name         string
		opts         server.Options
		spoil        func(*checkRig)
		level, about string
		says         string
	}{
		{"no NATS", server.Options{}, func(r *checkRig) { r.env["NATS_URL"] = "nats://127.0.0.1:1" }, fault, "NATS", "SLUICE_NATS_URL"},
		{"a source that nobody may create", server.Options{}, func(r *checkRig) {
			r.env["SETUP"], r.env["STREAM"] = "own", "ORDERS"
		}, fault, "stream ORDERS", "there is no stream ORDERS"},
		{"lanes that the first worker creates", server.Options{}, func(r *checkRig) {
			_ = r.js.DeleteStream(r.t.Context(), "SLUICE_LANES")
		}, warning, "stream SLUICE_LANES", "missing"},
		{"lanes that forget", server.Options{}, func(r *checkRig) {
			update(r, "SLUICE_LANES", func(c *jetstream.StreamConfig) { c.MaxAge = time.Hour })
		}, fault, "stream SLUICE_LANES", "max_age"},
		{"lanes that are nearly full", server.Options{}, func(r *checkRig) {
			r.env["LANES_MAX_BYTES"] = "1MiB"
			update(r, "SLUICE_LANES", func(c *jetstream.StreamConfig) { c.MaxBytes = 1 << 20 })
			publish(r, "sluice.lane.s00.x", make([]byte, 900<<10))
		}, warning, "stream SLUICE_LANES", "nearly full"},
		{"a consumer that gives up", server.Options{}, func(r *checkRig) {
			_ = r.js.DeleteConsumer(r.t.Context(), "EVENTS", "sluice")
			_, err := r.js.CreateConsumer(r.t.Context(), "EVENTS", jetstream.ConsumerConfig{
				Durable: "sluice", AckPolicy: jetstream.AckExplicitPolicy, MaxDeliver: 3, FilterSubjects: []string{"events.>"},
			})
			if err != nil {
				r.t.Fatal(err)
			}
		}, fault, "consumer sluice of stream EVENTS", "max_deliver"},
		{"a right that is missing in NATS", users("$JS.API.STREAM.MSG.DELETE.SLUICE_LANES"), func(r *checkRig) {
			r.env["NATS_USER"], r.env["NATS_PASSWORD"] = "worker", "x"
		}, fault, "NATS rights", "publish $JS.API.STREAM.MSG.DELETE.SLUICE_LANES"},
		{"events without a key", server.Options{}, func(r *checkRig) {
			r.env["KEY"] = "json:user.id"
			publish(r, "events.alice", []byte(`{"user": 7}`))
		}, warning, "event events.alice", "json:user.id"},
		{"no Redis", server.Options{}, func(r *checkRig) { r.redis.Kill() }, fault, "Redis", "SLUICE_REDIS_URL"},
		{"a wrong password of Redis", server.Options{}, func(r *checkRig) {
			redis(r, "acl", "setuser", "sluice", "on", ">right", "~*", "+@all")
			r.env["REDIS_USERNAME"], r.env["REDIS_PASSWORD"] = "sluice", "wrong"
		}, fault, "Redis", "SLUICE_REDIS_PASSWORD"},
		{"a Redis that evicts", server.Options{}, func(r *checkRig) {
			redis(r, "config", "set", "maxmemory-policy", "allkeys-lru")
		}, fault, "Redis ", "allkeys-lru"},
		{"a Redis that forgets", server.Options{}, func(r *checkRig) {
			redis(r, "config", "set", "appendonly", "no")
		}, warning, "Redis ", "append-only"},
		{"a right that is missing in Redis", server.Options{}, func(r *checkRig) {
			redis(r, "acl", "setuser", "default", "-zrem")
		}, fault, "Redis rights", "ZREM"},
		{"a Redis that takes no writes", server.Options{}, func(r *checkRig) {
			redis(r, "replicaof", "127.0.0.1", "1")
		}, fault, "Redis", ""},
		{"no receiver", server.Options{}, func(r *checkRig) { r.env["WEBHOOK_URL"] = "http://127.0.0.1:1/" }, fault, "receiver", "refused"},
		{"a receiver with a certificate of its own making", server.Options{}, func(r *checkRig) {
			receiver := httptest.NewTLSServer(http.NotFoundHandler())
			r.t.Cleanup(receiver.Close)
			r.env["WEBHOOK_URL"] = receiver.URL
		}, fault, "receiver", "certificate"},
		{"a receiver of https by http", server.Options{}, func(r *checkRig) {
			receiver := httptest.NewTLSServer(http.NotFoundHandler())
			r.t.Cleanup(receiver.Close)
			r.env["WEBHOOK_URL"] = strings.Replace(receiver.URL, "https", "http", 1) + "/hooks/{key}"
		}, fault, "receiver", "TLS"},
		{"a receiver that doesn't understand", server.Options{}, func(r *checkRig) { r.answers(400) }, warning, "receiver", "doesn't understand"},
		{"a receiver with nothing behind it", server.Options{}, func(r *checkRig) { r.answers(502) }, warning, "receiver", "HEAD /: 502"},
		{"a proxy's refusal", server.Options{}, func(r *checkRig) { r.answers(407) }, fault, "receiver", "proxy"},
		{"pushes that nobody signs", server.Options{}, func(r *checkRig) { r.env["WEBHOOK_SECRETS"] = "" }, warning, "receiver", "not signed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newCheckRig(t, c.opts)
			r.setUp()
			c.spoil(r)
			f := r.look()
			if n := f.count(fault); (n > 0) != (c.level == fault) {
				t.Errorf("%d faults beside a %s", n, c.level)
			}
			if !slices.ContainsFunc(f.list, func(f finding) bool {
				return f.Level == c.level && strings.HasPrefix(f.About, c.about) && strings.Contains(f.Text, c.says)
			}) {
				t.Errorf("want a %s about %q with %q in\n%+v", c.level, c.about, c.says, f.list)
			}
		})
	}
}

func TestCheckShowsEachFindingWithItsRemedy(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	printFinding(&out, finding{fault, "Redis 127.0.0.1:6379", "may evict keys", "set it to noeviction"})
	printFinding(&out, finding{fine, "clocks", "agree", ""})
	want := "fault    Redis 127.0.0.1:6379: may evict keys\n         set it to noeviction\nok       clocks: agree\n"
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", &out, want)
	}
}
