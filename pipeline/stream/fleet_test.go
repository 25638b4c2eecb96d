package stream

import (
	"context"
	"slices"
	"testing"
	"time"
)

func TestWorkersAreLiveForThreeSecondsAfterTheyWereHeard(t *testing.T) {
	t.Parallel()
	start := time.Unix(1000, 0)
	at := func(s float64) time.Time { return start.Add(time.Duration(s * float64(time.Second))) }
	f := &Fleet{self: "b", heard: map[string]beat{}}
	want := func(s float64, away int, ids ...string) {
		t.Helper()
		got, n := f.workers(at(s))
		if !slices.Equal(got, ids) || n != away {
			t.Errorf("after %gs: %v, %d away, want %v, %d", s, got, n, ids, away)
		}
	}
	beats := func(s float64, ids ...string) {
		for _, id := range ids {
			f.hear(WorkerInfo{ID: id}, at(s))
		}
	}
	want(0, 0)
	beats(0, "b", "a")
	want(1.9, 0) // not everybody may have been heard yet
	beats(1, "b", "a")
	want(2, 0, "a", "b")
	beats(2, "b")
	f.hear(WorkerInfo{ID: "c", Away: true}, at(2.5))
	want(2.6, 1, "a", "b", "c") // it grows at once
	f.info.Away = true
	want(2.6, 2, "a", "b", "c")
	beats(3, "b") // said before it was away
	want(4, 2, "a", "b", "c")
	want(4.1, 2, "b", "c") // a is gone
	beats(5, "b")
	want(5.6, 1, "b")
	want(8.1, 0) // it doesn't even hear itself
	beats(9, "b")
	want(9.1, 0)
	beats(10, "b", "a")
	want(11, 1, "a", "b")
}

func TestFleetHearsWhatChangesAtOnce(t *testing.T) {
	t.Parallel()
	cfg := testConfig(startServer(t, serverOptions(t)))
	var fleets []*Fleet
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	for _, id := range []string{"a", "b"} {
		f, err := JoinFleet(rawConn(t, cfg.URLs), cfg, WorkerInfo{ID: id})
		if err != nil {
			t.Fatal(err)
		}
		go func() { f.Run(ctx); ended <- struct{}{} }()
		fleets = append(fleets, f)
	}
	defer func() { stop(); <-ended; <-ended }()
	for _, nonsense := range []string{"", "{}", "[]"} {
		if err := fleets[0].nc.Publish("sluice.worker", []byte(nonsense)); err != nil {
			t.Fatal(err)
		}
	}
	both := func(f *Fleet, away int) func() bool {
		return func() bool {
			ids, n := f.Workers()
			return slices.Equal(ids, []string{"a", "b"}) && n == away
		}
	}
	eventually(t, "a hears both", both(fleets[0], 0))
	eventually(t, "b hears both", both(fleets[1], 0))
	start := time.Now()
	fleets[1].Tell(true)
	eventually(t, "a hears that b is without Redis", both(fleets[0], 1))
	fleets[0].Tell(true)
	eventually(t, "b hears that a is too", both(fleets[1], 2))
	fleets[1].Tell(false)
	eventually(t, "a hears that b sees Redis again", both(fleets[0], 1))
	if took := time.Since(start); took > beatEvery {
		t.Errorf("it took %s, want it told at once", took)
	}
}
