package stream

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

func dids(actions []Action) string {
	var all []string
	for _, a := range actions {
		all = append(all, a.Object+" "+a.Did)
	}
	return strings.Join(all, ", ")
}

func TestSetupCreatesThenFinds(t *testing.T) {
	t.Parallel()
	cfg := testConfig(startServer(t, serverOptions(t)))
	js := connect(t, cfg)
	for _, did := range []string{"created", "exists", "exists"} {
		actions, err := Setup(t.Context(), js, cfg)
		if err != nil {
			t.Fatal(err)
		}
		want := "stream EVENTS " + did + ", consumer sluice of stream EVENTS " + did + ", stream SLUICE_LANES " + did + ", stream SLUICE_DLQ " + did +
			", KV bucket sluice_limits " + did + ", KV bucket sluice_state " + did
		if got := dids(actions); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	c := consumerInfo(t, js, cfg).Config
	if c.AckPolicy != jetstream.AckExplicitPolicy || c.AckWait != 30*time.Second || c.MaxAckPending != -1 || c.MaxDeliver != -1 ||
		c.MaxWaiting != 4096 || c.DeliverPolicy != jetstream.DeliverAllPolicy || !sameSet(filtersOf(c, nil), []string{"events.>"}) {
		t.Errorf("the consumer is %+v", c)
	}
	lanes, err := js.Stream(t.Context(), "SLUICE_LANES")
	if err != nil {
		t.Fatal(err)
	}
	l := lanes.CachedInfo().Config
	if l.Discard != jetstream.DiscardNew || l.Duplicates != time.Minute || l.MaxBytes != cfg.LanesMaxBytes || !l.AllowDirect ||
		l.MaxAge != 0 || l.Retention != jetstream.LimitsPolicy || l.Subjects[0] != "sluice.lane.>" {
		t.Errorf("the lanes are %+v", l)
	}
}

func TestSetupNeverChangesTheSource(t *testing.T) {
	t.Parallel()
	cfg := testConfig(startServer(t, serverOptions(t)))
	js := connect(t, cfg)
	made, err := js.CreateStream(t.Context(), jetstream.StreamConfig{
		Name: "EVENTS", Subjects: []string{"events.a", "other.>"}, Storage: jetstream.MemoryStorage, MaxAge: time.Hour,
	})
	if err != nil {
		t.Fatal(err)
	}
	cfg.Subjects = []string{"events.a", "other.b"}
	c, err := js.CreateConsumer(t.Context(), "EVENTS", jetstream.ConsumerConfig{
		Durable: "sluice", AckPolicy: jetstream.AckExplicitPolicy, AckWait: 2 * time.Second, MaxAckPending: -1, FilterSubjects: []string{"other.b", "events.a"},
	})
	if err != nil {
		t.Fatal(err)
	}
	actions, err := Setup(t.Context(), js, cfg)
	if err != nil {
		t.Fatal(err)
	}
	if actions[0].Did != "exists" || actions[1].Did != "differs" || !strings.Contains(actions[1].Detail, "ack_wait is 2s") {
		t.Errorf("got %v", actions)
	}
	after, err := js.Stream(t.Context(), "EVENTS")
	if err != nil {
		t.Fatal(err)
	}
	if a, b := made.CachedInfo().Config, after.CachedInfo().Config; a.MaxAge != b.MaxAge || a.Storage != b.Storage || !sameSet(a.Subjects, b.Subjects) {
		t.Errorf("the source was %+v, is %+v", a, b)
	}
	if got := consumerInfo(t, js, cfg).Config; got.AckWait != c.CachedInfo().Config.AckWait {
		t.Errorf("the consumer's ack_wait is %v now", got.AckWait)
	}
	cfg.Subjects = []string{"events.c", "other.b"}
	cfg.Consumer = "another"
	if actions, _ = Setup(t.Context(), js, cfg); actions[0].Did != "differs" || !strings.Contains(actions[0].Detail, "events.c") {
		t.Errorf("got %v, want to hear that the stream doesn't take events.c", actions)
	}
}

func TestFilterEqualToTheStreamIsFoundInAnyForm(t *testing.T) {
	t.Parallel()
	js, cfg := newServer(t)
	for name, c := range map[string]jetstream.ConsumerConfig{
		"none": {}, "single": {FilterSubject: "events.>"}, "list": {FilterSubjects: []string{"events.>"}},
	} {
		c.Durable, c.AckPolicy, c.MaxAckPending, c.AckWait = name, jetstream.AckExplicitPolicy, -1, time.Minute
		if _, err := js.CreateConsumer(t.Context(), "EVENTS", c); err != nil {
			t.Fatal(err)
		}
		cfg.Consumer = name
		if b, err := bind(t.Context(), js, cfg); err != nil || b.ackWait != time.Minute {
			t.Errorf("%s: ack wait %v, error %v", name, b.ackWait, err)
		}
	}
}

func TestUnfitConsumerIsAFaultWithFieldAndRemedy(t *testing.T) {
	t.Parallel()
	js, cfg := newServer(t)
	good := jetstream.ConsumerConfig{AckPolicy: jetstream.AckExplicitPolicy, MaxAckPending: -1, MaxDeliver: -1, FilterSubject: "events.>"}
	for _, c := range []struct {
		name  string
		spoil func(*jetstream.ConsumerConfig)
		says  string
	}{
		{"filter", func(c *jetstream.ConsumerConfig) { c.FilterSubject = "events.a" }, "filter_subjects is [events.a], wanted [events.>]"},
		{"ack", func(c *jetstream.ConsumerConfig) { c.AckPolicy = jetstream.AckAllPolicy }, "ack_policy is AckAll, wanted AckExplicit"},
		{"deliver", func(c *jetstream.ConsumerConfig) { c.MaxDeliver = 5 }, "max_deliver is 5, wanted -1"},
		{"pending", func(c *jetstream.ConsumerConfig) { c.MaxAckPending = 1000 }, "max_ack_pending is 1000, wanted -1"},
		{"wait", func(c *jetstream.ConsumerConfig) { c.AckWait = 100 * time.Millisecond }, "ack_wait is 100ms, wanted at least 1s"},
		{"backoff", func(c *jetstream.ConsumerConfig) { c.BackOff = []time.Duration{time.Millisecond} }, "ack_wait is 1ms"},
		{"headers", func(c *jetstream.ConsumerConfig) { c.HeadersOnly = true }, "headers_only is true, wanted false"},
		{"expires", func(c *jetstream.ConsumerConfig) { c.MaxRequestExpires = 100 * time.Millisecond }, "max_expires is 100ms, wanted at least 1s"},
		{"last", func(c *jetstream.ConsumerConfig) { c.DeliverPolicy = jetstream.DeliverLastPerSubjectPolicy }, "deliver_policy is last_per_subject, wanted all"},
		{"replay", func(c *jetstream.ConsumerConfig) { c.ReplayPolicy = jetstream.ReplayOriginalPolicy }, "replay_policy is original, wanted instant"},
	} {
		config := good
		config.Durable = c.name
		c.spoil(&config)
		if _, err := js.CreateConsumer(t.Context(), "EVENTS", config); err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		cfg.Consumer = c.name
		_, err := Setup(t.Context(), js, cfg)
		if !isFault(err) {
			t.Errorf("%s: %v is no fault", c.name, err)
		}
		wantText(t, err, "consumer "+c.name, c.says, "SLUICE_CONSUMER", "delete")
	}
	push := good
	push.Durable, push.DeliverSubject = "push", "somewhere"
	if _, err := js.CreatePushConsumer(t.Context(), "EVENTS", push); err != nil {
		t.Fatal(err)
	}
	cfg.Consumer = "push"
	_, err := Setup(t.Context(), js, cfg)
	wantText(t, err, "push consumer", "SLUICE_CONSUMER")
}

func TestOwnStreamsAreBroughtInLineOrRefused(t *testing.T) {
	t.Parallel()
	js, cfg := newServer(t)
	cfg.LanesMaxBytes *= 2
	off := cfg
	off.Setup = SetupOff
	if actions, err := Setup(t.Context(), js, off); err != nil || actions[2].Did != "differs" {
		t.Errorf("off: %v, %v", actions, err)
	}
	actions, err := Setup(t.Context(), js, cfg)
	if err != nil || actions[2].Did != "updated" || !strings.Contains(actions[2].Detail, "max_bytes 67108864 -> 134217728") {
		t.Errorf("own: %v, %v", actions, err)
	}
	s, err := js.Stream(t.Context(), "SLUICE_LANES")
	if err != nil {
		t.Fatal(err)
	}
	spoiled := s.CachedInfo().Config
	if spoiled.MaxBytes != cfg.LanesMaxBytes || spoiled.Duplicates != time.Minute {
		t.Errorf("after the update: %+v", spoiled)
	}
	spoiled.MaxAge, spoiled.Discard, spoiled.AllowDirect = time.Hour, jetstream.DiscardOld, false
	if _, err := js.UpdateStream(t.Context(), spoiled); err != nil {
		t.Fatal(err)
	}
	_, err = Setup(t.Context(), js, cfg)
	wantText(t, err, "stream SLUICE_LANES", "max_age is 1h0m0s, wanted none", "discard is DiscardOld, wanted DiscardNew", "allow_direct is false", "SLUICE_NAME")
}

func TestMissingObjectsAreFaultsWithRemedies(t *testing.T) {
	t.Parallel()
	cfg := testConfig(startServer(t, serverOptions(t)))
	js := connect(t, cfg)
	cfg.Setup = SetupOwn
	actions, err := Setup(t.Context(), js, cfg)
	wantText(t, err, "there is no stream EVENTS", "create it", "SLUICE_SETUP=all", "SLUICE_STREAM")
	if got, want := dids(actions), "stream EVENTS missing, stream SLUICE_LANES created, stream SLUICE_DLQ created, KV bucket sluice_limits created, KV bucket sluice_state created"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	off := cfg
	off.Setup, off.Name = SetupOff, "other"
	if _, err = js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "EVENTS", Subjects: []string{"events.>"}}); err != nil {
		t.Fatal(err)
	}
	_, err = Setup(t.Context(), js, off)
	wantText(t, err, "no consumer other", "no stream OTHER_LANES", "no stream OTHER_DLQ", "sluice setup")
	if _, err := OpenLanes(t.Context(), js, off); !isFault(err) {
		t.Errorf("OpenLanes: %v, want a fault", err)
	}
}

