package main

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"
)

const (
	rearmPause  = 50 * time.Millisecond // between two looks at all lanes
	rearmRetry  = time.Second
	mostRearmed = 8 // changes that are told apart; more concern all lanes
)

// rearmer brings lanes that wait in line with limits that have changed.
type rearmer struct {
	rearm func(ctx context.Context, affected func(key string) bool) error // looks at all lanes; may be repeated
	log   *slog.Logger

	mu      sync.Mutex
	pending []func(key string) bool
	kick    chan struct{} // something is pending; holds one
}

func newRearmer(rearm func(context.Context, func(string) bool) error, log *slog.Logger) *rearmer {
	return &rearmer{rearm: rearm, log: log, kick: make(chan struct{}, 1)}
}

// changed notes whose limits have changed. It doesn't block.
func (r *rearmer) changed(affected func(key string) bool) { r.add(affected) }

func (r *rearmer) add(affected ...func(key string) bool) {
	r.mu.Lock()
	r.pending = append(r.pending, affected...)
	if len(r.pending) > mostRearmed {
		r.pending = []func(string) bool{func(string) bool { return true }}
	}
	r.mu.Unlock()
	select {
	case r.kick <- struct{}{}:
	default:
	}
}

// run re-arms until ctx ends; what fails it tries again.
func (r *rearmer) run(ctx context.Context) {
	failing := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.kick:
		}
		r.mu.Lock()
		fns := r.pending
		r.pending = nil
		r.mu.Unlock()
		pause := rearmPause
		err := r.rearm(ctx, func(key string) bool {
			return slices.ContainsFunc(fns, func(fn func(string) bool) bool { return fn(key) })
		})
		if err != nil && ctx.Err() == nil {
			if !failing { // Redis may be away for long
				r.log.Warn("waiting events don't follow changed limits yet; trying again", "err", err)
			}
			r.add(fns...)
			pause = rearmRetry
		}
		failing = err != nil
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}
