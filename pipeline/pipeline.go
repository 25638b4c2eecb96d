package pipeline

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"sluice/limiter"
)

// Config of a [Worker].
type Config struct {
	Key           KeySpec
	Tiers         bool          // the tiers that events name count
	Concurrency   int           // push slots
	Drain         time.Duration // how long pushes in flight may take when the worker stops
	MaxWait       time.Duration // the longest expected wait in a lane; 0: any
	KeyMaxWaiting int64         // the most events of a key that wait; 0: any
	Drop          bool          // what would wait too long is dropped instead of dead-lettered

	// KeyConcurrency is how many pushes of a key are in flight at most, over all workers: all its events go through its lane
	// then. 1: in the order of the source, too, retries included. 0: no such bound.
	KeyConcurrency int

	Retry Retry
}

// Ports are the parts of the world a worker works on.
type Ports struct {
	Source      Source
	Limiter     Limiter
	Index       Index
	Lanes       Lanes
	DeadLetters DeadLetters
	Sink        Sink
	Reach       func(context.Context) error // whether the place that all keys are pushed to is there at all; nil: only pushes can tell
	Gossip      Gossip
	Observer    Observer
	Log         *slog.Logger
}

const (
	maxHandedOut = 1500             // events of the source that a worker has in hand at most
	maxHeld      = maxHandedOut / 2 // of those that wait in memory for a slot
)

// Worker carries events from the source to the sink.
type Worker struct {
	cfg Config
	Ports

	slots    *slots
	keys     *keys
	promises *promises
	held     atomic.Int64 // events of the source that wait for a slot
	strain   strain
	lanes    *laneTable
	crew     crew // all goroutines that are begun for an event or a lane
	bodies   bodies
	floor    *floor
	sample   *sample
	troubles troubles
	asking   map[string]chan struct{} // by call: holds the event that asks for room
	stopping <-chan struct{}          // closed when nothing new is to be begun
	last     context.Context          // ends laneShutdown after the pushes have been cut off

	destination *destination
	failed      *digest // pushes
	buried      *digest
}

// ErrDrainTimeout is the cause that pushes are cut off with when they take longer than Config.Drain after a stop.
var ErrDrainTimeout = errors.New("cut off: the drain time is over")

// New returns a worker. One key may have an eighth of the push slots in flight, or as many pushes as configured.
func New(cfg Config, ports Ports) *Worker {
	most := max(1, cfg.Concurrency/8)
	if cfg.KeyConcurrency > 0 {
		most = min(most, cfg.KeyConcurrency)
	}
	w := &Worker{
		cfg: cfg, Ports: ports,
		slots:    newSlots(cfg.Concurrency),
		keys:     newKeys(most),
		promises: newPromises(),
		lanes:    newLaneTable(),
		floor:    newFloor(),
		sample:   &sample{log: ports.Log},
		asking:   map[string]chan struct{}{storing: make(chan struct{}, 1), burying: make(chan struct{}, 1)},

		failed: newDigest(ports.Log, "push failed", "more pushes failed"),
		buried: newDigest(ports.Log, "dead letter", "more dead letters"),
	}
	w.destination = newDestination(ports.Log, ports.Source.Ease, ports.Reach, w.crew.give)
	return w
}

// Cooling notes what another worker has learnt: nothing of key may be pushed for d; 0: it may again.
func (w *Worker) Cooling(key string, d time.Duration) { w.keys.cool(key, d) }

// LimitsChanged says that what is known of lanes may no longer hold: they may be drained faster or slower from now on.
func (w *Worker) LimitsChanged() { w.keys.limitsChanged() }

// Run works until ctx ends, or until the source is gone (that error is returned). When ctx ends nothing new is started
// and all that waits is handed back at once; pushes in flight go on for up to Config.Drain. Run returns when every event
// is settled.
func (w *Worker) Run(ctx context.Context) error {
	soft, stop := context.WithCancel(ctx)
	defer stop()
	hard, cut := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cut(nil)

	last, over := context.WithCancel(context.WithoutCancel(ctx))
	defer over()
	defer context.AfterFunc(hard, func() { time.AfterFunc(laneShutdown, over) })()
	w.last = last

	w.destination.begin(soft)
	w.stopping = soft.Done()
	var running sync.WaitGroup
	running.Go(func() { w.serveLanes(soft, hard) })
	if w.strict() {
		running.Go(func() { w.followFloor(soft) })
	}
	err := w.pull(soft, hard)
	stop()

	deadline := time.AfterFunc(w.cfg.Drain, func() { cut(ErrDrainTimeout) })
	defer deadline.Stop()
	running.Wait()
	w.crew.end()
	w.failed.end()
	w.buried.end()
	return err
}

