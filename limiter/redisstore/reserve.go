package redisstore

import (
	"context"
	"errors"
	"math"
	"slices"
	"time"

	"sluice/limiter"
)

type reservation struct {
	key     string
	rule    *rule
	cost    int64
	horizon time.Duration
}

// awaited is a reservation with the context of who waits for its answer.
type awaited struct {
	reservation
	ctx context.Context
}

// reserved is the answer to one reservation.
type reserved struct {
	limiter.Decision
	err  error
	open bool // of take: for reserve to say
}

// Reserve asks for cost tokens of key for an event in a tier ("": none), at a slot at most horizon (1 s at most) ahead; a
// horizon below 0 takes none and asks only where the event waits. An error says nothing about whether tokens were taken:
// asking again may waste some, never exceed the limit. Only a call that is under way when ctx ends may take any.
func (s *Store) Reserve(ctx context.Context, key, tier string, cost int64, horizon time.Duration) (limiter.Decision, error) {
	if ctx.Err() != nil {
		return limiter.Decision{}, context.Cause(ctx)
	}
	rule := s.rule(key, tier)
	if cost > rule.maxCost {
		return limiter.Decision{Verdict: limiter.Never}, nil
	}
	if s.opt.MaxWait > 0 {
		horizon = min(horizon, s.opt.MaxWait)
	}
	b := s.shard(key).bundle
	way := b.reserve
	if rule.plain && horizon >= 0 && !b.detours.has(key) {
		way = b.take
	}
	r, err := way.do(ctx, awaited{reservation{key, rule, cost, min(horizon, time.Second)}, ctx})
	if err == nil {
		err = r.err
	}
	return r.Decision, err
}

// passOn lets reserve answer what take left open, before any later events of these keys.
func (b *bundle) passOn(calls []*call[awaited, reserved]) {
	b.reserve.add(calls...)
	for _, c := range calls {
		b.detours.add(c.q.key)
	}
}

// group is the equal reservations in a batch, in the order of asking.
type group struct {
	reservation
	shard   *shard
	members []int // places in the batch
	alike   alike // of take
}

