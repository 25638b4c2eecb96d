package stream

import (
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"sluice/pipeline"
)

// What a worker with SLUICE_SETUP=off must be allowed; the setup is done by another user.
var (
	workerMayPublish = []string{
		"$JS.API.STREAM.INFO.EVENTS", "$JS.API.CONSUMER.INFO.EVENTS.sluice", "$JS.API.CONSUMER.MSG.NEXT.EVENTS.sluice", "$JS.ACK.EVENTS.sluice.>",
		"$JS.API.STREAM.MSG.GET.EVENTS", // DIRECT.GET where the stream allows that: how old the oldest event is
		"$JS.API.STREAM.INFO.SLUICE_LANES", "$JS.API.DIRECT.GET.SLUICE_LANES", "$JS.API.STREAM.MSG.GET.SLUICE_LANES",
		"$JS.API.STREAM.MSG.DELETE.SLUICE_LANES", "$JS.API.CONSUMER.CREATE.SLUICE_LANES.>", "$JS.API.CONSUMER.MSG.NEXT.SLUICE_LANES.>",
		"$JS.API.CONSUMER.DELETE.SLUICE_LANES.>", "$JS.API.CONSUMER.INFO.SLUICE_LANES.>",
		"$JS.API.STREAM.INFO.SLUICE_DLQ",
		"$JS.API.STREAM.INFO.KV_sluice_limits", "$JS.API.CONSUMER.CREATE.KV_sluice_limits.>", "$JS.API.CONSUMER.DELETE.KV_sluice_limits.>",
		"$JS.FC.KV_sluice_limits.>",
		"sluice.lane.>", "sluice.dlq.>", "sluice.cooling", "sluice.worker",
	}
	workerMaySubscribe = []string{"_SLUICE.>", "sluice.cooling", "sluice.worker"}
)

func TestLeastPermissionsOfAWorkerSuffice(t *testing.T) {
	t.Parallel()
	opts := serverOptions(t)
	opts.Users = []*server.User{
		{Username: "admin", Password: "x"},
		{Username: "worker", Password: "x", Permissions: &server.Permissions{
			Publish:   &server.SubjectPermission{Allow: workerMayPublish},
			Subscribe: &server.SubjectPermission{Allow: workerMaySubscribe},
		}},
	}
	cfg := testConfig(startServer(t, opts))
	cfg.User, cfg.Password = "admin", "x"
	admin := connect(t, cfg)
	if _, err := Setup(t.Context(), admin, cfg); err != nil {
		t.Fatal(err)
	}
	publish(t, admin, 3)

	cfg.User, cfg.InboxPrefix, cfg.Setup = "worker", "_SLUICE", SetupOff
	js := connect(t, cfg)
	if _, err := Setup(t.Context(), js, cfg); err != nil {
		t.Fatal(err)
	}
	if n, _, err := (&Source{js: js, cfg: cfg}).Behind(t.Context()); err != nil || n != 3 {
		t.Errorf("behind by %d events, %v", n, err)
	}
	kv, err := admin.KeyValue(t.Context(), "sluice_limits")
	if err != nil {
		t.Fatal(err)
	}
	for _, value := range []string{"2/s", "bad"} {
		if _, err := kv.PutString(t.Context(), "key.k", value); err != nil {
			t.Fatal(err)
		}
	}
	limits := newLimitsRig(t, js, cfg, quickPace)
	limits.has("k", "2/s")
	s, l, dlq := open(t, js, cfg, quick), openLanes(t, js, cfg), openDeadLetters(t, js, cfg)
	stop, err := NewGossip(js.Conn(), cfg).Subscribe(func(string, time.Duration) {})
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	fleet, err := JoinFleet(js.Conn(), cfg, WorkerInfo{ID: "w"})
	if err != nil {
		t.Fatal(err)
	}
	fleet.say()
	eventually(t, "the fleet is heard", func() bool {
		fleet.mu.Lock()
		defer fleet.mu.Unlock()
		return !fleet.since.IsZero()
	})
	d := next(t, s)
	ev := d.Event()
	ev.Key = "k"
	seq := appendEvent(t, l, ev)
	d.Ack()
	next(t, s).HandBack()
	if _, err := l.Read(t.Context(), "k", seq); err != nil {
		t.Error(err)
	}
	if _, err := l.Read(t.Context(), "k", seq+1); !errors.Is(err, pipeline.ErrGone) {
		t.Errorf("got %v, want ErrGone", err)
	}
	if err := l.Each(t.Context(), func(*pipeline.Event, uint64) error { return nil }); err != nil {
		t.Error(err)
	}
	if err := l.Delete(t.Context(), "k", seq); err != nil {
		t.Error(err)
	}
	if err := dlq.Bury(t.Context(), ev, pipeline.Rejected, nil); err != nil {
		t.Error(err)
	}
	drainAll(t, s, 2)
	if err := linkOf(js.Conn()).deniedSince(time.Time{}); err != nil {
		t.Errorf("denied: %v", err)
	}
}