// DestinationAway says whether the place that all keys share takes no pushes, and since when. Nothing is pulled then, and
// only probes are pushed.
func (w *Worker) DestinationAway() (since time.Time, away bool) { return w.destination.isAway() }

// pull hands every event of the source to a goroutine that has it alone; the source bounds how many there are.
func (w *Worker) pull(soft, hard context.Context) error {
	for {
		if w.destination.await(fromSource) != nil {
			return nil
		}
		d, err := w.Source.Next(soft)
		if soft.Err() != nil {
			if err == nil {
				d.HandBack()
			}
			return nil
		}
		if err != nil {
			return fmt.Errorf("source: %w", err)
		}
		turn, err := w.destination.turn(fromSource)
		if err != nil {
			d.HandBack()
			return nil
		}
		w.crew.give(func() {
			defer turn.end()
			w.handle(turn.ctx, hard, d)
		})
	}
}

// handle carries one event from received to settled: read its key, take its tokens, push it; or put it into its lane. It is
// handed back when soft ends before its push has begun: the worker stops, or the destination is away.
func (w *Worker) handle(soft, hard context.Context, d Delivery) {
	w.Observer.Received(d.Redelivered())
	ev := d.Event()
	if reason, err := w.admit(ev); err != nil {
		w.bury(hard, d, reason, err)
		return
	}
	if ev.expired(w.Index.Now()) {
		w.drop(d, Expired)
		return
	}
	dec, err := w.reserve(soft, d, ev)
	if err != nil {
		d.HandBack() // soft ended, or others are to have the event
		return
	}
	w.Observer.Decided(ev, dec)
	switch dec.Verdict {
	case limiter.Go:
		w.push(hard, d, ev, Direct)
	case limiter.Hold:
		w.hold(soft, hard, d, ev, dec)
	case limiter.Park:
		w.Observer.Throttled(dec.Reason)
		w.park(hard, d, ParkRequest{Counted: dec.Counted})
	case limiter.Overflow:
		if _, away := w.destination.isAway(); away {
			d.HandBack() // it would wait too long for no fault of its key's
			return
		}
		w.Observer.Throttled(dec.Reason)
		if !w.keyFull(dec) && dec.Wait <= w.cfg.MaxWait+w.destination.excuses(w.Index.Now().Sub(ev.Time)) {
			w.park(hard, d, ParkRequest{})
			return
		}
		w.overflow(hard, d, dec)
	case limiter.Never:
		w.bury(hard, d, Cost, tooCostly(ev.Cost))
	}
}

// admit reads what the event says about itself.
func (w *Worker) admit(ev *Event) (DeadReason, error) {
	var err error
	if ev.Key, err = w.cfg.Key.Key(ev); err != nil {
		if errors.Is(err, ErrBadKey) {
			return BadKey, err
		}
		return NoKey, err
	}
	if err = ev.readHeader(); err != nil {
		return BadHeader, err
	}
	if w.cfg.Tiers {
		ev.Tier = TierOf(ev.Header)
	}
	w.sample.see(ev)
	return "", nil
}

// hold waits for the event's slot and pushes it then.
func (w *Worker) hold(soft, hard context.Context, d Delivery, ev *Event, dec limiter.Decision) {
	w.held.Add(1)
	w.keys.hold(ev.Key, 1)
	w.promises.hold(1)
	w.Observer.HeldNow(1)
	err := sleepUntil(soft, dec.At)
	if err == nil {
		err = w.slots.acquire(soft, true)
	}
	w.held.Add(-1)
	w.keys.hold(ev.Key, -1)
	w.promises.hold(-1)
	w.Observer.HeldNow(-1)
	if err != nil {
		d.HandBack()
		return
	}
	if ev.expired(w.Index.Now()) {
		w.slots.release()
		w.drop(d, Expired)
		return
	}
	if reason := w.hindrance(ev.Key, dec.Stale); reason != "" {
		w.slots.release()
		w.Observer.Throttled(reason)
		w.park(hard, d, ParkRequest{})
		return
	}
	w.push(hard, d, ev, Held)
}

// hindrance says why an event whose slot has come can't be pushed after all; if nothing does, the key's place is taken.
func (w *Worker) hindrance(key string, stale time.Time) limiter.Reason {
	switch {
	case w.keys.cooling(key):
		return limiter.Cooling
	case w.late(stale):
		return limiter.Busy
	case !w.keys.enter(key):
		return limiter.KeyCap
	}
	return ""
}

