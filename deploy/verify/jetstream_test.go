package verify

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"sluice/integration/testenv"
	"sluice/pipeline/stream"
)

// word decodes a word such as "workqueue" as JetStream's own JSON has it.
func word(t *testing.T, text string, into json.Unmarshaler) {
	t.Helper()
	if err := into.UnmarshalJSON([]byte(`"` + text + `"`)); err != nil && text != "" {
		t.Errorf("%q: %v", text, err)
	}
}

func interval(t *testing.T, text string) time.Duration {
	t.Helper()
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Error(err)
	}
	return d
}

// create makes what NACK would make of the resources; a single server has no replicas.
func (c *cluster) create(t *testing.T, js jetstream.JetStream) {
	t.Helper()
	for _, s := range c.streams {
		cfg := jetstream.StreamConfig{
			Name: s.Spec.Name, Subjects: s.Spec.Subjects, MaxBytes: -1, Replicas: 1,
			Duplicates: interval(t, s.Spec.DuplicateWindow), AllowDirect: s.Spec.AllowDirect,
		}
		if s.Spec.MaxBytes != nil {
			cfg.MaxBytes = *s.Spec.MaxBytes
		}
		word(t, s.Spec.Retention, &cfg.Retention)
		word(t, s.Spec.Storage, &cfg.Storage)
		word(t, s.Spec.Discard, &cfg.Discard)
		if _, err := js.CreateStream(t.Context(), cfg); err != nil {
			t.Errorf("stream %s: %v", s.Spec.Name, err)
		}
	}
	for _, s := range c.consumers {
		cfg := jetstream.ConsumerConfig{
			Durable: s.Spec.DurableName, AckWait: interval(t, s.Spec.AckWait), MaxDeliver: s.Spec.MaxDeliver,
			MaxAckPending: s.Spec.MaxAckPending, MaxWaiting: s.Spec.MaxWaiting, FilterSubjects: s.Spec.FilterSubjects,
		}
		word(t, s.Spec.DeliverPolicy, &cfg.DeliverPolicy)
		word(t, s.Spec.AckPolicy, &cfg.AckPolicy)
		if _, err := js.CreateConsumer(t.Context(), s.Spec.StreamName, cfg); err != nil {
			t.Errorf("consumer %s: %v", s.Spec.DurableName, err)
		}
	}
	for _, s := range c.buckets {
		cfg := jetstream.KeyValueConfig{Bucket: s.Spec.Bucket, History: s.Spec.History, MaxValueSize: s.Spec.MaxValueSize, Replicas: 1}
		word(t, s.Spec.Storage, &cfg.Storage)
		if _, err := js.CreateKeyValue(t.Context(), cfg); err != nil {
			t.Errorf("bucket %s: %v", s.Spec.Bucket, err)
		}
	}
}

// With SLUICE_SETUP=off a worker looks at what is there; there must be nothing that it would have made otherwise.
func TestResourcesOfNACKAreAsAWorkerWantsThem(t *testing.T) {
	t.Parallel()
	c := render(t, "overlays/production")
	js := testenv.NATS(t).JetStream()
	c.create(t, js)
	gib := func(name string) (n int64) {
		if _, err := fmt.Sscanf(c.settings.Data["SLUICE_"+name], "%dGiB", &n); err != nil {
			t.Error(err)
		}
		return n << 30
	}
	actions, err := stream.Setup(t.Context(), js, stream.Config{
		Name: "sluice", Stream: "EVENTS", Subjects: []string{"events.>"}, Setup: stream.SetupOff, Replicas: 1,
		LanesMaxBytes: gib("LANES_MAX_BYTES"), DLQMaxBytes: gib("DLQ_MAX_BYTES"),
	})
	if err != nil {
		t.Error(err)
	}
	if len(actions) < 4 {
		t.Errorf("only %v were looked at", actions)
	}
	for _, a := range actions {
		if a.Did != "exists" {
			t.Errorf("%s: %s %s", a.Object, a.Did, a.Detail)
		}
	}
	if mode := c.settings.Data["SLUICE_SETUP"]; mode != "off" {
		t.Errorf("SLUICE_SETUP=%s beside a controller that tends the streams", mode)
	}
	replicas := c.settings.Data["SLUICE_REPLICAS"]
	for _, s := range c.streams {
		if fmt.Sprint(s.Spec.Replicas) != replicas || !s.Spec.PreventDelete {
			t.Errorf("stream %s has %d replicas, SLUICE_REPLICAS is %s; kept on deletion: %t", s.Spec.Name, s.Spec.Replicas, replicas, s.Spec.PreventDelete)
		}
	}
	for _, s := range c.buckets {
		if fmt.Sprint(s.Spec.Replicas) != replicas || s.Spec.Bucket != "sluice_limits" && s.Spec.Bucket != "sluice_state" {
			t.Errorf("bucket %s has %d replicas, SLUICE_REPLICAS is %s", s.Spec.Bucket, s.Spec.Replicas, replicas)
		}
	}
}
