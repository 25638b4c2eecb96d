package integration

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"sluice/integration/testenv"
)

// flooded is two workers at 10/s, and one key that floods beside others.
type flooded struct {
	*world
	workers       []*testenv.WorkerProcess
	flood         int             // events of the key
	took          time.Duration   // to publish them
	quiet, beside []time.Duration // latencies of the others before the flood and meanwhile
}

func beginFlood(t *testing.T, env ...string) *flooded {
	t.Helper()
	flood, perSecond, keys := 30_000, 10_000, 40
	if testenv.Soak() {
		flood, perSecond, keys = 1_000_000, 30_000, 200
	}
	d := &flooded{world: newWorld(t), flood: flood}
	d.measures = true
	d.workers = d.world.workers(2, append(env, "LIMIT=10/s burst 10")...)
	others := func(name string, took time.Duration) []time.Duration {
		var publishing sync.WaitGroup
		pause := time.Duration(keys) * time.Second / 200
		for i := range keys {
			publishing.Go(func() {
				time.Sleep(pause * time.Duration(i) / time.Duration(keys))
				d.publish(fmt.Sprintf("%s%02d", name, i), int(took/pause), pause)
			})
		}
		publishing.Wait()
		return d.latencies(func(key string) bool { return strings.HasPrefix(key, name) })
	}
	long := time.Duration(flood/perSecond) * time.Second
	d.quiet = others("calm", max(2*time.Second, long/4))
	var flooding sync.WaitGroup
	flooding.Go(func() {
		start := time.Now()
		d.world.flood("flood", flood, perSecond)
		d.took = time.Since(start)
	})
	d.beside = others("loud", long)
	flooding.Wait()
	return d
}

// judge tells the figures and fails the test where a promise isn't kept.
func (d *flooded) judge() {
	d.t.Helper()
	deliveries := sum(d.workers, "sluice_events_received_total") / float64(len(d.ids()))
	quiet, beside := testenv.Percentile(d.quiet, 99), testenv.Percentile(d.beside, 99)
	d.t.Logf("%d events of one key in %s (%.0f/s); %d of others, p50 %s p99 %s, without the flood %s and %s; %.3f deliveries per event",
		d.flood, d.took.Round(time.Millisecond), float64(d.flood)/d.took.Seconds(), len(d.beside),
		testenv.Percentile(d.beside, 50), beside, testenv.Percentile(d.quiet, 50), quiet, deliveries)
	most := 500 * time.Millisecond
	if testenv.Soak() { // the machine is the drill's alone
		most = 100 * time.Millisecond
	}
	if beside > most {
		d.t.Errorf("others' p99 is %s beside the flood, want at most %s", beside, most)
	}
	if deliveries > 1.05 {
		d.t.Errorf("%.3f source deliveries per event, want at most 1.05", deliveries)
	}
	const mib = 1 << 20
	for i, p := range d.workers {
		d.t.Logf("worker %d had at most %d MiB", i, p.PeakMemory()/mib)
		if p.PeakMemory() > 150*mib {
			d.t.Errorf("worker %d had %d MiB, want at most 150", i, p.PeakMemory()/mib)
		}
	}
	d.t.Logf("Redis had at most %s; NATS with receiver and drill %d MiB", d.redis.PeakMemory(), testenv.PeakMemory()/mib)
	d.bounded(10, 10)
}

// One key floods far faster than its limit: the events that can't go are parked as fast as they come, and the others
// notice nothing.
func TestFloodIsParkedAsFastAsItComes(t *testing.T) {
	d := beginFlood(t, "MAX_WAIT=0")
	d.conserved("after the flood")
	d.judge()
}

// As much of a flood is kept as the limit lets pass within the longest wait; the rest is dead-lettered for this reason.
func TestFloodBeyondTheLongestWaitIsDeadLettered(t *testing.T) {
	if !testenv.Soak() {
		t.Skip("long: SLUICE_SOAK=1 runs it")
	}
	const hold, burst = 3600 * 10, 10 // of the default wait
	d := beginFlood(t)
	d.parked(30 * time.Second)
	d.judge()
	before := d.delivered("flood")
	c := testenv.Snapshot(t, d.nats, d.receiver, testenv.Streams{})
	after := d.delivered("flood")
	if missing := c.Missing(d.ids()); len(missing) > 0 {
		t.Errorf("%d events are nowhere (%s), such as %s", len(missing), c, missing[0])
	}
	stream, err := d.js.Stream(t.Context(), "SLUICE_DLQ")
	if err != nil {
		t.Fatal(err)
	}
	dead := int(stream.CachedInfo().State.Msgs)
	kept := d.flood - dead
	t.Logf("%d dead-lettered, %d wait, %d to %d delivered: %d kept, the limit lets %d pass within the longest wait", dead, len(c.Lanes), before,
		after, kept, hold)
	if dead != len(c.DeadLetters) || kept < hold || kept > hold+after+burst {
		t.Errorf("%d events were kept and %d dead-lettered, want %d and what was delivered meanwhile", kept, dead, hold)
	}
	info, err := stream.Info(t.Context(), jetstream.WithSubjectFilter("sluice.dlq.max_wait.flood"))
	if err != nil {
		t.Fatal(err)
	}
	if n := int(info.State.Subjects["sluice.dlq.max_wait.flood"]); n != dead {
		t.Errorf("%d of %d dead letters have the reason max_wait", n, dead)
	}
}

// delivered counts the events of a key that were delivered so far.
func (w *world) delivered(key string) (n int) {
	for id := range w.receiver.Delivered() {
		if strings.HasPrefix(id, key+"-") {
			n++
		}
	}
	return n
}
