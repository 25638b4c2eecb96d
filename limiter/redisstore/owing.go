package redisstore

import (
	"errors"
	"sync"

	"sluice/limiter"
	"sluice/pipeline"
)

// charge takes what was spent without Redis. On an error some of it may have been taken.
func (s *Store) charge(debts []debt) error {
	byShard := map[*shard][]debt{}
	for _, d := range debts {
		sh := s.shard(d.key)
		byShard[sh] = append(byShard[sh], d)
	}
	return eachShard(byShard, func(sh *shard, debts []debt) error {
		keys := []string{sh.epochKey}
		table := newTable(len(debts), func(i int) *rule { return sh.rules.by(debts[i].ruling) })
		args := table.args
		for i, d := range debts {
			args = append(args, table.places[i])
			keys = append(keys, sh.keys(nil, d.key)[0])
			for _, n := range d.tokens {
				args = append(args, n)
			}
		}
		_, err := sh.run(chargeScript, keys, args)
		return err
	})
}

// index parks events, all at once, and answers those that it couldn't.
func (s *Store) index(requests []pipeline.ParkRequest) (left []pipeline.ParkRequest, err error) {
	byShard := map[*shard][]pipeline.ParkRequest{}
	for _, r := range requests {
		sh := s.shard(r.Key)
		byShard[sh] = append(byShard[sh], r)
	}
	var mu sync.Mutex
	err = eachShard(byShard, func(sh *shard, requests []pipeline.ParkRequest) error {
		out, err := sh.bundle.runPark(requests)
		if err == nil {
			err = out[0].err // as for all of them, as their shard is the same
		}
		if err != nil {
			mu.Lock()
			left = append(left, requests...)
			mu.Unlock()
		}
		return err
	})
	return left, err
}

// eachShard calls fn for all shards at the same time, with at most maxKeys at once.
func eachShard[T any](all map[*shard][]T, fn func(*shard, []T) error) error {
	var (
		calls sync.WaitGroup
		errs  [limiter.Shards]error
	)
	i := 0
	for sh, list := range all {
		to := &errs[i]
		i++
		calls.Go(func() {
			for len(list) > 0 {
				n := min(len(list), maxKeys)
				*to = errors.Join(*to, fn(sh, list[:n]))
				list = list[n:]
			}
		})
	}
	calls.Wait()
	return errors.Join(errs[:]...)
}
