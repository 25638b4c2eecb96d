package redisstore

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"sluice/limiter"
	"sluice/pipeline"
)

const (
	purgeBatch   = 1024        // events leased at a time: deleted well within a lease
	purgers      = 64          // bodies deleted at a time
	purgePause   = time.Second // for which a worker that holds the lane gets no more events
	purgeAgain   = 50 * time.Millisecond
	purgePatient = 45 * time.Second // a worker's pushes take so long at most, or its lease ends
)

// Purge deletes the events of a key that wait when it begins; remove deletes the body of one. Workers may run: like them it
// takes the lane's lease, for which whoever holds it gets no more events, and each body goes before its place. What can't be removed
// keeps its place. An event that a worker is about to push is pushed. The store needn't be open.
func (s *Store) Purge(ctx context.Context, key string, remove func(context.Context, pipeline.Entry) error) (purged int64, err error) {
	sh, err := s.opened(ctx, key)
	if err != nil {
		return 0, err
	}
	p := &purge{shard: sh, key: key, remove: remove}
	left, err := p.begin(ctx)
	for err == nil && left > 0 && len(p.events) > 0 {
		left -= int64(len(p.events))
		if err = p.delete(ctx); err == nil && left > 0 {
			_, err = p.lease(min(left, purgeBatch))
		}
	}
	return p.purged, errors.Join(err, p.end(ctx))
}

// purge is one Purge on its way.
type purge struct {
	*shard
	key    string
	remove func(context.Context, pipeline.Entry) error
	token  int64
	events []pipeline.Entry // leased and not settled
	purged int64
}

// errHeld says who holds the lane.
type errHeld struct{ holder string }

func (e *errHeld) Error() string {
	return fmt.Sprintf("worker %s holds the lane, and its pushes don't end", e.holder)
}

// begin takes the lease, after whoever holds it, with the first events. It answers how many there are.
func (p *purge) begin(ctx context.Context) (waiting int64, err error) {
	for end := time.Now().Add(purgePatient); ; {
		waiting, err = p.lease(purgeBatch)
		if _, held := errors.AsType[*errHeld](err); !held || time.Now().After(end) {
			return waiting, err
		}
		select {
		case <-ctx.Done():
			return 0, errors.Join(context.Cause(ctx), err)
		case <-time.After(purgeAgain):
		}
	}
}

// lease takes or renews the lease with the next events, and answers how many waited.
func (p *purge) lease(most int64) (waiting int64, err error) {
	of := p.rule(p.key, "")
	table := newTable(1, func(int) *rule { return of })
	args := append(table.args, limiter.EncodeKey(p.key), table.places[0], p.opt.Worker, leaseTime.Microseconds(), p.token, most,
		purgePause.Microseconds())
	r, err := p.run(purgeScript, p.keys([]string{p.epochKey, p.dueKey}, p.key), args)
	if err != nil {
		return 0, err
	}
	switch v := r.values; integer(v[0]) {
	case 2:
		holder, _ := v[3].(string)
		return 0, &errHeld{holder}
	case 3:
		p.token = 0
		return 0, pipeline.ErrFenced
	case -1:
		return 0, errors.New("the state of the key in Redis is damaged")
	}
	p.token = integer(r.values[1])
	for v := r.values[4:]; len(v) >= 2; v = v[2:] {
		m, _ := v[0].(string)
		order, _ := v[1].(string)
		e, err := parseMember(m, order)
		if err != nil {
			return 0, fmt.Errorf("redis: waiting event %q with order %q: %w", m, order, err)
		}
		e.Created = r.lanes
		p.events = append(p.events, e)
	}
	return integer(r.values[2]), nil
}

// delete removes what is leased, and settles it.
func (p *purge) delete(ctx context.Context) error {
	var g errgroup.Group
	g.SetLimit(purgers)
	req := pipeline.SettleRequest{Key: p.key, Token: p.token, Events: make([]pipeline.Settlement, len(p.events))}
	var removed atomic.Int64
	for i, e := range p.events {
		req.Events[i] = pipeline.Settlement{Was: e, Now: e, Fate: pipeline.Back}
		g.Go(func() error {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			err := p.remove(ctx, e)
			if err == nil {
				req.Events[i].Fate = pipeline.Done
				removed.Add(1)
			}
			return err
		})
	}
	err := g.Wait()
	p.events = nil
	p.purged += removed.Load()
	_, settled := p.Settle(context.WithoutCancel(ctx), req)
	return errors.Join(err, settled)
}

// end gives the lease back, with what is left of it.
func (p *purge) end(ctx context.Context) error {
	if p.token == 0 {
		return nil
	}
	_, err := p.Settle(context.WithoutCancel(ctx), pipeline.SettleRequest{Key: p.key, Token: p.token, Release: true})
	return err
}

// Reset forgets the bucket of a key, its receiver's cool-down and failures: it is as new, and may have a burst at once. Its waiting
// events stay. The answer says whether there was anything to forget. The store needn't be open.
func (s *Store) Reset(ctx context.Context, key string) (was bool, err error) {
	sh, err := s.opened(ctx, key)
	if err != nil {
		return false, err
	}
	keys := []string{sh.epochKey, sh.dueKey, sh.keys(nil, key)[0]}
	r, err := sh.run(resetScript, keys, []any{limiter.EncodeKey(key)})
	if err != nil {
		return false, err
	}
	return integer(r.values[0]) > 0, nil
}
