package redisstore

import (
	"context"
	"fmt"
	"strings"

	"sluice/pipeline"
)

// collapsed is the entry of a member that is to be dropped.
func collapsed(m string, lanes int64) (*pipeline.Entry, error) {
	e, err := pipeline.Entry{}, error(nil)
	if f := strings.Split(m, ","); len(f) > 4 {
		e, err = parseMember(m, f[4])
	}
	if err != nil || !e.Collapsed {
		return nil, fmt.Errorf("redis: event %q that is to be dropped: %w", m, err)
	}
	e.Created = lanes
	return &e, nil
}

// dropped is an event of key that is to be dropped and whose body is deleted.
type dropped struct {
	key   string
	entry pipeline.Entry
}

// Forget takes an event that is to be dropped out of the index, and says whether it was there.
func (s *Store) Forget(ctx context.Context, key string, e pipeline.Entry) (bool, error) {
	return s.shard(key).forget.do(ctx, dropped{key, e})
}

func (sh *shard) runForget(batch []dropped) ([]bool, error) {
	keys, args := []string{sh.epochKey}, make([]any, 0, len(batch))
	for _, d := range batch {
		keys = append(keys, sh.keys(nil, d.key)[3])
		args = append(args, member(d.entry))
	}
	r, err := sh.run(forgetScript, keys, args)
	if err != nil {
		return nil, err
	}
	out := make([]bool, len(batch))
	for i := range out {
		out[i] = integer(r.values[i]) == 1
	}
	return out, nil
}
