package main

import (
	"context"
	"net/url"
	"slices"
	"strings"

	"sluice/limiter"
	"sluice/limiter/redisstore"
	"sluice/pipeline/metrics"
)

// metricKeys reads METRIC_KEYS. Keys stand there as they are shown everywhere: with percent escapes for what can't be written.
func (r *reader) metricKeys(raw string) (keys []string) {
	const most = 20 // each is a series
	for _, text := range r.list("METRIC_KEYS", raw) {
		key, err := url.PathUnescape(text)
		switch {
		case err != nil:
			r.faultf("METRIC_KEYS", text, "has a %% that begins no escape; write it as %%25")
		case len(key) > limiter.MaxKey:
			r.faultf("METRIC_KEYS", text, "is longer than a key may be, %d bytes", limiter.MaxKey)
		case !slices.Contains(keys, key):
			keys = append(keys, key)
		}
	}
	if len(keys) > most {
		r.faultf("METRIC_KEYS", strings.TrimSpace(raw), "names %d keys; use at most %d, since each is a series of its own", len(keys), most)
	}
	return keys
}

// registerKeyTokens shows the tokens of METRIC_KEYS, unless Redis is away.
func (w *worker) registerKeyTokens(store *redisstore.Store) {
	if len(w.cfg.MetricKeys) == 0 {
		return
	}
	metrics.RegisterKeyTokens(w.reg, w.cfg.MetricKeys, func(keys []string) map[string]int64 {
		subjects := make([]redisstore.Subject, len(keys))
		for i, key := range keys {
			subjects[i].Key = key
		}
		left := map[string]int64{}
		levels, err := store.Levels(context.Background(), subjects) // takes a second at most
		if err != nil {
			return nil // sluice_redis_up tells
		}
		for i, level := range levels {
			if tokens, counted := level.Left(); counted {
				left[keys[i]] = tokens
			}
		}
		return left
	})
}
