package redisstore

import (
	"context"
	"sync"
)

// batcher collects concurrent calls into batches with one batch in flight. A lone call goes at once.
type batcher[Q, R any] struct {
	most int // calls in a batch
	run  func([]Q) ([]R, error)

	mu      sync.Mutex
	waiting []*call[Q, R]
	running bool
}

type call[Q, R any] struct {
	q    Q
	r    R
	err  error
	done chan struct{}
}

// do waits for the answer to q. When ctx ends first, q may still be carried out.
func (b *batcher[Q, R]) do(ctx context.Context, q Q) (R, error) {
	c := &call[Q, R]{q: q, done: make(chan struct{})}
	b.mu.Lock()
	b.waiting = append(b.waiting, c)
	if !b.running {
		b.running = true
		go b.loop()
	}
	b.mu.Unlock()
	select {
	case <-c.done:
		return c.r, c.err
	case <-ctx.Done():
		var none R
		return none, context.Cause(ctx)
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
		for i, c := range calls {
			if err != nil {
				c.err = err
			} else {
				c.r = rs[i]
			}
			close(c.done)
		}
	}
}

// take returns the next batch, or nil after marking the batcher idle.
func (b *batcher[Q, R]) take() []*call[Q, R] {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := min(len(b.waiting), b.most)
	if n == 0 {
		b.running = false
		b.waiting = nil
		return nil
	}
	calls := b.waiting[:n:n]
	b.waiting = b.waiting[n:]
	return calls
}
