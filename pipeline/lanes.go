package pipeline

import (
	"context"
	"sync"
	"time"
)

const (
	maxLanes   = 4096 // drained by a worker at once
	claimPause = 2 * time.Millisecond
	sweepEvery = 5 * time.Second
)

// laneTable knows which lanes this worker drains, and when the next one is due.
type laneTable struct {
	mu      sync.Mutex
	drained map[string]*drained
	look    time.Time     // when the next lane is due
	pause   time.Time     // until when there is no other claim
	nudge   chan struct{} // look became earlier
}

// drained is a lane that is being drained.
type drained struct {
	more  chan struct{} // this worker has parked an event in it; holds one
	again bool          // it was claimed once more meanwhile
}

func newLaneTable() *laneTable {
	return &laneTable{drained: map[string]*drained{}, nudge: make(chan struct{}, 1)}
}

// lookIn says that a lane is due in d; d < 0 says nothing.
func (t *laneTable) lookIn(d time.Duration) {
	if d < 0 {
		return
	}
	at := time.Now().Add(d)
	t.mu.Lock()
	earlier := at.Before(t.look)
	if earlier {
		t.look = at
	}
	t.mu.Unlock()
	if earlier {
		select {
		case t.nudge <- struct{}{}:
		default:
		}
	}
}

// parked says that the lane of key has one more event and is due in d; d < 0: who drains it looks.
func (t *laneTable) parked(key string, d time.Duration) {
	t.lookIn(d)
	t.mu.Lock()
	defer t.mu.Unlock()
	if lane := t.drained[key]; lane != nil {
		select {
		case lane.more <- struct{}{}:
		default:
		}
	}
}

// begin says that key was claimed. It answers nil if its lane is being drained: that goes on then.
func (t *laneTable) begin(key string) *drained {
	t.mu.Lock()
	defer t.mu.Unlock()
	if lane := t.drained[key]; lane != nil {
		lane.again = true
		return nil
	}
	t.drained[key] = &drained{more: make(chan struct{}, 1)}
	return t.drained[key]
}

// end says that a lane is drained. It answers false if the lane was claimed again meanwhile, so that it has to be drained
// once more: nobody else will look at it for a second.
func (t *laneTable) end(key string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if lane := t.drained[key]; lane.again {
		lane.again = false
		return false
	}
	delete(t.drained, key)
	return true
}

// room is how many more lanes may be claimed.
func (t *laneTable) room() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return maxLanes - len(t.drained)
}

// wait returns when the next lane is due, or when soft ends. What lookIn says from then on counts for the next time.
func (t *laneTable) wait(soft context.Context) error {
	for {
		t.mu.Lock()
		d := time.Until(latest(t.look, t.pause))
		if d <= 0 {
			t.pause = time.Now().Add(claimPause)
			t.look = t.pause.Add(time.Hour)
		}
		t.mu.Unlock()
		if d <= 0 {
			return soft.Err()
		}
		timer := time.NewTimer(d)
		select {
		case <-timer.C:
		case <-t.nudge:
		case <-soft.Done():
			timer.Stop()
			return soft.Err()
		}
		timer.Stop()
	}
}

// serveLanes claims lanes as they fall due and drains each in a goroutine, until soft ends; then it waits for them.
func (w *Worker) serveLanes(soft, hard context.Context) {
	var draining sync.WaitGroup
	defer draining.Wait()
	swept := time.Now()
	for w.lanes.wait(soft) == nil {
		if time.Since(swept) > sweepEvery {
			w.keys.sweep()
			swept = time.Now()
		}
		turn, err := w.destination.turn(fromLanes)
		if err != nil {
			return
		}
		keys, next, err := w.claim(soft, turn.probe)
		if err != nil {
			return
		}
		begun := false
		for _, key := range keys {
			if lane := w.lanes.begin(key); lane != nil {
				begun = true
				draining.Add(1)
				w.crew.give(func() {
					defer draining.Done()
					defer turn.end()
					w.serveLane(turn, hard, key, lane.more)
				})
			}
		}
		if !begun {
			turn.end()
		}
		w.lanes.lookIn(next)
	}
}

// serveLane drains a lane that was claimed, and again as soon as what bars its next event is out of the way.
func (w *Worker) serveLane(turn turn, hard context.Context, key string, more <-chan struct{}) {
	l := &lane{key: key}
	for {
		l = &lane{key: key, stray: l.stray}
		w.drain(turn, hard, l, more)
		if l.barred > 0 && w.floor.await(turn.ctx, l) {
			continue
		}
		if w.lanes.end(key) {
			return
		}
	}
}

// claim takes lanes that are due, one for a probe, and says when to look again. It fails only when the worker stops.
func (w *Worker) claim(soft context.Context, probe bool) (keys []string, next time.Duration, err error) {
	room := min(w.lanes.room(), w.promises.spare(time.Now()))
	if probe {
		room = min(room, 1)
	}
	if room <= 0 || w.slots.crowded() {
		// While the sink can't keep up with what was promised, other workers may take the lanes.
		return nil, claimPause, nil
	}
	err = w.insist(soft, "claim lanes", func(ctx context.Context) (err error) {
		keys, next, err = w.Index.Claim(ctx, room)
		if len(keys) > 0 {
			err = nil // some shards answered: their lanes are ours now
		}
		return err
	})
	if probe && len(keys) > 1 {
		keys = keys[:1] // each shard may give one; the others fall due again in a second
	}
	return keys, next, err
}
