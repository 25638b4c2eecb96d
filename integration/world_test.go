package integration

import (
	"context"
	"fmt"
	"maps"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"sluice/integration/testenv"
)

// world is a NATS server with a work-queue source, a Redis, a receiver, and whatever workers a drill starts.
type world struct {
	t        *testing.T
	nats     *testenv.NATSServer
	redis    *testenv.RedisServer
	receiver *testenv.ReceiverServer
	js       jetstream.JetStream
	measures bool        // rates and latencies: workers have no race detector
	header   nats.Header // of all events, beside their ids

	mu        sync.Mutex
	published map[string]time.Time // by id, when it was confirmed or about to be
	order     map[string]uint64    // by id, its sequence in the source
	removed   map[string]bool      // by id, whose body was deleted by hand
	producers map[string]jetstream.JetStream
}

// ackWait of the drills' consumer: short, so that what a killed worker held comes back soon.
const ackWait = 3 * time.Second

// beside lets a drill run beside another one: both mostly wait. In full size it has the machine for itself.
func beside(t *testing.T) {
	if !testenv.Soak() {
		t.Parallel()
	}
}

func newWorld(t *testing.T) *world {
	t.Helper()
	if testenv.Soak() {
		// NATS is in the drill's process, where it would be collected with all that drill and receiver note of a million events.
		often, limit := debug.SetGCPercent(400), debug.SetMemoryLimit(3<<30)
		t.Cleanup(func() {
			debug.SetGCPercent(often)
			debug.SetMemoryLimit(limit)
		})
	}
	w := &world{
		t: t, nats: testenv.NATS(t), redis: testenv.Redis(t), receiver: testenv.Receiver(t),
		published: map[string]time.Time{}, order: map[string]uint64{}, removed: map[string]bool{},
		producers: map[string]jetstream.JetStream{},
	}
	js, err := jetstream.New(w.nats.Conn())
	if err != nil {
		t.Fatal(err)
	}
	w.js = js
	w.createSource(0)
	return w
}

// createSource creates the source and its consumer. Its sequences begin with first; 0: as ever.
func (w *world) createSource(first uint64) {
	w.t.Helper()
	_, err := w.js.CreateStream(w.t.Context(), jetstream.StreamConfig{
		Name: "EVENTS", Subjects: []string{"events.>"}, Retention: jetstream.WorkQueuePolicy, AllowDirect: true, FirstSeq: first,
	})
	if err != nil {
		w.t.Fatal(err)
	}
	_, err = w.js.CreateConsumer(w.t.Context(), "EVENTS", jetstream.ConsumerConfig{
		Durable: "sluice", AckPolicy: jetstream.AckExplicitPolicy, AckWait: ackWait, MaxAckPending: -1, MaxDeliver: -1,
		MaxWaiting: 4096, FilterSubjects: []string{"events.>"},
	})
	if err != nil {
		w.t.Fatal(err)
	}
}

// env is the environment of a worker that pushes to the receiver, and whatever else is said as NAME=value without the prefix.
func (w *world) env(env ...string) map[string]string {
	all := map[string]string{
		"SLUICE_NATS_URL": w.nats.URL(), "SLUICE_REDIS_URL": w.redis.URL(), "SLUICE_WEBHOOK_URL": w.receiver.URL(),
	}
	for _, e := range env {
		name, value, _ := strings.Cut(e, "=")
		all["SLUICE_"+name] = value
	}
	return all
}

// worker starts a worker with that of env.
func (w *world) worker(env ...string) *testenv.WorkerProcess {
	w.t.Helper()
	if w.measures {
		return testenv.PlainWorker(w.t, w.env(env...))
	}
	return testenv.Worker(w.t, w.env(env...))
}

func (w *world) workers(n int, env ...string) []*testenv.WorkerProcess {
	w.t.Helper()
	all := make([]*testenv.WorkerProcess, n)
	for i := range all {
		all[i] = w.worker(env...)
	}
	for _, p := range all {
		p.WaitReady(30 * time.Second)
	}
	return all
}

