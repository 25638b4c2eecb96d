package redisstore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
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
	told := false
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, 2*time.Second) {
		err := s.Open(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		switch {
		case errors.Is(err, ErrFormat):
			return err
		case !errors.Is(err, errTaken):
			s.opt.Log.Warn("the state in Redis can't be opened; trying again", "in", wait, "err", err)
		case !told:
			told = true
			s.opt.Log.Warn("another worker rebuilds the lane index; waiting for it")
			fallthrough
		default:
			wait = min(wait, takenLook)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(wait):
		}
	}
}

// takenLook is how often it is looked whether another worker has rebuilt the index, or has left it.
const takenLook = 500 * time.Millisecond

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
		sh.epoch, sh.lanes, sh.calls, sh.look = id, creation(v[3]), 0, time.Time{}
	}
	sh.mu.Unlock()
	return true, nil
}

// creation reads the creation time that a script was called with.
func creation(v any) int64 {
	text, _ := v.(string)
	n, _ := strconv.ParseInt(text, 10, 64)
	return n
}

// rebuild indexes all bodies of the missing shards, each under one build, and then lets their new epoch begin.
func (s *Store) rebuild(ctx context.Context, missing []*shard, fresh bool) error {
	r := newReading(ctx)
	var builds []*indexing
	for _, sh := range missing {
		if b, err := sh.build(r.ctx); err == nil {
			r.add(b)
			builds = append(builds, b)
			fresh = fresh && !b.adopts
		} else if !r.missed(err) {
			break
		}
	}
	start, gone := time.Now(), int64(0)
	for _, b := range builds {
		b.fresh = fresh
		dropped, err := b.drop()
		if gone += dropped; err != nil {
			b.fail(err)
		}
	}
	if gone > 0 {
		s.opt.Log.Error("events waited in a lane stream that is deleted, and are lost with it", "events", gone)
	}
	r.read(s.workLease, s.opt.Bodies.Each)
	shards, waiting := 0, 0
	for _, b := range builds {
		if b.done {
			shards, waiting = shards+1, waiting+b.events
		}
	}
	if !fresh && shards > 0 {
		s.metrics.rebuilds.Inc()
		s.opt.Log.Warn("rebuilt the lane index: Redis held none, or one for another lane stream",
			"shards", shards, "waiting", waiting, "took", time.Since(start).Round(time.Millisecond))
	}
	return r.end()
}

// indexing builds the index of one shard; it collects events into calls.
type indexing struct {
	*work
	adopts bool // the state is that of another lane stream
	fresh  bool // nothing was ever spent
	events int
	keys   []string
	args   []any
}

// build begins to build the index of the shard, whose state is missing.
func (sh *shard) build(ctx context.Context) (*indexing, error) {
	w, v, err := sh.take(ctx, "build")
	if err != nil {
		return nil, err
	}
	return &indexing{work: w, adopts: integer(v[1]) == 1}, nil
}

// drop removes the lanes of another stream, and answers how many events they held. Their bodies are gone with it: each place
// would take a token and find none.
func (b *indexing) drop() (events int64, err error) {
	if !b.adopts {
		return 0, nil
	}
	var lanes []string
	var tokens []any
	for {
		v, err := b.epochCall(b.ctx, lanes, append([]any{"drop", b.token}, tokens...)...)
		if err != nil {
			return events, err
		}
		if integer(v[0]) == 0 {
			return events, errTaken
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

func (b *indexing) add(ev *pipeline.Event, seq uint64) error {
	b.events++
	e := storedEntry(ev, seq)
	keys := b.shard.keys(nil, ev.Key)
	b.keys = append(b.keys, keys[1], keys[0])
	b.args = append(b.args, limiter.EncodeKey(ev.Key), member(e), e.Order, b.tierOf(ev))
	if len(b.keys) < 2*maxKeys {
		return nil
	}
	return b.flush()
}

func (b *indexing) flush() error {
	v, err := b.epochCall(b.ctx, b.keys, append([]any{"index", b.token, bit(b.opt.Tiers)}, b.args...)...)
	b.keys, b.args = b.keys[:0], b.args[:0]
	if err == nil && integer(v[0]) == 0 {
		err = errTaken
	}
	return err
}

func (b *indexing) finish() error {
	if err := b.flush(); err != nil {
		return err
	}
	id := rand.Text()
	v, err := b.epochCall(b.ctx, nil, "finish", b.token, id, bit(b.fresh), b.promisedFor().Microseconds())
	if err != nil {
		return err
	}
	if integer(v[0]) == 0 {
		return errTaken
	}
	b.done = true
	b.mu.Lock()
	b.epoch, b.shard.lanes, b.shard.calls, b.look = id, creation(v[1]), 0, time.Time{}
	b.mu.Unlock()
	return nil
}

// epochCall runs the epoch script: what, then its arguments.
func (sh *shard) epochCall(ctx context.Context, lanes []string, what ...any) ([]any, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*callTimeout)
	defer cancel()
	keys := append([]string{sh.epochKey, sh.dueKey}, lanes...)
	return sh.call(ctx, epochScript, 0, keys, sh.epochArgs(what))
}

func (sh *shard) epochArgs(what []any) []any {
	created := int64(0)
	if !sh.alone {
		created = sh.opt.Bodies.Created()
	}
	return append([]any{what[0], sh.now, created}, what[1:]...)
}
