package pipeline

import (
	"context"
	"errors"
	"sync"
	"time"
)

const (
	leaseLead    = 10 * time.Millisecond  // the least time between two leases of a lane
	laneLinger   = 200 * time.Millisecond // a lane whose next slot is no further away is kept
	laneRenew    = 1500 * time.Millisecond
	laneRecheck  = 100 * time.Millisecond // a lane that has nothing to lease, or no room, is looked at again
	slotGrace    = 20 * time.Millisecond  // for a push after its slot: most are done then
	firstLease   = 2                      // events of a lane that was just claimed: most have one, and what is asked for counts as promised
	roomPatience = 900 * time.Millisecond // how long a claimed lane waits for room: its claim is good for a second
	laneShutdown = 2 * time.Second        // for giving lanes back after the drain time
)

// lane is a leased lane while this worker drains it. Its fields belong to the goroutine of drain.
type lane struct {
	key     string
	tier    string // by whose limits it goes
	token   int64
	out     int       // leased events that are not settled
	next    time.Time // when the next lease may book something
	asked   time.Time // when the last lease was taken
	waiting int64
	fails   int    // pushes in a row that found the receiver away
	probe   bool   // one event finds out whether the destination is back
	ending  bool   // no further lease: the receiver is away, the worker stops, it was a probe, or the lease is lost
	barred  uint64 // the place of the next event, which has to wait for the floor; 0: none does
	stray   uint64 // the place of an event that needn't wait for the floor
	results results
	todo    *launches          // leased events on their way to their push
	giveUp  context.CancelFunc // what hasn't started goes back
	held    context.Context    // ends when the lease has run out, for keys whose pushes are counted
	lapse   *time.Timer        // ends held
}

// result is what became of one leased event.
type result struct {
	Settlement
	healthy bool
	sleep   time.Duration
	failure string // what its attempt failed with, if it goes back
}

// results are what became of events since settle has told it last.
type results struct {
	some chan struct{} // holds one

	mu  sync.Mutex
	all []result
}

func (q *results) put(r result) {
	q.mu.Lock()
	q.all = append(q.all, r)
	q.mu.Unlock()
	select {
	case q.some <- struct{}{}:
	default:
	}
}

func (q *results) take() (all []result) {
	q.mu.Lock()
	defer q.mu.Unlock()
	all, q.all = q.all, nil
	return all
}

// drain pushes a lane's events at their slots for as long as it pays to keep the lease. more says that the lane has more
// events than the last call of the index told.
func (w *Worker) drain(turn turn, hard context.Context, l *lane, more <-chan struct{}) {
	key := l.key
	if !w.awaitRoom(turn.ctx, key) {
		return
	}
	ctx, giveUp := context.WithCancel(turn.ctx)
	defer giveUp()
	l.probe, l.results.some, l.todo, l.giveUp = turn.probe, make(chan struct{}, 1), newLaunches(), giveUp
	defer l.hold(hard, w.cfg.KeyConcurrency > 0)()
	w.lease(ctx, hard, l)
	w.Observer.Leased(l.token != 0)
	if l.token == 0 {
		return
	}
	stopped := turn.ctx.Done()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for l.token != 0 {
		wait := time.Until(w.nextLease(l))
		if w.keys.room(key) == 0 {
			wait = min(wait, laneRecheck) // room may come at any time
		}
		timer.Reset(wait)
		select {
		case <-l.results.some:
			if all := l.results.take(); len(all) > 0 {
				w.settle(hard, l, all...)
			}
		case <-stopped:
			l.ending, stopped = true, nil
			if l.out == 0 {
				w.settle(hard, l)
			}
		case <-l.todo.stuck:
			w.takeBack(hard, l)
		case <-more:
			if l.waiting == 0 {
				l.waiting, l.next = 1, l.asked.Add(leaseLead)
			}
		case <-timer.C:
			switch {
			case l.out == 0 && w.keys.room(key) == 0:
				w.settle(hard, l)
			case !time.Now().Before(w.nextLease(l)):
				w.lease(ctx, hard, l)
			}
		}
	}
	for l.out > 0 { // the lease was lost: the others end by themselves
		<-l.results.some
		l.out -= len(l.results.take())
	}
}

// errLapsed is the cause that pushes are cut off with when another worker may have the lane.
var errLapsed = errors.New("cut off: the lease ran out")

// hold sets held. What it returns is called when all of the lane's pushes have ended.
func (l *lane) hold(hard context.Context, counted bool) (end func()) {
	if !counted {
		l.held = hard
		return func() {}
	}
	held, cut := context.WithCancelCause(hard)
	l.held = held
	l.lapse = time.AfterFunc(time.Hour, func() { cut(errLapsed) })
	return func() {
		l.lapse.Stop()
		cut(nil)
	}
}

// awaitRoom waits until the key may have one more push in flight here, and the worker may promise one more. If that takes
// too long it answers false, and the lane falls due again, here or elsewhere.
func (w *Worker) awaitRoom(soft context.Context, key string) bool {
	deadline := time.Now().Add(roomPatience)
	for wait := leaseLead; soft.Err() == nil; wait = min(2*wait, laneRecheck) {
		var freed <-chan struct{}
		switch full := w.keys.room(key) == 0; {
		case !full && w.promises.spare(time.Now()) > 0:
			return true
		case !full:
			freed = w.promises.freed
		}
		if time.Now().Add(wait).After(deadline) {
			return false
		}
		timer := time.NewTimer(wait)
		select {
		case <-freed:
		case <-timer.C:
		case <-soft.Done():
		}
		timer.Stop()
	}
	return false
}