// push makes one attempt for an event of the source. It gives the push slot and the key's place back.
func (w *Worker) push(hard context.Context, d Delivery, ev *Event, path Path) {
	f, err := w.attempt(hard, ev, 0)
	w.giveUpSlot(ev.Key)
	switch {
	case hard.Err() != nil && err != nil:
		d.HandBack() // cut off by the stop
	case f.outcome == Delivered:
		d.Ack()
		w.Observer.Latency(path, w.Index.Now().Sub(ev.Time))
		w.Observer.Settled(Delivered)
	case f.outcome == DeadLettered:
		w.bury(hard, d, f.reason, err)
	default:
		w.park(hard, d, ParkRequest{After: f.after, Sleep: f.rest, Failure: brief(err)})
	}
}

// attempt pushes the event once and judges the answer. fails is how often in a row the key's receiver was away before. A receiver that
// is away is left alone by the time it returns.
func (w *Worker) attempt(hard context.Context, ev *Event, fails int) (fate, error) {
	start := time.Now()
	ev.Attempt++
	if ev.First.IsZero() {
		ev.First = w.Index.Now()
	}
	w.promises.kept(start)
	w.Observer.InFlight(1)
	err := w.safely(hard, ev)
	w.Observer.InFlight(-1)
	w.Observer.Pushed(ev, err, time.Since(start))
	f, said := w.cfg.Retry.judge(ev, err, fails, w.Index.Now(), draw()), markOf(err)
	switch {
	case err != nil && hard.Err() != nil: // cut off by the stop
	case said.unsent: // the receiver knows nothing of it
	case said.away:
		most := w.destination.unanswered(start, ev.Key, said, err)
		f.after, f.rest = min(f.after, most), min(f.rest, most)
	default:
		w.destination.answered(start, ev.Key)
	}
	if w.strict() && f.outcome == "" { // nothing may overtake it: it keeps its place, and all of the key wait for it
		f.after, f.rest = 0, max(f.after, f.rest)
	}
	if f.rest > 0 && hard.Err() == nil {
		w.cool(ev.Key, f.rest)
	}
	if err != nil {
		w.failed.see(ev.Key, err, "id", ev.ID, "attempt", ev.Attempt, "outcome", f.outcome, "again_in", max(f.after, f.rest), "key_waits", f.rest > 0)
	}
	return f, err
}

// safely turns a panic of the sink into an error: one bad event must not take the others down.
func (w *Worker) safely(ctx context.Context, ev *Event) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the sink panicked: %v", p)
			w.Log.Error("the sink panicked", "id", ev.ID, "panic", p, "stack", string(debug.Stack()))
		}
	}()
	return w.Sink.Push(ctx, ev)
}

func (w *Worker) cool(key string, d time.Duration) {
	w.keys.cool(key, d)
	w.Gossip.Cooling(key, d)
}

// park stores the event's body, then its place in the lane, and only then lets the source forget it.
func (w *Worker) park(hard context.Context, d Delivery, r ParkRequest) {
	ev := d.Event()
	var body BodyID
	var spilt Outcome
	err := w.insist(hard, storing, func(ctx context.Context) (err error) {
		if body, err = w.Lanes.Append(ctx, ev); errors.Is(err, ErrFull) {
			spilt, err = w.spill(ctx, ev, err)
		}
		return err
	})
	switch {
	case errors.Is(err, ErrTooLarge):
		w.bury(hard, d, TooLarge, err)
		return
	case err == nil && spilt != "":
		w.drop(d, spilt)
		return
	}
	var info LaneInfo
	if err == nil {
		w.troubles.over(w.Log, lanesFull)
		r.Key, r.Tier, r.Entry = ev.Key, ev.Tier, entryOf(ev, body)
		err = w.insist(hard, "park", func(ctx context.Context) (err error) {
			info, err = w.Index.Park(ctx, r)
			return err
		})
	}
	if err != nil {
		d.HandBack() // the worker stops; whoever gets the event parks it again
		return
	}
	d.Ack()
	w.Observer.Parked()
	w.keys.parked(ev.Key, info)
	w.lanes.parked(ev.Key, info.Next)
	if info.Collapsed != nil {
		w.collapse(hard, ev.Key, *info.Collapsed)
	}
}

func entryOf(ev *Event, body BodyID) Entry {
	return Entry{
		BodyID: body, Order: ev.Order(), Attempt: ev.Attempt, Cost: ev.Cost, First: ev.First, Expires: ev.Expires,
		Collapse: ev.Collapse,
	}
}
