package stream

import (
	"fmt"
	"slices"
	"testing"

	"sluice/pipeline"
)

func TestBetweenGivesTheEventsOfARange(t *testing.T) {
	t.Parallel()
	js, cfg := newServer(t)
	l := openLanes(t, js, cfg)
	zero := before(l)
	if last, err := l.Last(t.Context()); err != nil || last != zero {
		t.Errorf("the last of none: %d, %v, want %d", last, err, zero)
	}
	for i := range 20 {
		appendEvent(t, l, event(fmt.Sprint("k", i%3), uint64(i+1), "data"))
	}
	for _, seq := range []uint64{6, 10, 20} {
		if err := deleteLane(t, l, zero+seq); err != nil {
			t.Fatal(err)
		}
	}
	last, err := l.Last(t.Context())
	if err != nil || last != zero+20 {
		t.Errorf("the last: %d, %v, want 20 although it is gone", last, err)
	}
	for _, c := range []struct {
		after, last uint64
		want        []uint64
	}{
		{5, 10, []uint64{7, 8, 9}},
		{0, 2, []uint64{1, 2}},
		{18, 20, []uint64{19}},
		{19, 20, nil},
	} {
		var got []uint64
		err := l.Between(t.Context(), zero+c.after, zero+c.last, func(_ *pipeline.Event, seq uint64) error {
			got = append(got, seq-zero)
			return nil
		})
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("between %d and %d: %v, %v, want %v", c.after, c.last, got, err, c.want)
		}
	}
	for seq, want := range map[uint64]bool{1: true, 6: false, 2: false} { // the second is of another key
		if has, err := l.Has(t.Context(), "k0", zero+seq); err != nil || has != want {
			t.Errorf("has %d: %t, %v, want %t", seq, has, err, want)
		}
	}
}
