package redisstore

import (
	"context"
	"hash/maphash"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"sluice/limiter"
	"sluice/pipeline"
)

// bundle is the shards whose calls travel together. On a single Redis that is half of them: a call costs as much as ten
// decisions or two parked events, and while one is under way the other half collects what the next will carry. A Cluster takes
// the keys of one shard in a call only.
type bundle struct {
	*Store
	members []*shard

	take, reserve *batcher[awaited, reserved]
	detours       detours
	park          *batcher[pipeline.ParkRequest, answered[pipeline.LaneInfo]]
	lease         *batcher[pipeline.LeaseRequest, answered[pipeline.Lease]]
	settle        *batcher[pipeline.SettleRequest, answered[pipeline.LaneInfo]]

	// ruling is read from when the limits of keys are asked for until the call by them is answered, where the call says
	// when lanes are due; see Rearm.
	ruling sync.RWMutex

	clock clock
}

// bundlesOf is how many bundles a server gets.
const bundlesOf = 2

func (s *Store) bundleShards() {
	n := bundlesOf
	if s.rdb.cluster != nil {
		n = limiter.Shards
	}
	for range n {
		s.bundles = append(s.bundles, s.newBundle())
	}
	for i, sh := range s.shards {
		sh.bundle = s.bundles[i*n/limiter.Shards]
		sh.bundle.members = append(sh.bundle.members, sh)
	}
}

func (s *Store) newBundle() *bundle {
	b := &bundle{Store: s, detours: detours{seed: maphash.MakeSeed()}}
	b.reserve = &batcher[awaited, reserved]{most: 4 * maxKeys, run: b.runReserve}
	b.take = &batcher[awaited, reserved]{
		most: 4 * maxKeys, run: b.runTake,
		open: func(r reserved) bool { return r.open }, passOn: b.passOn,
	}
	b.park = &batcher[pipeline.ParkRequest, answered[pipeline.LaneInfo]]{most: maxKeys, run: b.runPark}
	b.lease = &batcher[pipeline.LeaseRequest, answered[pipeline.Lease]]{most: maxLanes, run: b.runLease}
	b.settle = &batcher[pipeline.SettleRequest, answered[pipeline.LaneInfo]]{most: maxLanes, run: b.runSettle}
	return b
}

// answered is the answer to one request of a batch, or why it has none of its own.
type answered[R any] struct {
	r   R
	err error
}

// ask waits for the answer to q.
func ask[Q, R any](ctx context.Context, b *batcher[Q, answered[R]], q Q) (R, error) {
	a, err := b.do(ctx, q)
	if err != nil {
		return a.r, err
	}
	return a.r, a.err
}

// epochs is the shards of one call with what was known of their epochs when it was made.
type epochs struct {
	shards []*shard
	ids    []string
	lanes  []int64 // in which lane stream the bodies of their entries are
	calls  []int64
	places map[*shard]int // from 1
}

func newEpochs() *epochs { return &epochs{places: map[*shard]int{}} }

// add answers false when the epoch of sh is not known.
func (e *epochs) add(sh *shard) bool {
	if e.places[sh] > 0 {
		return true
	}
	id, lanes, calls := sh.inEpoch()
	if id == "" {
		return false
	}
	e.shards, e.ids, e.lanes, e.calls = append(e.shards, sh), append(e.ids, id), append(e.lanes, lanes), append(e.calls, calls)
	e.places[sh] = len(e.shards)
	return true
}

// lanesOf is the creation time of the lane stream that the entries of a shard that was added have their bodies in.
func (e *epochs) lanesOf(sh *shard) int64 { return e.lanes[e.places[sh]-1] }

// known answers the shards of a batch whose epochs are known, and the places of what is for them; the rest is told.
func known[Q, R any](b *bundle, batch []Q, out []answered[R], key func(Q) string) (of *epochs, places []int) {
	of = newEpochs()
	for i, q := range batch {
		if of.add(b.shard(key(q))) {
			places = append(places, i)
		} else {
			out[i].err = ErrEpoch
		}
	}
	return of, places
}

// keys are those that most scripts expect of the shards, with room for so many more.
func (e *epochs) keys(more int) []string {
	keys := make([]string, 0, 2*len(e.shards)+more)
	for _, sh := range e.shards {
		keys = append(keys, sh.epochKey, sh.dueKey)
	}
	return keys
}

// callArgs are the arguments of a call up to its script's own, of which there may be so many more. table is that of its rules, if
// it goes by any.
func (b *bundle) callArgs(of *epochs, table []any, more int) []any {
	args := append(make([]any, 0, 3+len(table)+len(of.ids)+more), of.ids[0], b.now)
	args = append(append(args, table...), len(of.ids)-1)
	for _, id := range of.ids[1:] {
		args = append(args, id)
	}
	return args
}

// callEpochs runs a script for entries of these shards, of which there is one at least. The values of the reply are those of
// the entries.
func (b *bundle) callEpochs(sc *redis.Script, of *epochs, keys []string, args []any) (r reply, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	sent := time.Now()
	values, err := of.shards[0].call(ctx, sc, len(of.shards), keys, args)
	received := time.Now()
	if err != nil {
		return r, err
	}
	if integer(values[0]) == 1 {
		for _, place := range values[1:] {
			i := integer(place) - 1
			of.shards[i].lose(of.ids[i])
		}
		return r, ErrEpoch
	}
	for i, sh := range of.shards {
		sh.seen(of.ids[i], of.calls[i], integer(values[2+i]))
	}
	r.ran = b.ran(&b.clock, sent, received, integer(values[1]))
	r.values = values[2+len(of.shards):]
	return r, nil
}
