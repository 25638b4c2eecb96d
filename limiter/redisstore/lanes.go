package redisstore

import (
	"context"
	"slices"
	"time"

	"sluice/limiter"
	"sluice/pipeline"
)

// Park adds an event, whose body is stored, to its lane.
func (s *Store) Park(ctx context.Context, r pipeline.ParkRequest) (pipeline.LaneInfo, error) {
	return ask(ctx, s.shard(r.Key).bundle.park, r)
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

func (b *bundle) runPark(batch []pipeline.ParkRequest) ([]answered[pipeline.LaneInfo], error) {
	out := make([]answered[pipeline.LaneInfo], len(batch))
	of := newEpochs()
	able := slices.DeleteFunc(parkings(batch), func(p parking) bool {
		if of.add(b.shard(p.Key)) {
			return false
		}
		for _, event := range p.events {
			out[event].err = ErrEpoch
		}
		return true
	})
	if len(able) == 0 {
		return out, nil
	}
	if err := b.parkIn(of, able, batch, out); err != nil {
		return nil, err
	}
	return out, nil
}

// parkIn makes one call for entries of shards whose epochs are known.
func (b *bundle) parkIn(of *epochs, parkings []parking, batch []pipeline.ParkRequest, out []answered[pipeline.LaneInfo]) error {
	b.ruling.RLock()
	defer b.ruling.RUnlock()
	ruleOf := make([]*rule, len(parkings))
	for i, p := range parkings {
		ruleOf[i] = b.rule(p.Key, p.Tier)
	}
	table := newTable(len(parkings), func(i int) *rule { return ruleOf[i] })
	keys := of.keys(5 * len(parkings))
	args := append(b.callArgs(of, table.args, 1+7*len(parkings)+4*len(batch)), lead.Microseconds())
	for i, p := range parkings {
		sh := b.shard(p.Key)
		token := limiter.EncodeKey(p.Key)
		keys = sh.laneKeysOf(keys, token)
		args = append(args, of.places[sh], token, table.places[i], p.Tier, p.Sleep.Microseconds(), p.Failure, len(p.events))
		for _, event := range p.events {
			r := batch[event]
			args = append(args, member(r.Entry), r.Entry.Order, bit(r.Counted), r.After.Microseconds())
		}
	}
	r, err := b.callEpochs(parkScript, of, keys, args)
	if err != nil {
		return err
	}
	values := r.values
	for i, p := range parkings {
		sh := b.shard(p.Key)
		values = sh.parked(p, of.lanesOf(sh), ruleOf[i].each, values, out)
	}
	return nil
}

// parked tells the events of an entry what became of them, and answers the values behind the entry's.
func (sh *shard) parked(p parking, lanes int64, each time.Duration, values []any, out []answered[pipeline.LaneInfo]) []any {
	info := sh.laneInfo(values[0], values[1])
	if info.Waiting < 0 {
		sh.damaged(p.Key)
		info.Waiting = 1 // others of the key wait with it
	}
	info.Extra, info.Each = integer(values[2]), each
	for _, event := range p.events {
		out[event].r = info
	}
	dropped := integer(values[3])
	values = values[4:]
	for range dropped {
		event := p.events[integer(values[0])-1]
		over, _ := values[1].(string)
		var err error
		if out[event].r.Collapsed, err = collapsed(over, lanes); err != nil {
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

// Settle says what became of leased events; [pipeline.ErrFenced]: another worker goes on with them.
func (s *Store) Settle(ctx context.Context, r pipeline.SettleRequest) (pipeline.LaneInfo, error) {
	return ask(ctx, s.shard(r.Key).bundle.settle, r)
}

func (b *bundle) runSettle(batch []pipeline.SettleRequest) ([]answered[pipeline.LaneInfo], error) {
	b.ruling.RLock()
	defer b.ruling.RUnlock()
	out := make([]answered[pipeline.LaneInfo], len(batch))
	of, able := known(b, batch, out, func(r pipeline.SettleRequest) string { return r.Key })
	if len(able) == 0 {
		return out, nil
	}
	table := newTable(len(able), func(i int) *rule { return b.rule(batch[able[i]].Key, batch[able[i]].Tier) })
	keys := of.keys(5 * len(able))
	args := append(b.callArgs(of, table.args, 2+15*len(able)), lead.Microseconds(), leaseTime.Microseconds())
	for i, place := range able {
		r := batch[place]
		sh := b.shard(r.Key)
		token := limiter.EncodeKey(r.Key)
		keys = sh.laneKeysOf(keys, token)
		args = append(args, of.places[sh], token, table.places[i], r.Tier, r.Token, bit(r.Release), bit(r.Healthy), r.Sleep.Microseconds(),
			r.Failure, len(r.Events))
		for _, e := range r.Events {
			args = append(args, member(e.Was), bit(e.Fate == pipeline.Back), member(e.Now), e.Now.Order,
				e.After.Microseconds())
		}
	}
	r, err := b.callEpochs(settleScript, of, keys, args)
	if err != nil {
		return nil, err
	}
	for i, place := range able {
		sh := b.shard(batch[place].Key)
		out[place].r = sh.laneInfo(r.values[3*i+1], r.values[3*i+2])
		switch code := integer(r.values[3*i]); {
		case code == 3:
			out[place].err = pipeline.ErrFenced
		case code < 0:
			sh.damaged(batch[place].Key)
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