// runReserve carries out a batch in one call for each 256 keys.
func (b *bundle) runReserve(batch []awaited) ([]reserved, error) {
	at := make(map[reservation]int, len(batch))
	var groups []group
	for i, r := range batch {
		g, ok := at[r.reservation]
		if !ok {
			g = len(groups)
			at[r.reservation] = g
			groups = append(groups, group{reservation: r.reservation, shard: b.shard(r.key)})
		}
		groups[g].members = append(groups[g].members, i)
	}
	out := make([]reserved, len(batch))
	for groups := range slices.Chunk(groups, maxKeys) {
		if err := b.inEpochs(groups, batch, out, b.reserveGroups); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// inEpochs lets call carry out the groups whose shards' epochs are known.
func (b *bundle) inEpochs(groups []group, batch []awaited, out []reserved, call func(*epochs, []group, []reserved) error) error {
	if b.alone { // nobody else begins them
		b.begin(groups)
	}
	of, able := inTheir(groups, batch, out)
	if len(able) == 0 {
		return nil
	}
	err := call(of, able, out)
	if !b.alone || !errors.Is(err, ErrEpoch) {
		return err
	}
	b.begin(able)
	if of, able = inTheir(able, batch, out); len(able) == 0 {
		return nil
	}
	return call(of, able, out)
}

// inTheir answers the groups whose shards' epochs are known, with those members who still wait, and these epochs; the members of the
// others are told why.
func inTheir(groups []group, batch []awaited, out []reserved) (of *epochs, able []group) {
	of = newEpochs()
	for _, g := range groups {
		if g.members = stillWaiting(g.members, batch, out); len(g.members) == 0 {
			continue
		}
		if of.add(g.shard) {
			able = append(able, g)
			continue
		}
		err := g.shard.whyUnknown()
		for _, member := range g.members {
			out[member].err = err
		}
	}
	return of, able
}

// stillWaiting answers the members whose callers wait: a batch may be several calls, and any of them may have taken long.
func stillWaiting(members []int, batch []awaited, out []reserved) []int {
	waiting := members[:0:0]
	for _, i := range members {
		if ctx := batch[i].ctx; ctx.Err() != nil {
			out[i] = reserved{err: context.Cause(ctx)}
		} else {
			waiting = append(waiting, i)
		}
	}
	return waiting
}

// answer tells the members of a group what became of them.
func (b *bundle) answer(g group, a answer, r reply, out []reserved) {
	if a.code < 0 {
		g.shard.damaged(g.key)
	}
	each := g.rule.each
	if b.alone { // what is refused doesn't queue
		each = 0
	}
	for n, member := range g.members {
		out[member] = reserved{Decision: a.decide(int64(n), g.cost, r, each, g.rule.allowance())}
		if g.rule.unlimited {
			out[member].Remaining = math.MaxInt64
		}
	}
}

// reserveGroups makes one call for groups of shards whose epochs are known.
func (b *bundle) reserveGroups(of *epochs, groups []group, out []reserved) error {
	keys := make([]string, 0, len(of.shards)+4*len(groups))
	for _, sh := range of.shards {
		keys = append(keys, sh.epochKey)
	}
	table := newTable(len(groups), func(i int) *rule { return groups[i].rule })
	args := append(b.callArgs(of, table.args, 1+5*len(groups)), b.mostWaiting())
	for i, g := range groups {
		keys = g.shard.keys(keys, g.key)
		horizon := int64(-1)
		if g.horizon >= 0 {
			horizon = g.horizon.Microseconds()
		}
		args = append(args, of.places[g.shard], table.places[i], len(g.members), g.cost, horizon)
	}
	b.metrics.keys.Observe(float64(len(groups)))
	r, err := b.callEpochs(reserveScript, of, keys, args)
	if err != nil {
		return err
	}
	for i, g := range groups {
		b.answer(g, readAnswer(r.values[i]), r, out)
	}
	return nil
}

// mostWaiting is how many events of a key may wait; -1: any number.
func (s *Store) mostWaiting() int64 {
	switch {
	case s.alone:
		return 0
	case s.opt.KeyMaxWaiting > 0:
		return s.opt.KeyMaxWaiting
	}
	return -1
}

// answer is what the script says to one group.
type answer struct {
	code, granted, parked int64
	wait                  int64 // us until one more could go, if nothing were ahead; -1: not known
	ahead                 int64
	tokens, rest          int64 // before, of the limit with the fewest
	scarcest              int64 // that limit's place
	extra                 int64 // what those ahead cost beyond one token each
	slots                 []any // us until each promised slot
}

func readAnswer(value any) answer {
	v, _ := value.([]any)
	return answer{
		integer(v[0]), integer(v[1]), integer(v[2]), integer(v[3]), integer(v[4]), integer(v[5]), integer(v[6]),
		integer(v[7]), integer(v[8]), v[9:],
	}
}

// decide says what the answer means for the event number n of the group, counted from 0. each is what a token adds to the
// wait of those behind it.
func (a answer) decide(n, cost int64, r reply, each, allowance time.Duration) limiter.Decision {
	remaining := max(0, a.tokens-cost*min(n+1, a.granted+int64(len(a.slots))))
	if n < a.granted {
		return limiter.Decision{
			Verdict: limiter.Go, At: r.ran, Stale: r.ran.Add(allowance),
			Remaining: remaining, Scarcest: int(a.scarcest),
		}
	}
	n -= a.granted
	if n < int64(len(a.slots)) {
		wait := micros(integer(a.slots[n]))
		return limiter.Decision{
			Verdict: limiter.Hold, Reason: limiter.Throttled,
			At: r.ran.Add(wait), Stale: r.ran.Add(wait + allowance),
			Remaining: remaining, Scarcest: int(a.scarcest),
		}
	}
	n -= int64(len(a.slots))
	d := limiter.Decision{
		Verdict: limiter.Park, Reason: a.reason(), Ahead: a.ahead + n, AheadCost: a.ahead + a.extra + n*cost, Counted: a.code >= 0,
		Remaining: remaining, Scarcest: int(a.scarcest),
	}
	switch longest := time.Duration(math.MaxInt64 / 2); {
	case a.wait >= 0 && each > 0 && d.AheadCost > int64(longest/each):
		d.Wait = longest // of a million events at 1/d: more than a duration can tell
	case a.wait >= 0:
		d.Wait = micros(a.wait) + time.Duration(d.AheadCost)*each
	}
	if n >= a.parked {
		d.Verdict, d.Counted = limiter.Overflow, false
	}
	return d
}

func (a answer) reason() limiter.Reason {
	switch a.code {
	case 0:
		return limiter.Throttled
	case 1:
		return limiter.LaneAhead
	case 2:
		return limiter.Cooling
	case 3:
		return limiter.Paused
	default:
		return limiter.Damaged
	}
}

// damaged counts a key whose state can't be read, and tells of one in a second.
func (sh *shard) damaged(key string) {
	sh.metrics.errors.WithLabelValues("damaged").Inc()
	now := time.Now().Unix()
	if sh.toldDamaged.Swap(now) == now {
		return
	}
	sh.opt.Log.Error("the state of a key in Redis is damaged; its events wait until \"sluice lanes repair\" has mended it",
		"key", key, "redis_key", sh.keys(nil, key)[0])
}
