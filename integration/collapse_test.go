package integration

import (
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"sluice/integration/testenv"
)

// Two workers, a key that waits, and far more events of two names than its limit lets pass: the newest of each name comes,
// and nothing is left of the others. At full size one worker is killed meanwhile.
func TestOnlyTheNewestOfANameIsDelivered(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	workers := w.workers(2, "LIMIT=2/s burst 1", "KEY_CONCURRENCY=2")
	const n = 100
	publish := func(id, name string) {
		msg := &nats.Msg{Subject: "events.k", Header: nats.Header{nats.MsgIdHdr: {id}, "Sluice-Collapse": {name}}}
		if _, err := w.js.PublishMsg(t.Context(), msg); err != nil {
			t.Fatal(err)
		}
	}
	for i := range n {
		publish(fmt.Sprint("position-", i), "position")
		publish(fmt.Sprint("mood-", i), "mood")
		if i == n/2 && testenv.Soak() {
			workers[0].Kill()
		}
	}
	newest := []string{fmt.Sprint("position-", n-1), fmt.Sprint("mood-", n-1)}
	delivered := map[string]int{}
	for end := time.Now().Add(20 * time.Second); delivered[newest[0]] == 0 || delivered[newest[1]] == 0; time.Sleep(20 * time.Millisecond) {
		if delivered = w.receiver.Delivered(); time.Now().After(end) {
			t.Fatalf("delivered %v, want the newest of each name among them", delivered)
		}
	}
	var c testenv.Conservation
	for range 80 {
		if c = testenv.Snapshot(t, w.nats, w.receiver, testenv.Streams{}); len(c.Source)+len(c.Lanes) == 0 {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	if len(c.Source)+len(c.Lanes)+len(c.DeadLetters) > 0 {
		t.Errorf("at rest: %s, want nothing but what was delivered", c)
	}
	w.noLaneLeft()
	if left := w.redis.Client().Keys(t.Context(), "collapse:*").Val(); len(left) > 0 {
		t.Errorf("names are left: %v", left)
	}
	if len(delivered) > 10 {
		t.Errorf("%d of %d events delivered, want few", len(delivered), 2*n)
	}
	t.Logf("%d of %d events delivered", len(delivered), 2*n)
	if testenv.Soak() {
		return
	}
	if got := sum(workers, `sluice_events_settled_total{outcome="collapsed"}`); int(got)+len(delivered) != 2*n {
		t.Errorf("%v collapsed and %d delivered of %d", got, len(delivered), 2*n)
	}
}
