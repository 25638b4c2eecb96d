package redisstore

import (
	"context"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"sluice/limiter"
)

// Subject is a key, and the tier that its events name ("": none).
type Subject struct {
	Key, Tier string
}

// Level is what a key has left, for people to look at: by the time it is read it may be otherwise.
type Level struct {
	Limits  limiter.Limits // that rule the key
	Tokens  []int64        // whole ones of each limit; negative: promised already. None while the key is paused or unlimited
	Waiting int64          // events in the key's lane, those included that are about to be pushed
	Cooling time.Duration  // for so long nothing is pushed, since the receiver is away
	Damaged bool           // the state isn't readable; nothing else is known but Waiting
}

// Left are the tokens of the limit with the fewest, and whether tokens are counted at all.
func (l Level) Left() (tokens int64, counted bool) {
	if len(l.Tokens) == 0 {
		return 0, false
	}
	return slices.Min(l.Tokens), true
}

// Levels reads what the keys of subjects have left, in their order. It changes nothing, takes a second at most, and costs Redis about as
// much as a decision on each key. While Redis is known to be away it isn't asked.
func (s *Store) Levels(ctx context.Context, subjects []Subject) ([]Level, error) {
	if !s.reachable() {
		return nil, errAway
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	var places [limiter.Shards][]int
	for i, subject := range subjects {
		shard := limiter.Shard(subject.Key)
		places[shard] = append(places[shard], i)
	}
	levels := make([]Level, len(subjects))
	var g errgroup.Group
	for shard, at := range places {
		if len(at) == 0 {
			continue
		}
		g.Go(func() error {
			for some := range slices.Chunk(at, maxKeys) {
				if err := s.shards[shard].levels(ctx, subjects, some, levels); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	return levels, nil
}

// levels reads the keys in the places at. It is no part of the work: its answers neither open nor close the breaker, and are
// no calls in the metrics.
func (sh *shard) levels(ctx context.Context, subjects []Subject, at []int, to []Level) error {
	sh.mu.Lock()
	id := sh.epoch
	sh.mu.Unlock()
	redisKeys := []string{sh.epochKey}
	rules := make([]*rule, len(at))
	for n, i := range at {
		redisKeys = sh.keys(redisKeys, subjects[i].Key)
		rules[n] = sh.rule(subjects[i].Key, subjects[i].Tier)
	}
	table := newTable(len(at), func(n int) *rule { return rules[n] })
	args := append([]any{id, sh.now}, table.args...)
	for _, place := range table.places {
		args = append(args, place)
	}
	values, err := levelsScript.Run(ctx, sh.rdb, redisKeys, args...).Slice()
	switch {
	case err != nil:
		return fmt.Errorf("redis: %w", err)
	case integer(values[0]) == 1:
		return ErrEpoch
	}
	for n, i := range at {
		v, _ := values[3+n].([]any)
		level := Level{Limits: rules[n].ruling.Limits, Damaged: integer(v[0]) < 0, Waiting: integer(v[1]), Cooling: micros(integer(v[2]))}
		for _, tokens := range v[3:] {
			level.Tokens = append(level.Tokens, integer(tokens))
		}
		to[i] = level
	}
	return nil
}
