package stream

import (
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"sluice/pipeline"
)

// rights is the file that operators are given. A worker runs with SLUICE_SETUP=off; the setup is done by another user.
const rights = "../../deploy/acl/nats.conf"

func TestLeastPermissionsOfAWorkerSuffice(t *testing.T) {
	t.Parallel()
	opts := serverOptions(t)
	given, err := server.ProcessConfigFile(rights)
	if err != nil {
		t.Fatal(err)
	}
	opts.Users = given.Users
	cfg := testConfig(startServer(t, opts))
	cfg.User, cfg.Password, cfg.InboxPrefix = "sluice-operator", "CHANGE-ME", "_SLUICE_OPERATOR"
	admin := connect(t, cfg)
	if _, err := Setup(t.Context(), admin, cfg); err != nil {
		t.Fatal(err)
	}
	publish(t, admin, 3)

	cfg.User, cfg.InboxPrefix, cfg.Setup = "sluice", "_SLUICE", SetupOff
	js := connect(t, cfg)
	if _, err := Setup(t.Context(), js, cfg); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the consumer to be behind by 3 events", func() bool { // the server counts a moment after it has stored
		n, _, err := (&Source{js: js, cfg: cfg}).Behind(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return n == 3
	})
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
	if _, err := readLane(t, l, "k", seq); err != nil {
		t.Error(err)
	}
	if _, err := readLane(t, l, "k", seq+1); !errors.Is(err, pipeline.ErrGone) {
		t.Errorf("got %v, want ErrGone", err)
	}
	if err := l.Each(t.Context(), func(*pipeline.Event, uint64) error { return nil }); err != nil {
		t.Error(err)
	}
	if err := deleteLane(t, l, seq); err != nil {
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
