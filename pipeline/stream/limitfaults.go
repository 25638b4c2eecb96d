package stream

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"sluice/limiter"
)

// understand reads an entry; one that can't be understood is told, counted in faults, and the last good one of its place is taken.
func (l *Limits) understand(ctx context.Context, e jetstream.KeyValueEntry, faults map[string]uint64) (c limiter.Change, ok bool, err error) {
	s := storedRule(e)
	l.mu.Lock()
	told := l.faults[s.Key] == s.Revision
	if s.Fault == nil || s.Removed {
		delete(faults, s.Key)
	} else {
		faults[s.Key] = s.Revision
	}
	l.mu.Unlock()
	if s.Fault == nil {
		return limiter.Change{Place: s.Place, Rule: s.Rule}, true, nil
	}
	if s.Removed {
		return c, false, nil // of a key that couldn't be understood
	}
	if !told {
		l.log.Error("ignoring an entry of the KV bucket of limits", "bucket", l.names.LimitsBucket(), "key", s.Key, "revision", s.Revision, "err", s.Fault)
	}
	if s.Place == (limiter.Place{}) {
		return c, false, nil
	}
	history, err := keyHistory(ctx, l.kv, s.Key)
	if err != nil {
		return c, false, fmt.Errorf("reading the history of %s: %w", s.Key, err)
	}
	return limiter.Change{Place: s.Place, Rule: lastGood(history, s.Revision)}, true, nil
}

// lastGood is the last rule before revision that can be understood.
func lastGood(history []StoredRule, revision uint64) (r limiter.Rule) {
	for _, s := range history {
		if s.Fault == nil && s.Revision < revision {
			r = s.Rule
		}
	}
	return r
}

// historyTimeout bounds the reading of one key's history.
const historyTimeout = 5 * time.Second

// keyHistory is what the bucket still knows of a key, the oldest first; none if it knows nothing.
func keyHistory(ctx context.Context, kv jetstream.KeyValue, key string) ([]StoredRule, error) {
	ctx, cancel := context.WithTimeout(ctx, historyTimeout)
	defer cancel()
	entries, err := kv.History(ctx, key)
	if err != nil && !errors.Is(err, jetstream.ErrKeyNotFound) || ctx.Err() != nil {
		return nil, errors.Join(err, ctx.Err())
	}
	all := make([]StoredRule, len(entries))
	for i, e := range entries {
		all[i] = storedRule(e)
	}
	return all, nil
}
