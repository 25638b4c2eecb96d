package redisstore

import (
	"context"
	"errors"
	"fmt"

	"sluice/limiter"
	"sluice/pipeline"
)

// mending is one entry of mend.lua.
type mending struct {
	key, what string
	set       int
	member    string
	order     uint64
	as        string // the member as it should be
}

// mends are what mend.lua is told for each kind. NoIndex is mended by Open, NoPlace by verify.lua.
var mends = map[FindingKind]string{
	NoBody: "drop", WrongLane: "drop", Twice: "twin", Unreadable: "twin", WrongOrder: "order", DeadLease: "free", NotDue: "due",
	WrongCost: "cost", DamagedBucket: "fields", DamagedLane: "set",
}

// Mend mends what Inspect found, as far as it is still so. It may be used while workers run. What depends on something
// else that was wrong is mended by the next Inspect and Mend: the events of a damaged lane get their places then.
func (s *Store) Mend(ctx context.Context, found []Finding) error {
	shards := map[*shard][]mending{}
	homeless := map[uint64]bool{}
	rebuild := false
	for _, f := range found {
		switch f.Kind {
		case NoIndex:
			rebuild = true
		case NoPlace:
			homeless[f.Seq] = true
		default:
			sh := s.shard(f.Key)
			shards[sh] = append(shards[sh], mending{f.Key, mends[f.Kind], f.set, f.member, f.order, f.as})
		}
	}
	if rebuild {
		if err := s.Open(ctx); err != nil && !errors.Is(err, errTaken) { // else another is about it
			return err
		}
	}
	for sh, todo := range shards {
		for len(todo) > 0 {
			n := min(len(todo), maxKeys)
			if _, err := sh.mend(todo[:n]); err != nil {
				return err
			}
			todo = todo[n:]
		}
	}
	return s.house(ctx, homeless)
}

// mend runs the script.
func (sh *shard) mend(todo []mending) (reply, error) {
	keys := append(make([]string, 0, 2+5*len(todo)), sh.epochKey, sh.dueKey)
	args := make([]any, 0, 6*len(todo))
	for _, m := range todo {
		keys = sh.laneKeys(keys, m.key)
		args = append(args, limiter.EncodeKey(m.key), m.what, m.set, m.member, m.order, m.as)
	}
	return sh.run(mendScript, keys, args)
}

// house gives stored events their places, as the workers' own verification does, and needs no lease for it: whether an event has
// a place is seen, and one given, in one call, and how far the shard is verified isn't noted.
func (s *Store) house(ctx context.Context, homeless map[uint64]bool) error {
	if len(homeless) == 0 {
		return nil
	}
	first, last := uint64(1<<64-1), uint64(0)
	for seq := range homeless {
		first, last = min(first, seq), max(last, seq)
	}
	all := map[*shard]*verification{}
	err := s.opt.Bodies.Between(ctx, first-1, last, func(ev *pipeline.Event, seq uint64) error {
		if !homeless[seq] {
			return nil
		}
		sh := s.shard(ev.Key)
		if all[sh] == nil {
			all[sh] = &verification{work: &work{shard: sh, ctx: ctx}}
		}
		v := all[sh]
		if v.events = append(v.events, stored{ev.Key, v.tierOf(ev), storedEntry(ev, seq)}); len(v.events) < maxKeys {
			return nil
		}
		return v.flush(false, asBefore)
	})
	if err != nil {
		return fmt.Errorf("read the lane stream: %w", err)
	}
	for _, v := range all {
		if err := v.flush(false, asBefore); err != nil {
			return err
		}
	}
	return nil
}
