package redisstore

import (
	"context"
	"sync"
)

// batcher collects concurrent calls into batches with one batch in flight. A lone call goes at once. Nothing is carried out for
// a caller who was gone before its batch began.
type batcher[Q, R any] struct {
	most int // calls in a batch
	run  func([]Q) ([]R, error)

	// Calls whose answer is open go on, in their order, to the one that passOn gives them to. nil: all answers are good.
	open   func(R) bool
	passOn func([]*call[Q, R])

	mu      sync.Mutex
	waiting []*call[Q, R]
	running bool
}

type call[Q, R any] struct {
	ctx  context.Context // of who waits for the answer
	q    Q
	r    R
	err  error
	done chan struct{}
}

// do waits for the answer to q. When ctx ends first, q is carried out only if its batch is under way.
func (b *batcher[Q, R]) do(ctx context.Context, q Q) (R, error) {
	c := &call[Q, R]{ctx: ctx, q: q, done: make(chan struct{})}
	b.add(c)
	select {
	case <-c.done:
		return c.r, c.err
	case <-ctx.Done():
		var none R
		return none, context.Cause(ctx)
	}
}

// add lets calls wait for a batch.
func (b *batcher[Q, R]) add(calls ...*call[Q, R]) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waiting = append(b.waiting, calls...)
	if !b.running {
		b.running = true
		go b.loop()
	}
}

func (b *batcher[Q, R]) loop() {
	for {
		calls := b.take()
		if calls == nil {
			return
		}
		qs := make([]Q, len(calls))
		for i, c := range calls {
			qs[i] = c.q
		}
		rs, err := b.run(qs)
		var open []*call[Q, R]
		for i, c := range calls {
			switch {
			case err != nil:
				c.err = err
			case b.open != nil && b.open(rs[i]):
				open = append(open, c)
				continue
			default:
				c.r = rs[i]
			}
			close(c.done)
		}
		if open != nil {
			b.passOn(open)
		}
	}
}

// take returns the next batch, without those whose callers are gone, or nil after marking the batcher idle.
func (b *batcher[Q, R]) take() (calls []*call[Q, R]) {
	b.mu.Lock()
	defer b.mu.Unlock()
	next := 0
	for ; next < len(b.waiting) && len(calls) < b.most; next++ {
		if c := b.waiting[next]; c.ctx.Err() == nil {
			calls = append(calls, c)
		}
	}
	b.waiting = b.waiting[next:]
	if calls == nil {
		b.running = false
		b.waiting = nil
	}
	return calls
}
