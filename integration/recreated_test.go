package integration

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"sluice/limiter"
)

// The lane stream is deleted under a worker and made anew: what it held is lost with it, but what comes from then on
// doesn't wait behind places without bodies.
func TestRecreatedLaneStreamIsFollowed(t *testing.T) {
	t.Parallel()
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

// Nobody runs `sluice setup` after the lane stream was deleted under load: a worker makes it again, once, and what isn't in the
// deleted one is delivered.
func TestDeletedLaneStreamIsMadeAgainByAWorker(t *testing.T) {
	beside(t)
	w := newWorld(t)
	workers := w.workers(2, "LIMIT=40/s burst 1")
	w.publish("k", 60, 0)
	eventuallyIn(t, 5*time.Second, "some wait in the lane", func() bool {
		s, err := w.js.Stream(t.Context(), "SLUICE_LANES")
		return err == nil && s.CachedInfo().State.Msgs > 10
	})
	loaded := make(chan struct{})
	go func() { // each event of a key of its own, which waits for nobody
		defer close(loaded)
		for i := range 100 {
			w.publish(fmt.Sprint("calm", i), 1, 0)
			time.Sleep(10 * time.Millisecond)
		}
	}()
	time.Sleep(100 * time.Millisecond)
	before := w.ids()
	if err := w.js.DeleteStream(t.Context(), "SLUICE_LANES"); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	w.publish("k", 20, 0)
	w.publish("other", 3, 0)
	<-loaded
	undelivered := func() (ids []string) {
		delivered := map[string]bool{}
		for _, r := range w.receiver.Requests() {
			delivered[r.ID] = true
		}
		for _, id := range w.ids() {
			if !delivered[id] && (!slices.Contains(before, id) || !strings.HasPrefix(id, "k-")) {
				ids = append(ids, id)
			}
		}
		return ids
	}
	eventuallyIn(t, 8*time.Second, "all that wasn't in the deleted stream is delivered", func() bool { return len(undelivered()) == 0 })
	t.Logf("delivered %s after the stream was deleted", time.Since(start).Round(time.Millisecond))
	w.noLaneLeft()
	w.bounded(40, 1)
	made, told := 0, 0
	for _, p := range workers {
		made += strings.Count(p.Output(), "it is made again")
		told += strings.Count(p.Output(), "are lost with it")
	}
	if made != 1 || told == 0 {
		t.Errorf("said %d times that the stream is made again, want once; and %d times how many events are lost, want at least once", made, told)
	}
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
