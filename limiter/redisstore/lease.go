package redisstore

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"sluice/limiter"
	"sluice/pipeline"
)

// Lease takes or renews the lease of a lane and books the slots of its next events.
func (s *Store) Lease(ctx context.Context, r pipeline.LeaseRequest) (pipeline.Lease, error) {
	return ask(ctx, s.shard(r.Key).bundle.lease, r)
}

// maxLeaseCalls is how often a lane is asked for whose class changes between two calls; each takes an event with another tier.
const maxLeaseCalls = 10

func (b *bundle) runLease(batch []pipeline.LeaseRequest) ([]answered[pipeline.Lease], error) {
	out := make([]answered[pipeline.Lease], len(batch))
	of, todo := known(b, batch, out, func(r pipeline.LeaseRequest) string { return r.Key })
	for calls := 0; len(todo) > 0; calls++ {
		if calls == maxLeaseCalls {
			return nil, fmt.Errorf("redis: the tier of %q changes with every call", batch[todo[0]].Key)
		}
		var err error
		if todo, err = b.leaseSome(of, batch, todo, out); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// leaseSome asks for those of the batch with the places todo. It answers the places of those whose lane is of another tier,
// which stands in the batch now: they are to be asked for again.
func (b *bundle) leaseSome(of *epochs, batch []pipeline.LeaseRequest, todo []int, out []answered[pipeline.Lease]) (again []int, err error) {
	b.ruling.RLock()
	defer b.ruling.RUnlock()
	ruleOf := make([]*rule, len(todo))
	for i, place := range todo {
		ruleOf[i] = b.rule(batch[place].Key, batch[place].Tier)
	}
	table := newTable(len(todo), func(i int) *rule { return ruleOf[i] })
	keys := of.keys(5 * len(todo))
	args := append(b.callArgs(of, table.args, 4+10*len(todo)), lead.Microseconds(), b.opt.Worker, leaseTime.Microseconds(),
		b.opt.KeyConcurrency)
	for i, place := range todo {
		r := batch[place]
		upTo := ""
		if r.Ordered {
			upTo = strconv.FormatUint(r.UpTo, 10)
		}
		sh := b.shard(r.Key)
		token := limiter.EncodeKey(r.Key)
		keys = sh.laneKeysOf(keys, token)
		args = append(args, of.places[sh], token, table.places[i], r.Tier, r.Token, r.Max,
			r.Horizon.Microseconds(), min(r.Notice, r.Horizon).Microseconds(), upTo, r.Stray)
	}
	begun := time.Now()
	r, err := b.callEpochs(leaseScript, of, keys, args)
	if err != nil {
		return nil, err
	}
	for i, place := range todo {
		sh := b.shard(batch[place].Key)
		v, _ := r.values[i].([]any)
		switch integer(v[0]) {
		case otherClass:
			batch[place].Tier, _ = v[4].(string)
			again = append(again, place)
			continue
		case -1:
			sh.damaged(batch[place].Key)
		}
		lease, err := sh.readLease(r, i, of.lanesOf(sh), ruleOf[i].allowance())
		if err != nil {
			// The other lanes of the batch are well; this one's lease runs out.
			sh.damaged(batch[place].Key)
			lease = pipeline.Lease{LaneInfo: pipeline.LaneInfo{Waiting: lease.Waiting, Next: leaseTime}}
		}
		lease.Tier, lease.Until = batch[place].Tier, begun.Add(leaseTime)
		out[place].r = lease
	}
	return again, nil
}

// What the script says instead of a time until the slot of an event that takes no tokens.
const (
	noSlot    = -1 * time.Microsecond
	neverSlot = -2 * time.Microsecond
)

// otherClass is the answer of the script to who takes a lane for one of another class.
const otherClass = 4

func (sh *shard) readLease(r reply, i int, lanes int64, allowance time.Duration) (pipeline.Lease, error) {
	v, _ := r.values[i].([]any)
	l := pipeline.Lease{Token: integer(v[1]), LaneInfo: sh.laneInfo(v[2], v[3]), Fails: int(integer(v[5]))}
	barred, _ := v[4].(string)
	var err error
	if l.Barred, err = sequence(barred); err != nil {
		return l, fmt.Errorf("redis: the place %q of a waiting event: %w", barred, err)
	}
	for e := v[6:]; len(e) >= 3; e = e[3:] {
		m, _ := e[0].(string)
		order, _ := e[1].(string)
		entry, err := parseMember(m, order)
		if err != nil {
			return l, fmt.Errorf("redis: waiting event %q with order %q: %w", m, order, err)
		}
		entry.Created = lanes
		slot := micros(integer(e[2]))
		l.Events = append(l.Events, pipeline.Leased{
			Entry: entry, At: r.ran.Add(slot), Stale: r.ran.Add(slot + allowance),
			Useless: slot == noSlot, Costly: slot == neverSlot,
		})
	}
	return l, nil
}
