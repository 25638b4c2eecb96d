package redisstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"sluice/limiter"
	"sluice/pipeline"
)

// Park adds an event, whose body is stored, to its lane.
func (s *Store) Park(ctx context.Context, r pipeline.ParkRequest) (pipeline.LaneInfo, error) {
	return s.shard(r.Key).park.do(ctx, r)
}

// parking is the events of one entry, as places in the batch. Those of a key go together, but for those that say more of it.
type parking struct {
	pipeline.ParkRequest // the first
	events               []int
}

func parkings(batch []pipeline.ParkRequest) (all []parking) {
	type lane struct{ key, tier string }
	at := make(map[lane]int, len(batch))
	for i, r := range batch {
		if r.Sleep > 0 || r.Failure != "" || r.Entry.Collapse != "" {
			all = append(all, parking{r, []int{i}})
			continue
		}
		lane := lane{r.Key, r.Tier}
		p, ok := at[lane]
		if !ok {
			p = len(all)
			at[lane] = p
			all = append(all, parking{ParkRequest: r})
		}
		all[p].events = append(all[p].events, i)
	}
	return all
}

func (sh *shard) runPark(batch []pipeline.ParkRequest) ([]pipeline.LaneInfo, error) {
	parkings := parkings(batch)
	keys := append(make([]string, 0, 2+5*len(parkings)), sh.epochKey, sh.dueKey)
	sh.ruling.RLock()
	defer sh.ruling.RUnlock()
	table := newTable(len(parkings), func(i int) *rule { return sh.rule(parkings[i].Key, parkings[i].Tier) })
	args := append(slices.Grow(table.args, 1+6*len(parkings)+4*len(batch)), lead.Microseconds())
	for i, p := range parkings {
		keys = sh.laneKeys(keys, p.Key)
		args = append(args, limiter.EncodeKey(p.Key), table.places[i], p.Tier, p.Sleep.Microseconds(), p.Failure, len(p.events))
		for _, event := range p.events {
			r := batch[event]
			args = append(args, member(r.Entry), r.Entry.Order, bit(r.Counted), r.After.Microseconds())
		}
	}
	r, err := sh.run(parkScript, keys, args)
	if err != nil {
		return nil, err
	}
	out := make([]pipeline.LaneInfo, len(batch))
	values := r.values
	for _, p := range parkings {
		values = sh.parked(p, values, out)
	}
	return out, nil
}

// parked tells the events of an entry what became of them, and answers the values behind the entry's.
func (sh *shard) parked(p parking, values []any, out []pipeline.LaneInfo) []any {
	info := sh.laneInfo(values[0], values[1])
	if info.Waiting < 0 {
		sh.damaged(p.Key)
		info.Waiting = 1 // others of the key wait with it
	}
	info.Extra = integer(values[2])
	for _, event := range p.events {
		out[event] = info
	}
	dropped := integer(values[3])
	values = values[4:]
	for range dropped {
		event := p.events[integer(values[0])-1]
		over, _ := values[1].(string)
		var err error
		if out[event].Collapsed, err = collapsed(over); err != nil {
			sh.damaged(p.Key) // the event itself has its place; the other stays until the lane is mended
		}
		values = values[2:]
	}
	return values
}

func (sh *shard) laneInfo(waiting, next any) pipeline.LaneInfo {
	info := pipeline.LaneInfo{Waiting: integer(waiting), Next: micros(integer(next))}
	if integer(next) < 0 {
		info.Next = -1
	}
	sh.due(info.Next)
	return info
}

// longestLook bounds how long a worker doesn't look at a shard: lanes that others parked or gave back are found by it.
const longestLook = 250 * time.Millisecond

