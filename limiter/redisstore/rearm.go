package redisstore

import (
	"context"
	"fmt"
	"strconv"

	"golang.org/x/sync/errgroup"

	"sluice/limiter"
)

// Rearm lets the lanes of the affected keys be looked at now, once the limits have changed: when they are due was computed
// by the old ones. The resolver answers by the new ones already. Every worker calls it for its own sake; what another has
// done costs it a look at the keys that wait. After an error some may not be looked at for up to a minute: call it again.
func (s *Store) Rearm(ctx context.Context, affected func(key string) bool) error {
	var calls errgroup.Group
	for _, sh := range s.shards {
		calls.Go(func() error { return sh.rearm(ctx, affected) })
	}
	if err := calls.Wait(); err != nil {
		return fmt.Errorf("redis: look at waiting keys by their new limits: %w", err)
	}
	return nil
}

// rearm reads the keys that are due later, a page at a time, and moves those affected with the call that reads the next.
func (sh *shard) rearm(ctx context.Context, affected func(key string) bool) error {
	// What was asked by the old limits is answered, and has said when lanes are due.
	sh.bundle.ruling.Lock()
	sh.bundle.ruling.Unlock() //lint:ignore SA2001 nothing is to be done in between
	var (
		from, same int64 // the last time read, and how many keys that stay there were read of it
		move       []any // keys of the page before
	)
	moved := map[string]bool{} // each once, however soon it is due later again
	for {
		r, err := sh.run(rearmScript, []string{sh.epochKey, sh.dueKey}, append([]any{from, same, maxKeys}, move...))
		if err != nil {
			return err
		}
		if integer(r.values[0]) > 0 {
			sh.due(0)
		}
		page := r.values[1:]
		move = move[:0]
		for ; len(page) >= 2; page = page[2:] {
			token, _ := page[0].(string)
			text, _ := page[1].(string)
			at, err := strconv.ParseInt(text, 10, 64)
			if err != nil {
				return fmt.Errorf("time %q of a waiting key: %w", text, err)
			}
			if at != from {
				from, same = at, 0
			}
			if key, err := limiter.DecodeKey(token); err == nil && !moved[token] && affected(key) {
				moved[token] = true
				move = append(move, token)
			} else {
				same++
			}
		}
		if len(r.values) == 1 && len(move) == 0 {
			return nil
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
}