// nextLease is when the lease has to be renewed at the latest, or can book more events.
func (w *Worker) nextLease(l *lane) time.Time {
	renew := l.asked.Add(laneRenew)
	if l.ending {
		return renew
	}
	room, at := w.keys.room(l.key), l.next
	switch {
	case room == 0:
		return renew
	case room < w.keys.cap/4:
		at = latest(at, l.asked.Add(leaseLead))
	}
	if at.After(renew) {
		return renew
	}
	return at
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// lease renews the lease and books the lane's next events, if there is room for them.
func (w *Worker) lease(ctx, hard context.Context, l *lane) {
	r := LeaseRequest{Key: l.key, Tier: l.tier, Token: l.token, Notice: w.bodies.notice(time.Now())}
	r.Horizon = max(r.Notice, w.promises.ahead(time.Now()))
	if !l.ending {
		room := w.keys.room(l.key)
		if l.probe {
			room = min(room, 1)
		}
		if l.token == 0 {
			room = min(room, firstLease)
		}
		r.Max = w.promises.take(time.Now(), room)
	}
	if w.strict() {
		r.Ordered, r.UpTo, r.Stray = true, w.floor.known(), l.stray
	}
	l.asked = time.Now()
	until := hard
	if l.out == 0 {
		until = ctx // a stop need not wait for an index that is away
	}
	var got Lease
	most, lost := r.Max, false
	err := w.insist(until, "lease", func(context.Context) (err error) {
		got, err = w.Index.Lease(hard, r) // what was asked may be granted, and then has to be given back
		if err != nil && l.token != 0 {
			// Its reply may have held events, which only the end of the lease gives back: none behind them may go before.
			r.Max, lost = 0, true
		}
		return err
	})
	w.promises.give(len(got.Events) - most)
	switch {
	case err != nil && l.token != 0:
		l.ending = true // the stop: the lease is given back with what was out
		return
	case err != nil || got.Token == 0:
		w.lanes.lookIn(got.Next)
		l.token, l.barred = 0, got.Barred
		l.giveUp()
		return
	}
	l.ending = l.ending || l.probe || lost
	w.take(ctx, hard, l, got)
	if l.out == 0 {
		l.ending = true
		w.settle(hard, l)
	}
}

// takeBack gives the events that can't start back into the lane.
func (w *Worker) takeBack(hard context.Context, l *lane) {
	events := l.todo.takeBack()
	if len(events) == 0 {
		return
	}
	w.promises.give(-len(events))
	w.keys.book(l.key, -len(events))
	back := make([]result, len(events))
	for i, e := range events {
		back[i] = result{Settlement: Settlement{Was: e.Entry, Now: e.Entry, Fate: Back}}
	}
	w.settle(hard, l, back...)
}

// take notes what a lease says and starts its events on their way.
func (w *Worker) take(ctx, hard context.Context, l *lane, got Lease) {
	l.tier, l.token, l.waiting, l.fails = got.Tier, got.Token, got.Waiting, got.Fails
	if l.lapse != nil {
		l.lapse.Reset(time.Until(got.Until))
	}
	wait := got.Next
	switch {
	case wait < 0: // all is leased: what other workers park has no slot before the last one's, by when the lease mostly is over
		wait = max(laneRecheck, time.Until(lastSlot(got.Events))+slotGrace)
	case wait == 0 && len(got.Events) == 0: // a probe is out
		wait = laneRecheck
	case len(got.Events) == 0:
		wait = max(wait, leaseLead)
	}
	l.next = time.Now().Add(wait)
	w.start(ctx, hard, l, got.Events)
}

func lastSlot(events []Leased) (last time.Time) {
	for _, e := range events {
		last = latest(last, e.At)
	}
	return last
}

// settle tells the index what became of events, and ends the lease when nothing is out and nothing is due soon.
func (w *Worker) settle(hard context.Context, l *lane, first ...result) {
	all := append(first, l.results.take()...)
	req := SettleRequest{Key: l.key, Tier: l.tier, Token: l.token}
	for _, r := range all {
		req.Events = append(req.Events, r.Settlement)
		req.Healthy = req.Healthy || r.healthy
		req.Sleep = max(req.Sleep, r.sleep)
		if r.failure != "" {
			req.Failure = r.failure
		}
	}
	l.out -= len(all)
	if req.Sleep > 0 || l.held.Err() != nil {
		l.ending = true
		l.giveUp()
	}
	req.Release = l.out == 0 &&
		(l.ending || l.waiting == 0 || time.Until(l.next) > laneLinger || w.keys.room(l.key) == 0)
	var info LaneInfo
	err := w.insistLast(hard, "settle", func(c context.Context) (err error) {
		info, err = w.Index.Settle(c, req)
		return err
	})
	if err != nil || req.Release {
		l.token = 0
	}
	if err != nil {
		l.giveUp()
		return
	}
	if req.Release {
		w.lanes.lookIn(info.Next)
	}
	if info.Next >= 0 {
		l.next = time.Now().Add(info.Next)
	}
	l.waiting = info.Waiting
}
