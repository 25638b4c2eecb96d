package redisstore

import (
	"cmp"
	"hash/maphash"
	"slices"
	"sync/atomic"
	"time"
)

// Most events are of keys with tokens enough, or nearly, and nothing else to know of. The script take serves those, and only those,
// for half of what reserve costs Redis. Whether a key is one of them is known after the call only: what take leaves open goes on to
// reserve, and so do, for a moment, the key's next events without asking first.

// alike is what the entries of a run have in common; see take.lua.
type alike struct {
	shard, rule, n int
	cost           int64
	horizon        time.Duration
}

func (a alike) compare(b alike) int {
	return cmp.Or(cmp.Compare(a.shard, b.shard), cmp.Compare(a.rule, b.rule), cmp.Compare(a.n, b.n), cmp.Compare(a.cost, b.cost),
		cmp.Compare(a.horizon, b.horizon))
}

// runTake carries out a batch in one call for each 256 keys.
func (b *bundle) runTake(batch []awaited) ([]reserved, error) {
	out := make([]reserved, len(batch))
	for groups := range slices.Chunk(b.takable(batch, out), maxKeys) {
		if err := b.inEpochs(groups, batch, out, b.takeGroups); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// takable puts a batch's reservations together by their keys. Those of a key that asks for this and that are left open, so that
// none of its events passes another.
func (b *bundle) takable(batch []awaited, out []reserved) []group {
	at := make(map[string]int, len(batch))
	groups := make([]group, 0, len(batch))
	for i, r := range batch {
		g, ok := at[r.key]
		if !ok {
			g = len(groups)
			at[r.key] = g
			groups = append(groups, group{reservation: r.reservation, shard: b.shard(r.key)})
		}
		groups[g].members = append(groups[g].members, i)
	}
	return slices.DeleteFunc(groups, func(g group) bool {
		for _, i := range g.members {
			if batch[i].reservation != g.reservation || b.detours.has(g.key) {
				g.leave(out)
				return true
			}
		}
		return false
	})
}

// leave lets reserve answer the members of the group.
func (g group) leave(out []reserved) {
	for _, i := range g.members {
		out[i] = reserved{open: true}
	}
}

// takeGroups makes one call for groups of shards whose epochs are known.
func (b *bundle) takeGroups(of *epochs, groups []group, out []reserved) error {
	table := newTable(len(groups), func(i int) *rule { return groups[i].rule })
	for i, g := range groups {
		groups[i].alike = alike{of.places[g.shard], table.places[i], len(g.members), g.cost, g.horizon}
	}
	slices.SortFunc(groups, func(x, y group) int { return x.alike.compare(y.alike) })

	keys := of.keys(len(groups))
	args := append(b.callArgs(of, table.args, 1+len(of.shards)*6), b.mostWaiting())
	for i := 0; i < len(groups); {
		run, from := groups[i].alike, i
		for ; i < len(groups) && groups[i].alike == run; i++ {
			keys = append(keys, groups[i].shard.hashKey(groups[i].key))
		}
		args = append(args, i-from, run.shard, run.rule, run.n, run.cost, run.horizon.Microseconds())
	}
	b.metrics.keys.Observe(float64(len(groups)))
	r, err := b.callEpochs(takeScript, of, keys, args)
	if err != nil {
		return err
	}
	for i, g := range groups {
		if a, ok := readTaken(r.values[i], len(g.members)); ok {
			b.answer(g, a, r, out)
		} else {
			g.leave(out)
		}
	}
	return nil
}

// readTaken reads what take answers to n events, if it does.
func readTaken(value any, n int) (answer, bool) {
	if v, some := value.([]any); some {
		a := answer{wait: -1, tokens: integer(v[0]), rest: integer(v[1]), granted: integer(v[2]), slots: v[3:]}
		if a.granted < 0 {
			a.granted, a.parked, a.wait, a.slots = 0, int64(n), integer(v[3]), nil
		}
		return a, true
	}
	before := integer(value)
	return answer{wait: -1, tokens: before, granted: int64(n)}, before >= 0
}

// detours remembers which keys take had no answer for lately. Keys that share a place in it share the way.
type detours struct {
	seed  maphash.Seed
	until [4096]atomic.Int64 // since processStart
}

// detour is for how long: a key at its limit is mostly at its limit, and one that isn't any longer costs only a little more.
const detour = time.Second

func (d *detours) of(key string) *atomic.Int64 {
	return &d.until[maphash.String(d.seed, key)%uint64(len(d.until))]
}

func (d *detours) add(key string) { d.of(key).Store(int64(time.Since(processStart) + detour)) }

func (d *detours) has(key string) bool {
	until := d.of(key).Load()
	return until != 0 && until > int64(time.Since(processStart))
}
