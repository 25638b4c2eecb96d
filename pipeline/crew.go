package pipeline

import "sync"

// crew does jobs, each in a goroutine of its own while it lasts. Goroutines wait for another job afterwards: a new one would
// have to grow its stack several times on an event's way, a tenth of what a worker does while it parks a flood.
type crew[J any] struct {
	running *sync.WaitGroup
	do      func(J)
	jobs    chan J
}

func newCrew[J any](running *sync.WaitGroup, do func(J)) *crew[J] {
	return &crew[J]{running: running, do: do, jobs: make(chan J)}
}

// give begins a job. It never waits.
func (c *crew[J]) give(job J) {
	select {
	case c.jobs <- job:
	default:
		c.running.Go(func() {
			for more := true; more; job, more = <-c.jobs {
				c.do(job)
			}
		})
	}
}

// dismiss lets each goroutine end when its job is done. No more may be given.
func (c *crew[J]) dismiss() { close(c.jobs) }
