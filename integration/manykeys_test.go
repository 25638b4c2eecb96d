package integration

import (
	"fmt"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"sluice/integration/testenv"
)

// Many keys with a few events each, many more than may go: every key gets its rate, and no more. Their first events are published
// at once or, as those of many users are, evenly spread over the time of one token; the others at once. What is still in its lane
// when the source is empty leaves it in order; of the long drills that is nothing.
func TestManyKeysGetTheirRateAtOnce(t *testing.T) {
	drills := []struct {
		keys, each int
		limit      string
		rate       float64
		spread     time.Duration
		use        float64 // of its rate that nearly every key gets
		long       bool
	}{
		{300, 5, "1/s burst 1", 1, 0, 0.7, false}, // beside other drills
		{10_000, 30, "1/s burst 1", 1, 0, 0.97, true},
		{100_000, 3, "6/min burst 1", 0.1, 10 * time.Second, 0.97, true},
	}
	for _, drill := range drills {
		t.Run(fmt.Sprintf("%d keys x %d at %s", drill.keys, drill.each, drill.limit), func(t *testing.T) {
			if drill.long && !testenv.Soak() {
				t.Skip("long: SLUICE_SOAK=1 runs it")
			}
			w := newWorld(t)
			w.measures = true
			workers := w.workers(2, "LIMIT="+drill.limit)
			before, began := ownCPU(t), time.Now()
			w.publishRound(drill.keys, drill.each, drill.spread)
			published := time.Since(began)
			w.parked(3 * time.Minute)
			parked := time.Now()
			w.receiver.WaitForDelivered(drill.keys*drill.each, 3*time.Minute)
			requests := w.receiver.Requests()
			begin, end := requests[0].Arrived, requests[len(requests)-1].Arrived
			ideal := drill.spread + time.Duration(float64(drill.each-1)/drill.rate*float64(time.Second))
			t.Logf("published in %s, parked after %s; the last push came %s after the first, where %s is ideal", published.Round(time.Millisecond),
				parked.Sub(began).Round(time.Millisecond), end.Sub(begin).Round(time.Millisecond), ideal)
			w.atRest(0)
			if d := w.duplicates(); d > 0 || len(requests) != len(w.ids()) {
				t.Errorf("%d requests for %d events, %d delivered twice", len(requests), len(w.ids()), d)
			}
			w.bounded(drill.rate, 1)
			w.used(drill.rate, drill.use)
			if !drill.long {
				w.inOrder(parked, drill.keys)
			}
			w.cost(workers, before)
		})
	}
}

// cost tells what the drill took, this process from a moment on at which it had used so much.
func (w *world) cost(workers []*testenv.WorkerProcess, before time.Duration) {
	w.t.Helper()
	each := func(used time.Duration) time.Duration {
		return (used / time.Duration(len(w.ids()))).Round(time.Microsecond)
	}
	theirs := time.Duration(sum(workers, "process_cpu_seconds_total") * float64(time.Second))
	w.t.Logf("CPU per event: workers %s, Redis %s, NATS with receiver and drill %s; Redis had at most %s",
		each(theirs), each(w.redis.CPU()), each(ownCPU(w.t)-before), w.redis.PeakMemory())
	w.t.Logf("%v tokens came too late, %v source deliveries, %v leases", sum(workers, "sluice_late_tokens_total"),
		sum(workers, "sluice_events_received_total"), sum(workers, "sluice_leases_total"))
}

// ownCPU is the processor time that this process has used.
func ownCPU(t *testing.T) time.Duration {
	t.Helper()
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		t.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// publishRound stores the events of many keys as fast as it can, but for the first of each: these are spread over that time.
func (w *world) publishRound(keys, each int, spread time.Duration) {
	w.t.Helper()
	js, err := jetstream.New(w.nats.Dial(), jetstream.WithPublishAsyncMaxPending(4000))
	if err != nil {
		w.t.Fatal(err)
	}
	futures := make([]jetstream.PubAckFuture, 0, keys*each)
	begun := time.Now()
	for i := range each {
		for k := range keys {
			if i == 0 {
				time.Sleep(time.Until(begun.Add(spread * time.Duration(k) / time.Duration(keys))))
			}
			id := fmt.Sprintf("k%06d-%06d", k, i)
			w.published[id] = time.Now()
			msg := &nats.Msg{Subject: fmt.Sprintf("events.k%06d", k), Data: []byte(strconv.Itoa(i)), Header: nats.Header{nats.MsgIdHdr: {id}}}
			f, err := js.PublishMsgAsync(msg, jetstream.WithStallWait(time.Minute))
			if err != nil {
				w.t.Fatalf("publishing: %v", err)
			}
			futures = append(futures, f)
		}
	}
	for _, f := range futures {
		select {
		case ack := <-f.Ok():
			w.order[f.Msg().Header.Get(nats.MsgIdHdr)] = ack.Sequence
		case err := <-f.Err():
			w.t.Fatalf("publishing: %v", err)
		}
	}
}

// used fails the test if one key in a hundred got less than that part of its rate.
func (w *world) used(rate, least float64) {
	w.t.Helper()
	var all []float64
	for _, times := range byKey(w.receiver.Requests()) {
		all = append(all, testenv.Utilisation(times, rate, 1))
	}
	slices.Sort(all)
	low := testenv.Percentile(all, 1)
	w.t.Logf("of their rates keys used %.2f %% at least, one in a hundred less than %.2f %%, half of them less than %.2f %%", 100*all[0],
		100*low, 100*testenv.Percentile(all, 50))
	if low < least {
		w.t.Errorf("one key in a hundred got %.2f %% of its rate, want %.0f %%", 100*low, 100*least)
	}
}

// inOrder fails the test if an event of any key came after a later one, of those that came after all were in the lanes; or if these
// were fewer than that.
func (w *world) inOrder(since time.Time, least int) {
	w.t.Helper()
	last, wrong, n := map[string]uint64{}, 0, 0
	for _, r := range w.receiver.Requests() {
		if !r.Arrived.After(since) {
			continue
		}
		n++
		if w.order[r.ID] < last[r.Key] {
			wrong++
		}
		last[r.Key] = max(last[r.Key], w.order[r.ID])
	}
	w.t.Logf("%d events came after all were parked, %d of them after a later one of their key", n, wrong)
	if n < least {
		w.t.Errorf("want at least %d", least)
	}
	if wrong > 0 {
		w.t.Error("what waits in a lane has to leave it in order")
	}
}
