package pipeline

import "sync"

// crew does jobs, each in a goroutine of its own while it lasts. Goroutines wait for another job afterwards: a new one would
// have to grow its stack several times on an event's way, a tenth of what a worker does while it parks a flood. The one that
// has waited least goes first, since its stack is still in the processor's cache; those left over from a busier time have
// theirs shrunk by the garbage collector.
type crew struct {
	running sync.WaitGroup

	mu    sync.Mutex
	idle  []chan func() // of each goroutine that waits for a job, the last one to begin at the end
	ended bool
}

// give begins a job. It never waits.
func (c *crew) give(job func()) {
	c.mu.Lock()
	if last := len(c.idle) - 1; last >= 0 {
		next := c.idle[last]
		c.idle = c.idle[:last]
		c.mu.Unlock()
		next <- job // there is room: it has taken the one before
		return
	}
	c.mu.Unlock()
	c.running.Go(func() { c.work(job) })
}

// work does a job and those after it.
func (c *crew) work(job func()) {
	next := make(chan func(), 1)
	for job != nil {
		job()
		job = c.await(next)
	}
}

// await waits for the next job; nil: there is none.
func (c *crew) await(next chan func()) func() {
	c.mu.Lock()
	if c.ended {
		c.mu.Unlock()
		return nil
	}
	c.idle = append(c.idle, next)
	c.mu.Unlock()
	return <-next
}

// end returns when all jobs are done and no goroutine is left. From then on none may be given; before that jobs may still give
// others.
func (c *crew) end() {
	c.mu.Lock()
	c.ended = true
	for _, next := range c.idle {
		close(next)
	}
	c.idle = nil
	c.mu.Unlock()
	c.running.Wait()
}
