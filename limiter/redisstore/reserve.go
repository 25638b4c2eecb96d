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

// Reserve asks for cost tokens of key for an event in a tier ("": none), at a slot at most horizon (1 s at most) ahead; a horizon below 0 takes none and asks
// only where the event waits. An error says nothing about whether tokens were taken: asking again may waste some, never
// exceed the limit.
func (s *Store) Reserve(ctx context.Context, key, tier string, cost int64, horizon time.Duration) (limiter.Decision, error) {
	rule := s.rule(key, tier)
	if cost > rule.maxCost {
		return limiter.Decision{Verdict: limiter.Never}, nil
	}
	if s.opt.MaxWait > 0 {
		horizon = min(horizon, s.opt.MaxWait)
	}
	return s.shard(key).reserve.do(ctx, reservation{key, rule, cost, min(horizon, time.Second)})
}

// group is the equal reservations in a batch, in the order of asking.
type group struct {
	reservation
	members []int // places in the batch
}

// runReserve carries out a batch in one call for each 256 keys.
func (sh *shard) runReserve(batch []reservation) ([]limiter.Decision, error) {
	at := make(map[reservation]int, len(batch))
	var groups []group
	for i, r := range batch {
		g, ok := at[r]
		if !ok {
			g = len(groups)
			at[r] = g
			groups = append(groups, group{reservation: r})
		}
		groups[g].members = append(groups[g].members, i)
	}
	out := make([]limiter.Decision, len(batch))
	for len(groups) > 0 {
		n := min(len(groups), maxKeys)
		if err := sh.reserveGroups(groups[:n], out); err != nil {
			return nil, err
		}
		groups = groups[n:]
	}
	return out, nil
}

func (sh *shard) reserveGroups(groups []group, out []limiter.Decision) error {
	keys := make([]string, 1, 1+4*len(groups))
	keys[0] = sh.epochKey
	waiting := int64(-1)
	switch {
	case sh.alone:
		waiting = 0
	case sh.opt.KeyMaxWaiting > 0:
		waiting = sh.opt.KeyMaxWaiting
	}
	table := newTable(len(groups), func(i int) *rule { return groups[i].rule })
	args := append(slices.Grow(table.args, 1+4*len(groups)), waiting)
	for i, g := range groups {
		keys = sh.keys(keys, g.key)
		horizon := int64(-1)
		if g.horizon >= 0 {
			horizon = g.horizon.Microseconds()
		}
		args = append(args, table.places[i], len(g.members), g.cost, horizon)
	}
	sh.metrics.keys.Observe(float64(len(groups)))
	r, err := sh.run(reserveScript, keys, args)
	if sh.alone && errors.Is(err, ErrEpoch) { // nobody else begins it
		if err = sh.begin(); err == nil {
			r, err = sh.run(reserveScript, keys, args)
		}
	}
	if err != nil {
		return err
	}
	for i, g := range groups {
		a := readAnswer(r.values[i])
		if a.code < 0 {
			sh.damaged(g.key)
		}
		each := g.rule.each
		if sh.alone { // what is refused doesn't queue
			each = 0
		}
		for n, member := range g.members {
			out[member] = a.decide(int64(n), g.cost, r, each, g.rule.allowance())
			if g.rule.unlimited {
				out[member].Remaining = math.MaxInt64
			}
		}
	}
	return nil
}

// answer is what the script says to one group.
type answer struct {
	code, granted, parked int64
	wait                  int64 // us until one more could go, if nothing were ahead; -1: not known
	ahead                 int64
	tokens, rest          int64 // before, of the limit with the fewest
	scarcest              int64 // that limit's place
	slots                 []any // us until each promised slot
}

func readAnswer(value any) answer {
	v, _ := value.([]any)
	return answer{
		integer(v[0]), integer(v[1]), integer(v[2]), integer(v[3]), integer(v[4]), integer(v[5]), integer(v[6]),
		integer(v[7]), v[8:],
	}
}

// decide says what the answer means for the event number n of the group, counted from 0. each is what an event adds to the
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
		Verdict: limiter.Park, Reason: a.reason(), Ahead: a.ahead + n, Counted: a.code >= 0,
		Remaining: remaining, Scarcest: int(a.scarcest),
	}
	if a.wait >= 0 {
		d.Wait = micros(a.wait) + time.Duration(a.ahead+n*cost)*each
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
	sh.opt.Log.Error("the state of a key in Redis is damaged; its events wait until it is deleted",
		"key", key, "redis_key", sh.keys(nil, key)[0])
}
