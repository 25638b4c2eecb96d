package stream

import (
	"sync"
	"sync/atomic"
	"testing"

	"sluice/pipeline"
)

func TestOfAllMarksOneIsTheFirst(t *testing.T) {
	t.Parallel()
	js, cfg := newServer(t)
	l := openLanes(t, js, cfg)
	var first atomic.Int64
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			won, err := l.Mark(t.Context())
			if err != nil {
				t.Error(err)
			}
			if won {
				first.Add(1)
			}
		})
	}
	all.Wait()
	if first.Load() != 1 {
		t.Errorf("%d calls were told that they are the first", first.Load())
	}
	if n := messages(t, js, l.names.LanesStream()); n != 0 {
		t.Errorf("%d messages are left", n)
	}
	err := l.Each(t.Context(), func(ev *pipeline.Event, seq uint64) error {
		t.Errorf("the mark shows as event %d: %+v", seq, ev)
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestLanesThatHeldAnEventCanNotBeMarkedAsFresh(t *testing.T) {
	t.Parallel()
	js, cfg := newServer(t)
	l := openLanes(t, js, cfg)
	seq := appendEvent(t, l, event("k", 1, "data"))
	if err := deleteLane(t, l, seq); err != nil {
		t.Fatal(err)
	}
	if won, err := l.Mark(t.Context()); won || err != nil {
		t.Errorf("marked %v, %v: an empty stream isn't a new one", won, err)
	}
}

func TestLanesThatAreMadeAgainAreNotMarkedAsFresh(t *testing.T) {
	t.Parallel()
	js, cfg := newServer(t)
	l := openLanes(t, js, cfg)
	keeper := NewKeeper(js, cfg, l, openDeadLetters(t, js, cfg), quiet, func() {})
	if err := js.DeleteStream(t.Context(), l.names.LanesStream()); err != nil {
		t.Fatal(err)
	}
	if did, err := keeper.again(t.Context(), keeper.stores[0]); err != nil || did.Did != "created" {
		t.Fatal(did, err)
	}
	if won, err := l.Mark(t.Context()); won || err != nil {
		t.Errorf("marked %v, %v: there was a stream before", won, err)
	}
}
