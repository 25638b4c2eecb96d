package integration

import (
	"bytes"
	"encoding/json"
	"net/http"
	"sync"
	"testing"
	"time"

	"sluice/integration/testenv"
)

// waitForDeadLetters waits until SLUICE_DLQ holds n events.
func (w *world) waitForDeadLetters(n int, timeout time.Duration) {
	w.t.Helper()
	deadline := time.Now().Add(timeout)
	for {
		held := len(testenv.Snapshot(w.t, w.nats, w.receiver, testenv.Streams{}).DeadLetters)
		if held == n {
			return
		}
		if time.Now().After(deadline) {
			w.t.Fatalf("%d dead letters after %s, want %d", held, timeout, n)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// replay runs `sluice dlq replay` and returns how many were selected and replayed.
func (w *world) replay(args ...string) (selected, replayed int) {
	w.t.Helper()
	code, stdout, stderr := command(w.t, []string{"NATS_URL=" + w.nats.URL()}, "", append([]string{"dlq", "replay", "--json"}, args...)...)
	var counts struct{ Selected, Replayed int }
	if err := json.Unmarshal([]byte(stdout), &counts); err != nil || code != 0 || stderr != "" {
		w.t.Fatalf("exit code %d, %v: %s%s", code, err, stdout, stderr)
	}
	return counts.Selected, counts.Replayed
}

// A receiver refuses a key's events and recovers: replayed they arrive under their ids, with all attempts ahead, and no
// faster than the limit. Nobody else notices.
func TestReplayedDeadLettersAreShapedLikeAnyEvents(t *testing.T) {
	beside(t)
	const dead, live = 30, 40
	w := newWorld(t)
	w.receiver.Handle(func(r testenv.Request) testenv.Response {
		if r.Key == "alice" {
			return testenv.Response{Status: http.StatusBadRequest, Body: "no such user"}
		}
		return testenv.Response{}
	})
	w.workers(1, "LIMIT=20/s burst 5")
	w.publish("alice", dead, 0)
	w.waitForDeadLetters(dead, 20*time.Second)
	refused := w.receiver.Count()
	w.receiver.Handle(func(testenv.Request) testenv.Response { return testenv.Response{} })

	var publishing sync.WaitGroup
	publishing.Go(func() { w.publish("bob", live, 55*time.Millisecond) })
	if selected, replayed := w.replay("--key", "alice"); selected != dead || replayed != dead {
		t.Errorf("%d selected, %d replayed, want %d", selected, replayed, dead)
	}
	publishing.Wait()
	w.receiver.WaitForDelivered(dead+live, 20*time.Second)
	if selected, _ := w.replay("--key", "alice"); selected != 0 {
		t.Errorf("a second replay finds %d dead letters", selected)
	}

	w.bounded(20, 5)
	seen := map[string]int{}
	for i, r := range w.receiver.Requests() {
		if r.Key != "alice" {
			continue
		}
		seen[r.ID]++
		if r.Attempt != 1 {
			t.Errorf("request %d for %s is attempt %d, want 1", i, r.ID, r.Attempt)
		}
	}
	for id, n := range seen {
		if n != 2 || w.receiver.Delivered()[id] != 1 {
			t.Errorf("%s was pushed %d times and delivered %d times, want 2 and 1", id, n, w.receiver.Delivered()[id])
		}
	}
	if got := w.receiver.Count(); len(seen) != dead || got != refused+dead+live {
		t.Errorf("%d ids and %d requests, want %d and %d", len(seen), got, dead, refused+dead+live)
	}
	if p99 := testenv.Percentile(w.latencies(func(key string) bool { return key == "bob" }), 99); p99 > 500*time.Millisecond {
		t.Errorf("p99 of the other key is %s", p99)
	}
	w.atRest(0)
}

// An event as large as NATS takes has no room left for its id in the source: it comes by way of its lane.
func TestReplayOfTheLargestEventArrives(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.inside("20/s burst 5", time.Second)
	w.receiver.Handle(func(testenv.Request) testenv.Response { return testenv.Response{Status: http.StatusBadRequest} })
	body := bytes.Repeat([]byte("x"), int(w.nats.Conn().MaxPayload()))
	w.published["EVENTS:1"] = time.Now()
	if _, err := w.js.Publish(t.Context(), "events.alice", body); err != nil {
		t.Fatal(err)
	}
	w.receiver.WaitFor(1, 10*time.Second)
	w.waitForDeadLetters(1, 10*time.Second)
	w.replay("--yes")
	w.receiver.WaitFor(2, 10*time.Second) // refused again, it becomes a dead letter again
	w.waitForDeadLetters(1, 10*time.Second)
	w.receiver.Handle(func(testenv.Request) testenv.Response { return testenv.Response{} })
	w.replay("--key", "alice")
	w.receiver.WaitForDelivered(1, 20*time.Second)
	for _, r := range w.receiver.Requests() {
		if r.ID != "EVENTS:1" || r.Attempt != 1 || !bytes.Equal(r.Body, body) || r.Subject != "events.alice" {
			t.Errorf("%s, attempt %d, with %d bytes came from %s", r.ID, r.Attempt, len(r.Body), r.Subject)
		}
	}
	w.atRest(0)
}
