package verify

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"

	"sluice/integration/testenv"
)

// run is two workers between real servers.
type run struct {
	t       *testing.T
	js      jetstream.JetStream
	workers []*testenv.WorkerProcess
}

// startRun starts two workers as an operator would, with limits of a key and of a tier.
func startRun(t *testing.T) *run {
	t.Helper()
	program, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	servers, receiver := testenv.NATS(t), testenv.Receiver(t)
	receiver.Handle(answer)
	settings := map[string]string{
		"SLUICE_NATS_URL": servers.URL(), "SLUICE_REDIS_URL": testenv.Redis(t).URL(), "SLUICE_WEBHOOK_URL": receiver.URL(),
		"SLUICE_LIMIT": "10/s burst 10", "SLUICE_METRIC_KEYS": "flood,quiet1", "SLUICE_RETRY_BASE": "200ms",
	}
	for _, command := range []string{"setup", "limits set own 5/s burst 5", "limits set tier:gold 100/s", "limits set quiet1 tier:gold"} {
		operator := exec.Command(program, strings.Fields(command)...)
		operator.Env = []string{"SLUICE_NATS_URL=" + servers.URL(), "SLUICE_SETUP=all", "HOME=" + os.Getenv("HOME")}
		if printed, err := operator.CombinedOutput(); err != nil {
			t.Fatalf("sluice %s: %v\n%s", command, err, printed)
		}
	}
	r := &run{t: t, js: servers.JetStream()}
	for range 2 {
		r.workers = append(r.workers, testenv.WorkerProgram(t, program, settings))
	}
	for _, w := range r.workers {
		w.WaitReady(20 * time.Second)
	}
	return r
}

// answer is the receiver's: some keys' pushes fail, for good, at first, or until the end.
func answer(push testenv.Request) testenv.Response {
	switch {
	case push.Key == "rejected":
		return testenv.Response{Status: http.StatusBadRequest}
	case push.Key == "flaky" && push.Attempt == 1:
		return testenv.Response{Status: http.StatusInternalServerError}
	case push.Key == "down":
		return testenv.Response{Status: http.StatusServiceUnavailable}
	}
	return testenv.Response{Delay: 5 * time.Millisecond}
}

// mix is what is published: of each key so many events with this header. Its order is the same in every run.
func mix() []*nats.Msg {
	var all []*nats.Msg
	add := func(key string, n int, header ...string) {
		for range n {
			m := nats.NewMsg("events." + key)
			if len(header) > 0 {
				m.Header.Set(header[0], header[1])
			}
			all = append(all, m)
		}
	}
	for i := range 20 {
		add(fmt.Sprintf("quiet%d", i), 3)
	}
	add("flood", 300)
	add("own", 60)
	add("late", 30, "Sluice-Expires", "300ms")
	add("latest", 30, "Sluice-Collapse", "position")
	add("greedy", 2, "Sluice-Cost", "1000")
	add("rejected", 3)
	add("flaky", 3)
	add("down", 3)
	random := rand.New(rand.NewPCG(1, 2))
	random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

func (r *run) publish() {
	r.t.Helper()
	for i, m := range mix() {
		m.Header.Set(nats.MsgIdHdr, fmt.Sprintf("e%d", i))
		if _, err := r.js.PublishMsg(r.t.Context(), m); err != nil {
			r.t.Fatal(err)
		}
	}
}

// happened are the figures above zero when each part of the mix has come to what it is there for.
var happened = []string{
	`sluice_events_settled_total{outcome="delivered"}`,
	`sluice_events_settled_total{outcome="dead_lettered"}`,
	`sluice_events_settled_total{outcome="expired"}`,
	`sluice_events_settled_total{outcome="collapsed"}`,
	`sluice_event_latency_seconds_count{path="direct"}`,
	`sluice_event_latency_seconds_count{path="held"}`,
	`sluice_event_latency_seconds_count{path="lane"}`,
	`sluice_events_throttled_total{reason="throttled"}`,
	`sluice_push_attempts_total{class="4xx",sink="webhook"}`,
	`sluice_push_attempts_total{class="5xx",sink="webhook"}`,
	`sluice_tokens_remaining_count{tier="gold"}`,
	`sluice_fleet_throttled_events`,
	`sluice_fleet_dead_letters`,
}

// settle waits until all of the mix has happened, and both workers have told of the whole pipeline.
func (r *run) settle() {
	r.t.Helper()
	var lacking []string
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		sum := map[string]float64{}
		for _, w := range r.workers {
			for name, value := range w.Metrics() {
				sum[name] += value
			}
		}
		lacking = nil
		for _, name := range happened {
			if sum[name] == 0 {
				lacking = append(lacking, name)
			}
		}
		if len(lacking) == 0 && sum["sluice_fleet_workers"] == 4 { // two workers tell of two
			return
		}
	}
	r.t.Fatalf("these never happened: %q", lacking)
}

// scrape adds what all workers show to the storage of a bench, as it is now.
func (r *run) scrape(b *bench) (at time.Time) {
	r.t.Helper()
	at = time.Now()
	for i, w := range r.workers {
		for name, value := range w.Metrics() {
			l, err := parser.ParseMetric(name)
			if err != nil {
				r.t.Fatalf("%s: %v", name, err)
			}
			target := labels.NewBuilder(l).Set("namespace", "shop").Set("job", "sluice").Set("instance", fmt.Sprintf("worker-%d:7780", i+1))
			b.memory.add(target.Labels(), at.UnixMilli(), value)
		}
	}
	return at
}
