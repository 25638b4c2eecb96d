package main

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// rearmed runs a rearmer over lanes of keys and returns what each look affects.
type rearmed struct {
	keys  []string
	looks [][]string
	fail  int // so many looks fail
	takes time.Duration
}

func (l *rearmed) rearm(_ context.Context, affected func(string) bool) error {
	time.Sleep(l.takes)
	if l.fail > 0 {
		l.fail--
		return errors.New("Redis is away")
	}
	var look []string
	for _, key := range l.keys {
		if affected(key) {
			look = append(look, key)
		}
	}
	l.looks = append(l.looks, look)
	return nil
}

func only(keys ...string) func(string) bool {
	return func(key string) bool { return slices.Contains(keys, key) }
}

func TestChangedLimitsRearmTheLanesTheyAffect(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		lanes   rearmed
		changes func(r *rearmer)
		want    [][]string
	}{
		{"one", rearmed{}, func(r *rearmer) { r.changed(only("a")) }, [][]string{{"a"}}},
		{"more while it looks", rearmed{takes: time.Second}, func(r *rearmer) {
			r.changed(only("a"))
			time.Sleep(500 * time.Millisecond)
			r.changed(only("b"))
			r.changed(only("c"))
		}, [][]string{{"a"}, {"b", "c"}}},
		{"one again when it failed", rearmed{fail: 2}, func(r *rearmer) {
			r.changed(only("a"))
			time.Sleep(rearmRetry / 2)
			r.changed(only("c"))
		}, [][]string{{"a", "c"}}},
		{"all after many", rearmed{takes: time.Second}, func(r *rearmer) {
			r.changed(only("a"))
			time.Sleep(500 * time.Millisecond)
			for range mostRearmed + 1 {
				r.changed(only("b"))
			}
		}, [][]string{{"a"}, {"a", "b", "c"}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c.lanes.keys = []string{"a", "b", "c"}
				var told strings.Builder
				failures := c.lanes.fail
				r := newRearmer(c.lanes.rearm, slog.New(slog.NewTextHandler(&told, nil)))
				ctx, stop := context.WithCancel(t.Context())
				done := make(chan struct{})
				go func() { r.run(ctx); close(done) }()
				c.changes(r)
				time.Sleep(10 * time.Second)
				stop()
				<-done
				if n := strings.Count(told.String(), "\n"); n != min(failures, 1) {
					t.Errorf("%d failures are told in %d lines", failures, n)
				}
				if !slices.EqualFunc(c.lanes.looks, c.want, slices.Equal[[]string]) {
					t.Errorf("the looks are %q, want %q", c.lanes.looks, c.want)
				}
			})
		})
	}
}
