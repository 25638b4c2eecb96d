package integration

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"sluice/integration/testenv"
)

// command runs the binary to its end, with env (NAME=value, without the prefix) and nothing else.
func command(t *testing.T, env []string, stdin string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, testenv.Binary(t), args...)
	cmd.Env = []string{}
	for _, e := range env {
		cmd.Env = append(cmd.Env, "SLUICE_"+e)
	}
	var out, err bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &err
	if e := cmd.Run(); e != nil {
		if exit, ok := errors.AsType[*exec.ExitError](e); !ok || exit.ExitCode() < 0 {
			t.Fatalf("sluice %s: %v\n%s", strings.Join(args, " "), e, err.String())
		}
	}
	if strings.Contains(err.String(), "goroutine ") {
		t.Errorf("sluice %s printed a stack trace:\n%s", strings.Join(args, " "), err.String())
	}
	return cmd.ProcessState.ExitCode(), out.String(), err.String()
}

// closedAddr is an address that nothing listens on.
func closedAddr(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	return ln.Addr().String()
}

func TestWorkerWithNothingRunningSaysWhatItCannotReachAndKeepsTrying(t *testing.T) {
	nats, redis := closedAddr(t), closedAddr(t)
	w := testenv.Worker(t, map[string]string{
		"SLUICE_NATS_URL": "nats://" + nats, "SLUICE_REDIS_URL": "redis://" + redis, "SLUICE_SINK": "log",
	})
	deadline := time.Now().Add(10 * time.Second)
	for _, want := range []string{nats, "SLUICE_NATS_URL", redis, "SLUICE_REDIS_URL", "trying again"} {
		for !strings.Contains(w.Output(), want) {
			if time.Now().After(deadline) {
				t.Fatalf("%q isn't in what it says:\n%s", want, w.Output())
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
	if status, _ := w.Get("/healthz"); status != 200 {
		t.Errorf("/healthz = %d, want 200: it is alive", status)
	}
	if status, body := w.Get("/readyz"); status != 503 || !strings.Contains(body, "not connected") {
		t.Errorf("/readyz = %d %s, want 503", status, body)
	}
	time.Sleep(time.Second) // more tries, told once
	if n := strings.Count(w.Output(), "SLUICE_REDIS_URL"); n != 1 {
		t.Errorf("told %d times:\n%s", n, w.Output())
	}
	if code, took := w.Stop(); code != 0 || took > 5*time.Second {
		t.Errorf("stopped with %d after %s", code, took)
	}
}

func TestBadSettingsAreAllToldInOneRun(t *testing.T) {
	code, _, stderr := command(t, []string{
		"LIMIT=10/fortnight", "KEY=subject:0", "NATS_URL=http://x", "REDIS_URL=http://h:6379", "CONCURRENCY=0", "MAX_WAIT=soon",
		"LIMTI=5/s", "WEBHOOK_SECRETS=hunter2", "PORT_7780_TCP=tcp://10.0.0.1:7780", "SERVICE_HOST=10.0.0.1",
	}, "", "worker")
	if code != 2 {
		t.Errorf("exit code %d, want 2", code)
	}
	for _, want := range []string{
		"SLUICE_LIMIT", "fortnight", "SLUICE_KEY", "SLUICE_NATS_URL", "SLUICE_REDIS_URL", "SLUICE_CONCURRENCY", "SLUICE_MAX_WAIT", "soon",
		"SLUICE_LIMTI", "SLUICE_WEBHOOK_URL", "SLUICE_WEBHOOK_SECRETS",
	} {
		if !strings.Contains(stderr, want) {
			t.Errorf("%q isn't told:\n%s", want, stderr)
		}
	}
	for _, never := range []string{"hunter2", "SERVICE_HOST", "PORT_7780"} {
		if strings.Contains(stderr, never) {
			t.Errorf("%q is told:\n%s", never, stderr)
		}
	}
}

func TestMissingStreamIsAClearEndAndSetupMendsIt(t *testing.T) {
	nats, redis := testenv.NATS(t), testenv.Redis(t)
	env := []string{"NATS_URL=" + nats.URL(), "REDIS_URL=" + redis.URL(), "SINK=log", "ADMIN_ADDR=127.0.0.1:0"}
	code, _, stderr := command(t, env, "", "worker")
	if code != 1 || !strings.Contains(stderr, "there is no stream EVENTS") || !strings.Contains(stderr, "SLUICE_SETUP=all") {
		t.Errorf("exit code %d, %s", code, stderr)
	}
	for i := range 2 {
		code, stdout, stderr := command(t, []string{"NATS_URL=" + nats.URL(), "SETUP=all"}, "", "setup")
		if created := strings.Contains(stdout, "created"); code != 0 || strings.Count(stdout, "\n") != 6 || created != (i == 0) {
			t.Errorf("setup, time %d: exit code %d, want six lines, with something created the first time only:\n%s%s", i+1, code, stdout, stderr)
		}
	}
}

// An NDJSON file goes through publish, the stream, the limiter and out to the receiver, shaped.
func TestFileOfEventsArrivesShaped(t *testing.T) {
	beside(t)
	nats, redis, receiver := testenv.NATS(t), testenv.Redis(t), testenv.Receiver(t)
	env := []string{"NATS_URL=" + nats.URL()}
	if code, _, stderr := command(t, append(env, "SETUP=all"), "", "setup"); code != 0 {
		t.Fatal(stderr)
	}
	w := testenv.Worker(t, map[string]string{
		"SLUICE_NATS_URL": nats.URL(), "SLUICE_REDIS_URL": redis.URL(), "SLUICE_WEBHOOK_URL": receiver.URL(), "SLUICE_LIMIT": "20/s burst 10",
	})
	w.WaitReady(30 * time.Second)
	var lines strings.Builder
	for i := range 60 {
		fmt.Fprintf(&lines, "{\"key\": \"alice\", \"id\": \"a-%d\", \"data\": {\"n\": %d}}\n", i, i)
	}
	lines.WriteString("{\"key\": \"bob\", \"id\": \"b-1\", \"data\": \"hello\"}\n{\"nonsense\": 1}\n")
	code, stdout, stderr := command(t, env, lines.String(), "publish", "-f", "-")
	if code != 1 || !strings.Contains(stdout, "published 61 events") || !strings.Contains(stderr, "62") {
		t.Errorf("publish: exit code %d, %s%s, want 61 events and the bad line 62 told", code, stdout, stderr)
	}
	receiver.WaitForDelivered(61, 20*time.Second)
	times := byKey(receiver.Requests())["alice"]
	if x := testenv.BoundExcess(times, 20, 10, 100*time.Millisecond); x > 0 {
		t.Errorf("alice got %.2f pushes more than the limit allows", x)
	}
	if used := testenv.Utilisation(times, 20, 10); used < 0.9 {
		t.Errorf("alice got %.0f %% of the rate", 100*used)
	}
}

func TestSecondSignalEndsAtOnce(t *testing.T) {
	w := newWorld(t)
	w.receiver.Handle(func(testenv.Request) testenv.Response { return testenv.Response{Delay: 20 * time.Second} })
	p := w.workers(1, "LIMIT=10/s")[0]
	w.publish("k", 1, 0)
	w.receiver.WaitFor(1, 10*time.Second)
	p.Signal(syscall.SIGTERM)
	time.Sleep(300 * time.Millisecond)
	start := time.Now()
	p.Signal(syscall.SIGTERM)
	if code := p.Wait(10 * time.Second); code != 1 || time.Since(start) > 5*time.Second {
		t.Errorf("exit code %d after %s, want 1 at once", code, time.Since(start))
	}
	w.receiver.Stop()
}

// The servers go away and come back while it works.
func TestServersThatRestartLoseNothing(t *testing.T) {
	beside(t)
	w := newWorld(t)
	workers := w.workers(2, "LIMIT=100/s burst 20")
	restart := func(name string, fn func()) {
		loaded := make(chan struct{})
		go func() {
			defer close(loaded)
			w.load(5, 60, 300*time.Millisecond)
		}()
		<-loaded
		fn()
		w.conserved("after the restart of " + name)
	}
	restart("Redis, empty", func() { w.redis.Kill(); time.Sleep(300 * time.Millisecond); w.redis.Start() })
	restart("NATS", func() { w.nats.Restart() })
	w.receiver.WaitForDelivered(600, 40*time.Second)
	w.atRest(0)
	w.bounded(100, 20)
	t.Logf("%d duplicates, %v rebuilds", w.duplicates(), sum(workers, "sluice_lane_rebuilds_total"))
}

// A consumer that somebody made otherwise is not changed, and said to be in the way.
func TestForeignConsumerIsLeftAlone(t *testing.T) {
	nats, redis := testenv.NATS(t), testenv.Redis(t)
	js := nats.JetStream()
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "EVENTS", Subjects: []string{"events.>"}}); err != nil {
		t.Fatal(err)
	}
	want, err := js.CreateConsumer(t.Context(), "EVENTS", jetstream.ConsumerConfig{
		Durable: "sluice", AckPolicy: jetstream.AckExplicitPolicy, MaxDeliver: 3, FilterSubject: "events.a",
	})
	if err != nil {
		t.Fatal(err)
	}
	code, _, stderr := command(t, []string{"NATS_URL=" + nats.URL(), "REDIS_URL=" + redis.URL(), "SINK=log", "ADMIN_ADDR=127.0.0.1:0"}, "", "worker")
	for _, s := range []string{"max_deliver", "events.a", "SLUICE_CONSUMER"} {
		if !strings.Contains(stderr, s) {
			t.Errorf("%q isn't told: %s", s, stderr)
		}
	}
	if code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
	got, err := js.Consumer(t.Context(), "EVENTS", "sluice")
	if err != nil || got.CachedInfo().Config.MaxDeliver != 3 || !got.CachedInfo().Created.Equal(want.CachedInfo().Created) {
		t.Errorf("the consumer was changed: %+v, %v", got.CachedInfo().Config, err)
	}
}