// producer is a connection of the key's own: on a common one, all would wait for the acknowledgements of a flood.
func (w *world) producer(key string) jetstream.JetStream {
	w.mu.Lock()
	defer w.mu.Unlock()
	js := w.producers[key]
	if js == nil {
		conn := w.nats.Dial()
		var err error
		if js, err = jetstream.New(conn, jetstream.WithPublishAsyncMaxPending(1000)); err != nil {
			w.t.Fatal(err)
		}
		w.producers[key] = js
	}
	return js
}

// publish stores n events of key, in order, pausing before each but the first.
func (w *world) publish(key string, n int, pause time.Duration) {
	var futures []jetstream.PubAckFuture
	var ids []string
	js := w.producer(key)
	for i := range n {
		if i > 0 && pause > 0 {
			time.Sleep(pause)
		}
		id := fmt.Sprintf("%s-%06d-%d", key, i, time.Now().UnixNano())
		now := time.Now()
		w.mu.Lock()
		w.published[id] = now
		w.mu.Unlock()
		msg := &nats.Msg{Subject: "events." + key, Data: []byte(strconv.Itoa(i)), Header: nats.Header{nats.MsgIdHdr: {id}}}
		maps.Copy(msg.Header, w.header)
		f, err := js.PublishMsgAsync(msg, jetstream.WithStallWait(10*time.Second))
		if err != nil {
			w.t.Errorf("publishing: %v", err)
			return
		}
		futures, ids = append(futures, f), append(ids, id)
	}
	for i, f := range futures {
		select {
		case ack := <-f.Ok():
			w.mu.Lock()
			w.order[ids[i]] = ack.Sequence
			w.mu.Unlock()
		case err := <-f.Err():
			w.t.Errorf("publishing %s: %v", ids[i], err)
		case <-time.After(20 * time.Second):
			w.t.Errorf("publishing %s: no answer", ids[i])
			return
		}
	}
}

// flood publishes n events of key at a rate, in bursts of a hundredth of a second.
func (w *world) flood(key string, n, perSecond int) {
	start, burst := time.Now(), max(1, perSecond/100)
	for sent := 0; sent < n; sent += burst {
		time.Sleep(time.Until(start.Add(time.Duration(sent) * time.Second / time.Duration(perSecond))))
		w.publish(key, min(burst, n-sent), 0)
	}
}

// ids of all events that were published.
func (w *world) ids() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Collect(maps.Keys(w.published))
}

// conserved fails the test if an event that was confirmed before the look is nowhere.
func (w *world) conserved(when string) {
	w.t.Helper()
	w.mu.Lock()
	confirmed := slices.Collect(maps.Keys(w.order))
	w.mu.Unlock()
	c := testenv.Snapshot(w.t, w.nats, w.receiver, testenv.Streams{})
	if missing := w.lost(c, confirmed); len(missing) > 0 {
		w.t.Errorf("%s: %d of %d events are nowhere (%s), such as %s", when, len(missing), len(confirmed), c, missing[0])
	}
}

// lost are the ids that are nowhere, although nobody deleted them.
func (w *world) lost(c testenv.Conservation, ids []string) []string {
	missing := c.Missing(ids)
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.DeleteFunc(missing, func(id string) bool { return w.removed[id] })
}

