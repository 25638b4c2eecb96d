package integration

import (
	"fmt"
	"testing"
	"time"
)

// A source that mirrors another, or was restored, may have sequences that a double doesn't hold.
func TestSourceWithLargeSequencesIsDeliveredInOrder(t *testing.T) {
	beside(t)
	for _, c := range []struct {
		first    uint64
		together int
	}{
		{9007199254740993, 1}, // 2^53 + 1
		{1_764_460_800_000_000_001, 0},
	} {
		t.Run(fmt.Sprintf("from %d, %d together", c.first, c.together), func(t *testing.T) {
			w := newWorld(t)
			if err := w.js.DeleteStream(t.Context(), "EVENTS"); err != nil {
				t.Fatal(err)
			}
			w.createSource(c.first)
			w.publish("alice", 30, 0)
			w.workers(2, fmt.Sprintf("KEY_CONCURRENCY=%d", c.together), "LIMIT=20/s burst 1")
			w.receiver.WaitForDelivered(30, 10*time.Second)
			w.atRest(0)
			if list := w.outOfOrder("alice"); c.together == 1 && len(list) > 0 {
				t.Errorf("%d out of order, such as %s", len(list), list[0])
			}
		})
	}
}
