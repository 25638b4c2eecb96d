package integration

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"sluice/integration/testenv"
)

// Events that go at once and events that wait, by a worker that may do in NATS and Redis only what deploy/acl permits.
func TestWorkerNeedsNoMoreThanTheLeastRights(t *testing.T) {
	t.Parallel()
	acl, err := filepath.Abs("../deploy/acl")
	if err != nil {
		t.Fatal(err)
	}
	rights, err := server.ProcessConfigFile(filepath.Join(acl, "nats.conf"))
	if err != nil {
		t.Fatal(err)
	}
	ns, err := server.NewServer(&server.Options{
		Users: rights.Users, Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: t.TempDir(),
		JetStreamMaxStore: 64 << 30, NoSigs: true, NoLog: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	ns.Start()
	t.Cleanup(func() {
		ns.Shutdown()
		ns.WaitForShutdown()
	})
	if !ns.ReadyForConnections(20 * time.Second) {
		t.Fatal("the NATS server doesn't come up")
	}
	redis, receiver := testenv.Redis(t, "--include", filepath.Join(acl, "redis.acl")), testenv.Receiver(t)
	const password = "CHANGE-ME"
	operator := []string{"NATS_URL=" + ns.ClientURL(), "NATS_USER=sluice-operator", "NATS_PASSWORD=" + password, "NATS_INBOX_PREFIX=_SLUICE_OPERATOR"}
	if code, _, said := command(t, append(operator, "SETUP=all"), "", "setup"); code != 0 {
		t.Fatal(said)
	}
	worker := testenv.Worker(t, map[string]string{
		"SLUICE_NATS_URL": ns.ClientURL(), "SLUICE_NATS_USER": "sluice", "SLUICE_NATS_PASSWORD": password,
		"SLUICE_NATS_INBOX_PREFIX": "_SLUICE", "SLUICE_SETUP": "off",
		"SLUICE_REDIS_URL": redis.URL(), "SLUICE_REDIS_USERNAME": "sluice", "SLUICE_REDIS_PASSWORD": password,
		"SLUICE_WEBHOOK_URL": receiver.URL(), "SLUICE_LIMIT": "5/s burst 2",
	})
	worker.WaitReady(30 * time.Second)

	nc, err := nats.Connect(ns.ClientURL(), nats.UserInfo("producer", password))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	const events = 12
	for i := range events {
		if _, err := js.Publish(t.Context(), "events.alice", fmt.Append(nil, i)); err != nil {
			t.Fatal(err)
		}
	}
	receiver.WaitForDelivered(events, 20*time.Second)
	if log := worker.Output(); strings.Contains(strings.ToLower(log), "permission") || strings.Contains(log, "NOPERM") {
		t.Errorf("a right is missing:\n%s", log)
	}
}