func TestServerWithoutJetStreamIsAFault(t *testing.T) {
	t.Parallel()
	opts := serverOptions(t)
	opts.JetStream = false
	cfg := testConfig(startServer(t, opts))
	_, err := Setup(t.Context(), connect(t, cfg), cfg)
	wantText(t, err, "NATS runs without JetStream", "-js")
	if n := strings.Count(err.Error(), "without JetStream"); n != 1 {
		t.Errorf("it is said %d times", n)
	}
}

func TestQuotaAndOverlapAreFaultsWithRemedies(t *testing.T) {
	t.Parallel()
	cfg := testConfig(startServer(t, serverOptions(t)))
	js := connect(t, cfg)
	cfg.LanesMaxBytes = 1 << 40
	_, err := Setup(t.Context(), js, cfg)
	wantText(t, err, "SLUICE_LANES_MAX_BYTES", "storage")
	cfg.LanesMaxBytes = 1 << 20
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "GREEDY", Subjects: []string{"third.>"}}); err != nil {
		t.Fatal(err)
	}
	cfg.Name = "third"
	_, err = Setup(t.Context(), js, cfg)
	wantText(t, err, "creating stream THIRD_LANES", "another stream takes these subjects", "SLUICE_NAME")
	cfg.Name, cfg.Replicas = "fourth", 3
	_, err = Setup(t.Context(), js, cfg)
	wantText(t, err, "SLUICE_REPLICAS")
}

func TestOldServersAreRefused(t *testing.T) {
	for version, old := range map[string]bool{
		"2.9.25": true, "2.10.0": false, "2.10": false, "v2.11.1": false, "1.99.0": true, "3.0.0": false, "2.10.0-beta.3": false,
		"": false, "main-abc": false, "2.100.1": false, "2.1.9": true,
	} {
		if err := checkVersion(version); isFault(err) != old {
			t.Errorf("checkVersion(%q) = %v, want old = %v", version, err, old)
		}
	}
}

func TestTwoWorkersMaySetUpAtOnce(t *testing.T) {
	t.Parallel()
	cfg := testConfig(startServer(t, serverOptions(t)))
	js := connect(t, cfg)
	errs := make(chan error)
	for range 8 {
		go func() {
			_, err := Setup(context.Background(), js, cfg)
			errs <- err
		}()
	}
	var all []error
	for range 8 {
		all = append(all, <-errs)
	}
	if err := errors.Join(all...); err != nil {
		t.Error(err)
	}
}
