package redisstore

import (
	"context"
	"errors"
	"sync"
	"time"

	"sluice/limiter"
)

// longestLook bounds how long a worker doesn't look at a shard: lanes that others parked or gave back are found by it.
const longestLook = 250 * time.Millisecond

// Claim takes up to most keys whose lanes are due. Only shards that are due as far as this worker knows are asked.
func (s *Store) Claim(ctx context.Context, most int) ([]string, time.Duration, error) {
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex
		keys []string
		errs []error
	)
	now := time.Now()
	per := max(1, min(maxKeys, most/limiter.Shards))
	for _, b := range s.bundles {
		due := b.due(now)
		if len(due) == 0 {
			continue
		}
		wg.Go(func() {
			got, err := b.claim(due, per)
			mu.Lock()
			defer mu.Unlock()
			keys = append(keys, got...)
			if err != nil {
				errs = append(errs, err)
			}
		})
	}
	wg.Wait()
	next := now.Add(longestLook)
	for _, sh := range s.shards {
		sh.mu.Lock()
		if sh.look.Before(next) {
			next = sh.look
		}
		sh.mu.Unlock()
	}
	return keys, max(0, time.Until(next)), errors.Join(errs...)
}

// due are the shards to be asked now.
func (b *bundle) due(now time.Time) (due []*shard) {
	for _, sh := range b.members {
		sh.mu.Lock()
		if !sh.look.After(now) {
			due = append(due, sh)
		}
		sh.mu.Unlock()
	}
	return due
}

// claim takes up to most keys of each shard. An error may be of some shards only.
func (b *bundle) claim(shards []*shard, most int) ([]string, error) {
	var unknown error
	of := newEpochs()
	for _, sh := range shards {
		// Set before the call, so that what becomes due meanwhile isn't forgotten.
		sh.mu.Lock()
		sh.look = time.Now().Add(longestLook)
		sh.mu.Unlock()
		if !of.add(sh) {
			unknown = ErrEpoch
		}
	}
	if len(of.shards) == 0 {
		return nil, unknown
	}
	r, err := b.callEpochs(claimScript, of, of.keys(0), append(b.callArgs(of, nil, 1), most))
	if err != nil {
		return nil, err
	}
	var keys []string
	for i, sh := range of.shards {
		v, _ := r.values[i].([]any)
		sh.due(micros(max(-1, integer(v[0]))))
		for _, v := range v[1:] {
			token, _ := v.(string)
			key, err := limiter.DecodeKey(token)
			if err != nil {
				sh.opt.Log.Error("an unreadable key in the index is left alone", "shard", sh.tag, "err", err)
				continue
			}
			keys = append(keys, key)
		}
	}
	return keys, unknown
}
