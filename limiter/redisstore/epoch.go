package redisstore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"time"

	"sluice/limiter"
	"sluice/pipeline"
)

// Bodies is the stream of stored lane bodies, from which the index can be rebuilt.
type Bodies interface {
	// Created is when the stream was made, in Unix nanoseconds, as of the last call of Mark or Last: the index belongs to
	// this one stream.
	Created() int64
	// Mark makes the very first entry of the stream, and says whether this call made it.
	Mark(ctx context.Context) (bool, error)
	// Each calls fn for every stored body, in order, without its data.
	Each(ctx context.Context, fn func(ev *pipeline.Event, seq uint64) error) error
	// Last is the sequence of the last body that was stored, whether or not it is still there.
	Last(ctx context.Context) (uint64, error)
	// Between is Each for the bodies with after < seq <= last.
	Between(ctx context.Context, after, last uint64, fn func(ev *pipeline.Event, seq uint64) error) error
	// Has says whether the body of an event of key with that sequence is there.
	Has(ctx context.Context, key string, seq uint64) (bool, error)
}

// ErrFormat says that another version of sluice keeps its state in Redis. Drain with that version, or use another
// SLUICE_NAME.
var ErrFormat = errors.New("the format of the state in Redis is another")

// Start opens the store. It tries until it succeeds, ctx ends or the state has another format.
func (s *Store) Start(ctx context.Context) error {
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, 2*time.Second) {
		err := s.Open(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if errors.Is(err, ErrFormat) {
			return err
		}
		s.opt.Log.Warn("the state in Redis can't be opened; trying again", "in", wait, "err", err)
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(wait):
		}
	}
}

// Run opens the store anew whenever Redis has lost the state, verifies the index, and tells when clocks differ, until ctx ends.
func (s *Store) Run(ctx context.Context) {
	compare := time.NewTicker(compareEvery)
	defer compare.Stop()
	s.compareClocks()
	var verifying sync.WaitGroup
	verifying.Go(func() { s.reconcile(ctx) })
	defer verifying.Wait()
	for {
		select {
		case <-ctx.Done():
			return
		case <-compare.C:
			s.compareClocks()
		case <-s.lost:
			if s.Start(ctx) != nil {
				return
			}
		}
	}
}

// Opened says whether all of the state is known: calls are answered.
func (s *Store) Opened() bool {
	for _, sh := range s.shards {
		sh.mu.Lock()
		id := sh.epoch
		sh.mu.Unlock()
		if id == "" {
			return false
		}
	}
	return true
}

// errBuilding says that another worker rebuilds the index.
var errBuilding = errors.New("another worker rebuilds the index")

// Open learns the epoch of every shard, and rebuilds the shards whose state is missing or belongs to another lane stream.
func (s *Store) Open(ctx context.Context) error {
	s.opening.Lock()
	defer s.opening.Unlock()
	if err := s.askTime(ctx); err != nil {
		return err
	}
	first, err := s.opt.Bodies.Mark(ctx)
	if err != nil {
		return fmt.Errorf("mark the lane stream: %w", err)
	}
	created := s.opt.Bodies.Created()
	// Kept over attempts: only the one who made the mark knows that nothing was ever spent.
	s.fresh = s.fresh || first
	fresh := s.fresh
	var missing []*shard
	for _, sh := range s.shards {
		ok, err := sh.open(ctx, fresh)
		if err != nil {
			return err
		}
		if !ok {
			missing = append(missing, sh)
		}
	}
	if len(missing) > 0 {
		if err := s.rebuild(ctx, missing, fresh); err != nil {
			return err
		}
	}
	s.fresh = false
	s.created.Store(created)
	return nil
}

func (sh *shard) open(ctx context.Context, fresh bool) (bool, error) {
	v, err := sh.epochCall(ctx, nil, "open", bit(fresh))
	if err != nil || integer(v[0]) == 0 {
		return false, err
	}
	if integer(v[0]) == 2 {
		return false, fmt.Errorf("%w: it has %v, this version of sluice reads 1", ErrFormat, v[1])
	}
	id, _ := v[1].(string)
	sh.mu.Lock()
	if sh.epoch != id {
		sh.epoch, sh.calls, sh.look = id, 0, time.Time{}
	}
	sh.mu.Unlock()
	return true, nil
}