// Claim takes up to most keys whose lanes are due. Only shards that are due as far as this worker knows are asked.
func (s *Store) Claim(ctx context.Context, most int) ([]string, time.Duration, error) {
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex
		keys []string
		errs []error
	)
	now := time.Now()
	per := max(1, min(maxKeys, most/limiter.Shards))
	for _, sh := range s.shards {
		sh.mu.Lock()
		ask := !sh.look.After(now)
		sh.mu.Unlock()
		if !ask {
			continue
		}
		wg.Go(func() {
			got, err := sh.claim(per)
			mu.Lock()
			defer mu.Unlock()
			keys = append(keys, got...)
			if err != nil {
				errs = append(errs, err)
			}
		})
	}
	wg.Wait()
	next := now.Add(longestLook)
	for _, sh := range s.shards {
		sh.mu.Lock()
		if sh.look.Before(next) {
			next = sh.look
		}
		sh.mu.Unlock()
	}
	return keys, max(0, time.Until(next)), errors.Join(errs...)
}

func (sh *shard) claim(most int) ([]string, error) {
	// Set before the call, so that what becomes due meanwhile isn't forgotten.
	sh.mu.Lock()
	sh.look = time.Now().Add(longestLook)
	sh.mu.Unlock()
	r, err := sh.run(claimScript, []string{sh.epochKey, sh.dueKey}, []any{most})
	if err != nil {
		return nil, err
	}
	sh.due(micros(max(-1, integer(r.values[0]))))
	keys := make([]string, 0, len(r.values)-1)
	for _, v := range r.values[1:] {
		token, _ := v.(string)
		key, err := limiter.DecodeKey(token)
		if err != nil {
			sh.opt.Log.Error("an unreadable key in the index is left alone", "shard", sh.tag, "err", err)
			continue
		}
		keys = append(keys, key)
	}
	return keys, nil
}

// Lease takes or renews the lease of a lane and books the slots of its next events.
func (s *Store) Lease(ctx context.Context, r pipeline.LeaseRequest) (pipeline.Lease, error) {
	return s.shard(r.Key).lease.do(ctx, r)
}

// maxLeaseCalls is how often a lane is asked for whose class changes between two calls; each takes an event with another tier.
const maxLeaseCalls = 10

func (sh *shard) runLease(batch []pipeline.LeaseRequest) ([]pipeline.Lease, error) {
	out := make([]pipeline.Lease, len(batch))
	todo := make([]int, len(batch))
	for i := range todo {
		todo[i] = i
	}
	for range maxLeaseCalls {
		var err error
		if todo, err = sh.leaseSome(batch, todo, out); err != nil {
			return nil, err
		}
		if len(todo) == 0 {
			return out, nil
		}
	}
	return nil, fmt.Errorf("redis: the tier of %q changes with every call", batch[todo[0]].Key)
}

