package redisstore

import (
	"context"
	"strconv"
)

// placed is an event of key by where it stands in the source.
type placed struct {
	key   string
	order uint64
}

// Holds says whether the event that stands there in the source may be in the key's lane. It errs on the side of yes: only when
// it is sure that the event isn't it says no.
func (s *Store) Holds(ctx context.Context, key string, order uint64) (bool, error) {
	return s.shard(key).holds.do(ctx, placed{key, order})
}

func (sh *shard) runHolds(batch []placed) ([]bool, error) {
	keys, args := []string{sh.epochKey}, make([]any, 0, len(batch))
	for _, p := range batch {
		keys = append(keys, sh.keys(nil, p.key)[1:]...)
		args = append(args, strconv.FormatUint(p.order, 10))
	}
	r, err := sh.run(holdsScript, keys, args)
	if err != nil {
		return nil, err
	}
	out := make([]bool, len(batch))
	for i := range out {
		out[i] = integer(r.values[i]) == 1
	}
	return out, nil
}
