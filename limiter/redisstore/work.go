package redisstore

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"sluice/limiter"
	"sluice/pipeline"
)

const (
	// workLease is for how long a worker that rebuilds or verifies the index of a shard may be silent until another takes over,
	// and for how long the lane stream may be silent until the worker leaves that to another.
	workLease = 10 * time.Second

	beatsOfLease = 4 // heartbeats that may come within it
)

// errTaken says that another worker rebuilds or verifies the index, or that Redis has forgotten that this one does.
var errTaken = errors.New("another worker is at work on the lane index")

// work is the lease of one shard's index, which a worker needs to rebuild or to verify it. It is kept by heartbeats beside the
// work: how fast the work gets on, and on which shard, doesn't matter. Each write names the token, so that a worker that was
// silent for too long is refused once another has taken over.
type work struct {
	*shard
	token string
	ctx   context.Context         // ends when the work can't go on; its cause says why
	fail  context.CancelCauseFunc // ends it
	done  bool                    // the last call gave the lease up
	beats sync.WaitGroup
}

// take leases the index of the shard for what is to be done to it: "build" or "verify". It also returns what the script answers.
func (sh *shard) take(ctx context.Context, what string, args ...any) (*work, []any, error) {
	w := &work{shard: sh, token: rand.Text()}
	v, err := sh.epochCall(ctx, nil, append([]any{what, w.token, sh.opt.Worker, sh.workLease.Microseconds()}, args...)...)
	if err != nil {
		return nil, nil, err
	}
	if integer(v[0]) == 0 {
		return nil, nil, errTaken
	}
	w.ctx, w.fail = context.WithCancelCause(ctx)
	w.beats.Go(w.keep)
	return w, v, nil
}

// keep renews the lease until the work ends. A heartbeat is never cut off: that would look as if Redis were away.
func (w *work) keep() {
	ticks := time.NewTicker(w.workLease / beatsOfLease)
	defer ticks.Stop()
	kept := time.Now()
	for {
		select {
		case <-w.ctx.Done():
			return
		case <-ticks.C:
		}
		sent := time.Now()
		v, err := w.tell("keep", w.workLease.Microseconds())
		switch {
		case err == nil && integer(v[0]) == 1:
			kept = sent
		case err == nil:
			w.fail(errTaken)
		case time.Since(kept) > w.workLease:
			w.fail(err)
		}
	}
}

// leave ends the work and gives the lease up, so that another worker may go on at once.
func (w *work) leave() {
	w.fail(nil)
	w.beats.Wait()
	if !w.done {
		_, _ = w.tell("leave") // else it ends by itself
	}
}

func (w *work) tell(what string, args ...any) ([]any, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(w.ctx), callTimeout)
	defer cancel()
	return w.epochCall(ctx, nil, append([]any{what, w.token}, args...)...)
}

// job is the work on one shard that stored bodies are needed for.
type job interface {
	lease() *work
	add(ev *pipeline.Event, seq uint64) error
	finish() error // also gives the lease up
}

func (w *work) lease() *work { return w }

// reading is one reading of the lane stream for the work on several shards. Each reading costs the whole stream, whatever it is
// for. So one worker does the work on all shards that need it, and the others wait: whoever has the first of them goes on to
// the rest. What befalls the work on one shard leaves that on the others alone.
type reading struct {
	ctx  context.Context // ends when no work can go on
	stop context.CancelCauseFunc
	jobs [limiter.Shards]job // nil: none
	left atomic.Int64        // how many of them go on
	errs []error
}

func newReading(ctx context.Context) *reading {
	r := &reading{}
	r.ctx, r.stop = context.WithCancelCause(ctx)
	return r
}

// add lets a job, whose lease was just taken, be done with the others.
func (r *reading) add(j job) {
	w := j.lease()
	r.jobs[w.number] = j
	r.left.Add(1)
	context.AfterFunc(w.ctx, func() {
		if r.left.Add(-1) == 0 {
			r.stop(nil)
		}
	})
}

// missed notes why the lease of a shard couldn't be taken, and says whether others may be tried. They are taken in their order.
func (r *reading) missed(err error) bool {
	r.errs = append(r.errs, err)
	return !errors.Is(err, errTaken) || r.left.Load() > 0
}

// read feeds the jobs with the bodies that it gets from bodies, which is [Bodies.Each] or the like, and finishes them. A stream
// that is silent for as long as a lease lasts ends all: others may well hear it.
func (r *reading) read(patience time.Duration, bodies func(context.Context, func(*pipeline.Event, uint64) error) error) {
	if r.left.Load() == 0 {
		return
	}
	silence := time.AfterFunc(patience, func() { r.stop(fmt.Errorf("read the lane stream: nothing came for %s", patience)) })
	err := bodies(r.ctx, func(ev *pipeline.Event, seq uint64) error {
		silence.Stop()
		defer silence.Reset(patience)
		if j := r.jobs[limiter.Shard(ev.Key)]; j != nil && j.lease().ctx.Err() == nil {
			if err := j.add(ev, seq); err != nil {
				j.lease().fail(err)
			}
		}
		return r.ctx.Err()
	})
	silence.Stop()
	if err != nil {
		r.stop(fmt.Errorf("read the lane stream: %w", err))
	}
	for _, j := range r.jobs {
		if j == nil || j.lease().ctx.Err() != nil {
			continue
		}
		if err := j.finish(); err != nil {
			j.lease().fail(err)
		}
	}
}

// end gives up all leases and answers what kept the work on any shard from its end, each thing once; errTaken only if nothing
// else did.
func (r *reading) end() error {
	var leaving sync.WaitGroup
	for _, j := range r.jobs {
		if j == nil {
			continue
		}
		if w := j.lease(); !w.done {
			r.errs = append(r.errs, context.Cause(w.ctx))
		}
		leaving.Go(j.lease().leave)
	}
	leaving.Wait()
	r.stop(nil)
	var taken error
	var errs []error
	told := map[string]bool{}
	for _, err := range r.errs {
		switch {
		case errors.Is(err, errTaken):
			taken = errTaken
		case err != nil && !told[err.Error()]:
			told[err.Error()] = true
			errs = append(errs, err)
		}
	}
	return cmp.Or(errors.Join(errs...), taken)
}