// leaseSome asks for those of the batch with the places todo. It answers the places of those whose lane is of another tier,
// which stands in the batch now: they are to be asked for again.
func (sh *shard) leaseSome(batch []pipeline.LeaseRequest, todo []int, out []pipeline.Lease) (again []int, err error) {
	keys := append(make([]string, 0, 2+5*len(todo)), sh.epochKey, sh.dueKey)
	sh.ruling.RLock()
	defer sh.ruling.RUnlock()
	ruleOf := make([]*rule, len(todo))
	for i, place := range todo {
		ruleOf[i] = sh.rule(batch[place].Key, batch[place].Tier)
	}
	table := newTable(len(todo), func(i int) *rule { return ruleOf[i] })
	args := append(slices.Grow(table.args, 4+9*len(todo)), lead.Microseconds(), sh.opt.Worker, leaseTime.Microseconds(),
		sh.opt.KeyConcurrency)
	for i, place := range todo {
		r := batch[place]
		upTo := int64(-1)
		if r.Ordered {
			upTo = int64(r.UpTo)
		}
		keys = sh.laneKeys(keys, r.Key)
		args = append(args, limiter.EncodeKey(r.Key), table.places[i], r.Tier, r.Token, r.Max,
			r.Horizon.Microseconds(), min(r.Notice, r.Horizon).Microseconds(), upTo, r.Stray)
	}
	begun := time.Now()
	r, err := sh.run(leaseScript, keys, args)
	if err != nil {
		return nil, err
	}
	for i, place := range todo {
		v, _ := r.values[i].([]any)
		switch integer(v[0]) {
		case otherClass:
			batch[place].Tier, _ = v[4].(string)
			again = append(again, place)
			continue
		case -1:
			sh.damaged(batch[place].Key)
		}
		if out[place], err = sh.readLease(r, i, ruleOf[i].allowance()); err != nil {
			// The other lanes of the batch are well; this one's lease runs out.
			sh.damaged(batch[place].Key)
			out[place] = pipeline.Lease{LaneInfo: pipeline.LaneInfo{Waiting: out[place].Waiting, Next: leaseTime}}
		}
		out[place].Tier, out[place].Until = batch[place].Tier, begun.Add(leaseTime)
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

func (sh *shard) readLease(r reply, i int, allowance time.Duration) (pipeline.Lease, error) {
	v, _ := r.values[i].([]any)
	l := pipeline.Lease{Token: integer(v[1]), LaneInfo: sh.laneInfo(v[2], v[3]), Barred: uint64(integer(v[4]))}
	for e := v[5:]; len(e) >= 3; e = e[3:] {
		m, _ := e[0].(string)
		o, _ := e[1].(string)
		order, err := strconv.ParseUint(o, 10, 64)
		if err != nil {
			return l, fmt.Errorf("redis: order %q of a waiting event: %w", o, err)
		}
		entry, err := parseMember(m, order)
		if err != nil {
			return l, fmt.Errorf("redis: waiting event %q: %w", m, err)
		}
		slot := micros(integer(e[2]))
		l.Events = append(l.Events, pipeline.Leased{
			Entry: entry, At: r.ran.Add(slot), Stale: r.ran.Add(slot + allowance),
			Useless: slot == noSlot, Costly: slot == neverSlot,
		})
	}
	return l, nil
}

type settled struct {
	info   pipeline.LaneInfo
	fenced bool
}

// Settle says what became of leased events; [pipeline.ErrFenced]: another worker goes on with them.
func (s *Store) Settle(ctx context.Context, r pipeline.SettleRequest) (pipeline.LaneInfo, error) {
	out, err := s.shard(r.Key).settle.do(ctx, r)
	if err == nil && out.fenced {
		err = pipeline.ErrFenced
	}
	return out.info, err
}

func (sh *shard) runSettle(batch []pipeline.SettleRequest) ([]settled, error) {
	keys := append(make([]string, 0, 2+5*len(batch)), sh.epochKey, sh.dueKey)
	sh.ruling.RLock()
	defer sh.ruling.RUnlock()
	table := newTable(len(batch), func(i int) *rule { return sh.rule(batch[i].Key, batch[i].Tier) })
	args := append(slices.Grow(table.args, 2+14*len(batch)), lead.Microseconds(), leaseTime.Microseconds())
	for i, r := range batch {
		keys = sh.laneKeys(keys, r.Key)
		args = append(args, limiter.EncodeKey(r.Key), table.places[i], r.Tier, r.Token, bit(r.Release), bit(r.Healthy), r.Sleep.Microseconds(),
			r.Failure, len(r.Events))
		for _, e := range r.Events {
			args = append(args, member(e.Was), bit(e.Fate == pipeline.Back), member(e.Now), e.Now.Order,
				e.After.Microseconds())
		}
	}
	r, err := sh.run(settleScript, keys, args)
	if err != nil {
		return nil, err
	}
	out := make([]settled, len(batch))
	for i := range out {
		code := integer(r.values[3*i])
		out[i] = settled{info: sh.laneInfo(r.values[3*i+1], r.values[3*i+2]), fenced: code == 3}
		if code < 0 {
			sh.damaged(batch[i].Key)
		}
	}
	return out, nil
}

func bit(b bool) int {
	if b {
		return 1
	}
	return 0
}
