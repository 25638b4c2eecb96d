package integration

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"sluice/limiter"
)

// The lane stream is deleted under a worker and made anew: what it held is lost with it, but what comes from then on
// doesn't wait behind places without bodies.
func TestRecreatedLaneStreamIsFollowed(t *testing.T) {
	w := newWorld(t)
	w.inside("20/s burst 1", time.Second)
	w.publish("k", 500, 0)
	rdb := w.redis.Client()
	lane := "lane:{" + limiter.Tag(limiter.Shard("k")) + "}:k"
	eventuallyIn(t, 5*time.Second, "all wait in the lane", func() bool {
		source, err := w.js.Stream(t.Context(), "EVENTS")
		return err == nil && source.CachedInfo().State.Msgs == 0
	})

	s, err := w.js.Stream(t.Context(), "SLUICE_LANES")
	if err != nil {
		t.Fatal(err)
	}
	cfg := s.CachedInfo().Config
	if err := w.js.DeleteStream(t.Context(), cfg.Name); err != nil {
		t.Fatal(err)
	}
	if _, err := w.js.CreateStream(t.Context(), jetstream.StreamConfig{
		Name: cfg.Name, Subjects: cfg.Subjects, Discard: cfg.Discard, MaxBytes: cfg.MaxBytes, Duplicates: cfg.Duplicates, AllowDirect: true,
	}); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	eventuallyIn(t, 5*time.Second, "the index of the old stream is gone", func() bool { return rdb.ZCard(t.Context(), lane).Val() < 100 })
	t.Logf("followed within %s", time.Since(start).Round(time.Millisecond))

	before := w.ids()
	w.publish("k", 10, 0)
	w.publish("other", 3, 0)
	eventuallyIn(t, 5*time.Second, "what came later is delivered", func() bool {
		delivered := map[string]bool{}
		for _, r := range w.receiver.Requests() {
			delivered[r.ID] = true
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		for id := range maps.Keys(w.published) {
			if !delivered[id] && !slices.Contains(before, id) {
				return false
			}
		}
		return true
	})
	w.noLaneLeft()
	w.bounded(20, 1)
}

// eventuallyIn waits until ok.
func eventuallyIn(t *testing.T, within time.Duration, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(within); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s", within, what)
		}
	}
}