// rebuild indexes all bodies of the missing shards under one build and then lets their new epoch begin.
func (s *Store) rebuild(ctx context.Context, missing []*shard, fresh bool) error {
	name := s.build // kept over attempts: a build that was cut short is its own to go on with
	building := map[*shard]*indexing{}
	for _, sh := range missing {
		v, err := sh.epochCall(ctx, nil, "build", name)
		if err != nil {
			return err
		}
		if integer(v[0]) == 1 {
			building[sh] = &indexing{shard: sh, name: name, adopts: integer(v[1]) == 1}
		}
	}
	if len(building) == 0 {
		return errBuilding
	}
	start, n, gone := time.Now(), 0, int64(0)
	for _, b := range building {
		if !b.adopts {
			continue
		}
		fresh = false
		dropped, err := b.drop(ctx)
		if gone += dropped; err != nil {
			return err
		}
	}
	if gone > 0 {
		s.opt.Log.Error("events waited in a lane stream that is deleted, and are lost with it", "events", gone)
	}
	err := s.opt.Bodies.Each(ctx, func(ev *pipeline.Event, seq uint64) error {
		b := building[s.shard(ev.Key)]
		if b == nil {
			return nil
		}
		n++
		return b.add(ctx, ev, seq)
	})
	if err != nil {
		return fmt.Errorf("read the lane stream: %w", err)
	}
	for _, b := range building {
		if err := b.finish(ctx, fresh); err != nil {
			return err
		}
	}
	if !fresh {
		s.metrics.rebuilds.Inc()
		s.opt.Log.Warn("rebuilt the lane index: Redis held none, or one for another lane stream",
			"shards", len(building), "waiting", n, "took", time.Since(start).Round(time.Millisecond))
	}
	if len(building) < len(missing) {
		return errBuilding
	}
	return nil
}

// indexing collects the events of one shard into calls.
type indexing struct {
	*shard
	name   string
	adopts bool // the state is that of another lane stream
	keys   []string
	args   []any
}

// drop removes the lanes of another stream, and answers how many events they held. Their bodies are gone with it: each place
// would take a token and find none.
func (b *indexing) drop(ctx context.Context) (events int64, err error) {
	var lanes []string
	var tokens []any
	for {
		v, err := b.epochCall(ctx, lanes, append([]any{"drop", b.name}, tokens...)...)
		if err != nil {
			return events, err
		}
		if integer(v[0]) == 0 {
			return events, errBuilding
		}
		events += integer(v[1])
		if lanes, tokens = lanes[:0], v[2:]; len(tokens) == 0 {
			return events, nil
		}
		for _, token := range tokens {
			token, _ := token.(string)
			lanes = append(lanes, b.laneKeysOf(nil, token)...)
		}
	}
}

func (b *indexing) add(ctx context.Context, ev *pipeline.Event, seq uint64) error {
	e := storedEntry(ev, seq)
	keys := b.shard.keys(nil, ev.Key)
	b.keys = append(b.keys, keys[1], keys[0])
	b.args = append(b.args, limiter.EncodeKey(ev.Key), member(e), e.Order, b.tierOf(ev))
	if len(b.keys) < 2*maxKeys {
		return nil
	}
	return b.flush(ctx)
}

func (b *indexing) flush(ctx context.Context) error {
	v, err := b.epochCall(ctx, b.keys, append([]any{"index", b.name, bit(b.opt.Tiers)}, b.args...)...)
	b.keys, b.args = b.keys[:0], b.args[:0]
	if err == nil && integer(v[0]) == 0 {
		err = errBuilding
	}
	return err
}

func (b *indexing) finish(ctx context.Context, fresh bool) error {
	if err := b.flush(ctx); err != nil {
		return err
	}
	id := rand.Text()
	v, err := b.epochCall(ctx, nil, "finish", b.name, id, bit(fresh), b.promisedFor().Microseconds())
	if err != nil {
		return err
	}
	if integer(v[0]) == 0 {
		return errBuilding
	}
	b.mu.Lock()
	b.epoch, b.shard.calls, b.look = id, 0, time.Time{}
	b.mu.Unlock()
	return nil
}

// epochCall runs the epoch script: what, then its arguments.
func (sh *shard) epochCall(ctx context.Context, lanes []string, what ...any) ([]any, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*callTimeout)
	defer cancel()
	keys := append([]string{sh.epochKey, sh.dueKey}, lanes...)
	created := int64(0)
	if !sh.alone {
		created = sh.opt.Bodies.Created()
	}
	args := append([]any{what[0], sh.now, created}, what[1:]...)
	return sh.call(ctx, epochScript, 0, keys, args)
}