// atRest fails the test unless source and lanes are empty and every event was delivered, dead-lettered or deleted by hand.
func (w *world) atRest(dead int) {
	w.t.Helper()
	var c testenv.Conservation
	for range 50 {
		c = testenv.Snapshot(w.t, w.nats, w.receiver, testenv.Streams{})
		if len(c.Source) == 0 && len(c.Lanes) == 0 {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	missing := w.lost(c, w.ids())
	if len(missing) > 0 {
		w.t.Errorf("at rest %d events are nowhere, such as %s", len(missing), missing[0])
	}
	deleted := len(c.Missing(w.ids())) - len(missing)
	if len(c.Source) != 0 || len(c.Lanes) != 0 || len(c.DeadLetters) != dead || len(c.Delivered)+dead+deleted != len(w.ids()) {
		w.t.Errorf("at rest: %s, want %d dead letters and the rest of %d delivered", c, dead, len(w.ids()))
	}
	w.noLaneLeft()
}

// noLaneLeft fails the test if the index still knows of a lane, or a limiter key doesn't expire.
func (w *world) noLaneLeft() {
	w.t.Helper()
	rdb := w.redis.Client()
	deadline := time.Now().Add(8 * time.Second)
	for {
		left := 0
		for _, pattern := range []string{"lane:*", "busy:*", "retry:*", "due:*"} {
			left += len(rdb.Keys(context.Background(), pattern).Val())
		}
		if left == 0 {
			break
		}
		if time.Now().After(deadline) {
			w.t.Errorf("%d keys of lanes are left in Redis", left)
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	for _, key := range rdb.Keys(context.Background(), "ratelimit:*").Val() {
		if rdb.TTL(context.Background(), key).Val() < 0 {
			w.t.Errorf("%s never expires", key)
		}
	}
}

// byKey is the arrivals of each key in order of time.
func byKey(requests []testenv.Request) map[string][]time.Time {
	out := map[string][]time.Time{}
	for _, r := range requests {
		out[r.Key] = append(out[r.Key], r.Arrived)
	}
	return out
}

// bounded fails the test if any key was pushed to faster than its limit. The allowance is what is promised, 20 ms or one
// token's time, and 80 ms more, since the receiver shares the machine with all else.
func (w *world) bounded(rate float64, burst int) {
	w.t.Helper()
	token := time.Duration(float64(time.Second) / rate)
	w.boundedWithin(rate, burst, max(20*time.Millisecond, token)+80*time.Millisecond)
}

func (w *world) boundedWithin(rate float64, burst int, allowance time.Duration) {
	w.t.Helper()
	for key, times := range byKey(w.receiver.Requests()) {
		if x := testenv.BoundExcess(times, rate, burst, allowance); x > 0 {
			w.t.Errorf("key %s got %.2f pushes more than its limit allows", key, x)
		}
	}
}

// latencies of the first attempts of all keys that want chooses.
func (w *world) latencies(want func(key string) bool) []time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []time.Duration
	for _, r := range w.receiver.Requests() {
		if at, ok := w.published[r.ID]; ok && r.Attempt == 1 && want(r.Key) {
			out = append(out, r.Arrived.Sub(at))
		}
	}
	return out
}

// sum adds a metric over workers.
func sum(workers []*testenv.WorkerProcess, name string) float64 {
	total := 0.0
	for _, p := range workers {
		for k, v := range p.Metrics() {
			if k == name || strings.HasPrefix(k, name+"{") {
				total += v
			}
		}
	}
	return total
}

// inversions counts first attempts of key that arrived after a later event of the key had, among those that arrived after
// all were in the lane. Pushes are started in order, but each has a connection of its own, and what follows within
// a moment may overtake on the way: only an event that came later than jitter after its successor counts.
func (w *world) inversions(key string, since time.Time) (inversions, events int) {
	const jitter = 50 * time.Millisecond
	w.mu.Lock()
	defer w.mu.Unlock()
	var orders []uint64
	var times []time.Time
	seen := map[string]bool{} // a push that was cut off by no fault of the receiver's is repeated as the same attempt
	for _, r := range w.receiver.Requests() {
		again := seen[r.ID]
		seen[r.ID] = true
		if r.Key == key && r.Attempt == 1 && !again && r.Arrived.After(since) {
			orders, times = append(orders, w.order[r.ID]), append(times, r.Arrived)
		}
	}
	for i, order := range orders {
		for j := i - 1; j >= 0; j-- {
			if orders[j] > order && times[i].Sub(times[j]) > jitter {
				inversions++
				w.t.Logf("event %d of %s came %s after event %d", order, key, times[i].Sub(times[j]), orders[j])
				break
			}
		}
	}
	return inversions, len(orders)
}
