package integration

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"sluice/integration/testenv"
)

// Lanes and dead letters are full: events stay in the source and go on by themselves, and none is lost.
func TestFullStreamsLoseNothing(t *testing.T) {
	t.Parallel()
	const keys, rate, quota = 10, 10, 1 << 20
	n := 24
	if testenv.Soak() {
		n = 400
	}
	w := newWorld(t)
	workers := w.workers(2, fmt.Sprintf("LIMIT=%d/s burst 1", rate), fmt.Sprintf("LANES_MAX_BYTES=%d", quota), fmt.Sprintf("DLQ_MAX_BYTES=%d", quota))
	var publishing sync.WaitGroup
	for i := range keys {
		publishing.Go(func() { w.publishLarge(fmt.Sprintf("k%02d", i), n, 32<<10) })
	}
	publishing.Wait()
	time.Sleep(500 * time.Millisecond)
	w.conserved("while all is full")
	c := testenv.Snapshot(t, w.nats, w.receiver, testenv.Streams{})
	if len(c.Source) == 0 || len(c.Lanes) == 0 || len(c.DeadLetters) == 0 {
		t.Errorf("%s, want some in each", c)
	}
	deadline := time.Now().Add(time.Duration(n/rate+20) * time.Second)
	for len(c.Source)+len(c.Lanes) > 0 && time.Now().Before(deadline) {
		time.Sleep(100 * time.Millisecond)
		c = testenv.Snapshot(t, w.nats, w.receiver, testenv.Streams{})
	}
	dead := len(c.DeadLetters)
	w.atRest(dead)
	w.bounded(rate, 1)
	for _, p := range workers {
		out := p.Output()
		for _, variable := range []string{"raise SLUICE_LANES_MAX_BYTES", "raise SLUICE_DLQ_MAX_BYTES"} {
			if !strings.Contains(out, variable) {
				t.Errorf("%q isn't said:\n%s", variable, out)
			}
		}
		if lines := strings.Count(out, "\n"); lines > 60+n/2 {
			t.Errorf("%d lines were logged", lines)
		}
	}
	t.Logf("%d events: %d dead-lettered for want of room, %v source deliveries", keys*n, dead, sum(workers, "sluice_events_received_total"))
	if selected, replayed := w.replay("--reason", "lanes_full", "--rate", "40/s"); selected != dead || replayed != dead {
		t.Errorf("%d of %d replayed, want all %d", replayed, selected, dead)
	}
	w.receiver.WaitForDelivered(keys*n, 20*time.Second)
	w.atRest(0)
}

// publishLarge is publish with data of that size.
func (w *world) publishLarge(key string, n, size int) {
	data := []byte(strings.Repeat("x", size))
	for i := range n {
		id := fmt.Sprintf("%s-%06d", key, i)
		w.mu.Lock()
		w.published[id] = time.Now()
		w.mu.Unlock()
		msg := &nats.Msg{Subject: "events." + key, Data: data, Header: nats.Header{nats.MsgIdHdr: {id}}}
		ack, err := w.js.PublishMsg(w.t.Context(), msg, jetstream.WithRetryAttempts(3))
		if err != nil {
			w.t.Errorf("publishing %s: %v", id, err)
			return
		}
		w.mu.Lock()
		w.order[id] = ack.Sequence
		w.mu.Unlock()
	}
}
