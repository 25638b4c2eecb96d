package pipeline

import (
	"context"
	"sync"
	"time"
)

const (
	floorLook     = 20 * time.Millisecond // the least time between two looks at the source
	floorPause    = time.Second           // between looks while nothing moves
	floorValid    = time.Second           // for how long what was seen is relied on
	floorPatience = 200 * time.Millisecond
)

// strict says that the events of a key are pushed one by one in the order of the source.
//
// An event is stored in its lane and then acked, by whichever worker has got it, and workers overtake one another on that way.
// So one may go only when all before it in the source have been acked. Retries keep their place: the lane sleeps meanwhile.
func (w *Worker) strict() bool { return w.cfg.KeyConcurrency == 1 }

// floor is the place in the source up to which nothing is on its way into a lane any more. Lanes share it: one look answers
// all that wait.
type floor struct {
	kick chan struct{} // somebody waits; holds one

	mu     sync.Mutex
	upTo   uint64
	seen   time.Time // when upTo was so
	old    bool      // upTo was used and should be looked at again soon
	barred map[*barred]struct{}
}

// barred is a lane whose next event has to wait.
type barred struct {
	place uint64
	open  chan bool // true: the place is not one of this source, so that nothing is to be waited for
}

func newFloor() *floor {
	return &floor{kick: make(chan struct{}, 1), barred: map[*barred]struct{}{}}
}

// known is the floor as it was seen a moment ago, 0 if it wasn't: in a source that was created anew places begin anew.
func (f *floor) known() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	age := time.Since(f.seen)
	if age > floorValid/2 && !f.old {
		f.old = true
		f.look()
	}
	if age > floorValid {
		return 0
	}
	return f.upTo
}

func (f *floor) look() {
	select {
	case f.kick <- struct{}{}:
	default:
	}
}

// await waits until the event that bars l may go, and answers false if that takes too long: the index has the lane fall due
// again, and others may have theirs drained meanwhile.
func (f *floor) await(soft context.Context, l *lane) bool {
	b := &barred{place: l.barred, open: make(chan bool, 1)}
	f.mu.Lock()
	f.barred[b] = struct{}{}
	f.mu.Unlock()
	f.look()
	defer func() {
		f.mu.Lock()
		delete(f.barred, b)
		f.mu.Unlock()
	}()
	patience := time.NewTimer(floorPatience)
	defer patience.Stop()
	select {
	case stray := <-b.open:
		l.stray = 0
		if stray {
			l.stray = l.barred
		}
		return true
	case <-patience.C:
	case <-soft.Done():
	}
	l.stray = 0
	return false
}

// wanted says whether anybody wants to know the floor, and the highest place that waits for it.
func (f *floor) wanted() (most uint64, yes bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for b := range f.barred {
		most = max(most, b.place)
	}
	return most, f.old || len(f.barred) > 0
}

// learn takes in what a look since a moment has shown, and says whether lanes wait for a floor that doesn't move. most is
// what was asked for.
func (f *floor) learn(since time.Time, upTo, last, most uint64) (stuck bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	moved := upTo != f.upTo
	f.upTo, f.seen, f.old = upTo, since, false
	for b := range f.barred {
		stray := b.place > last && b.place <= most
		if stray || b.place <= upTo {
			b.open <- stray
			delete(f.barred, b)
		}
	}
	return !moved && len(f.barred) > 0
}

// followFloor looks at the source while anybody waits for it, until soft ends.
func (w *Worker) followFloor(soft context.Context) {
	for pause := floorLook; ; {
		most, yes := w.floor.wanted()
		if !yes {
			select {
			case <-w.floor.kick:
				continue
			case <-soft.Done():
				return
			}
		}
		var upTo, last uint64
		var begun time.Time
		err := w.insist(soft, "ask how far the source is settled", func(ctx context.Context) (err error) {
			begun = time.Now()
			upTo, last, err = w.Source.Settled(ctx, most)
			return err
		})
		if err != nil {
			return // the worker stops
		}
		stuck := w.floor.learn(begun, upTo, last, most)
		if !stuck {
			pause = floorLook
		}
		if sleepUntil(soft, time.Now().Add(pause)) != nil {
			return
		}
		if stuck {
			pause = min(2*pause, floorPause)
		}
	}
}
