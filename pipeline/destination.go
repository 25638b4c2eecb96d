package pipeline

import (
	"context"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"
)

const (
	awayKeys   = 5                // of so many keys in a row a push has to fail until the destination is taken to be away,
	awayWithin = 10 * time.Second // all within this time: keys whose own receivers are dead fail once in a while only

	firstProbe   = 250 * time.Millisecond // the longest wait before the first probe; it doubles with each that fails
	longestProbe = 30 * time.Second
	longestAsked = 5 * time.Minute // how long one key's Retry-After may keep probes back: it may speak for that key only
	lanesLater   = 100 * time.Millisecond
)

// side is where events to probe the destination with come from. Lanes do so when the source gives none, and they have a backoff
// of their own, so that those whose receivers are dead for good don't keep an event of a key that is well waiting.
type side uint8

const (
	fromSource side = iota
	fromLanes
	sides
)

// destination is what this worker knows of the place that all keys share, behind whatever each key has of its own. One key's
// trouble is its lane's business. When pushes of several keys fail with none between that is answered, nothing more is pulled,
// leased or started; all that hasn't started goes back; and one push at a time finds out when to go on.
type destination struct {
	log  *slog.Logger
	ease func(on bool) // the source: Ease
	draw func() float64

	troubled atomic.Bool // failed isn't empty, or away: others need no lock

	mu      sync.Mutex
	soft    context.Context
	calm    context.Context // ends with soft, or when the destination is found to be away
	upset   context.CancelFunc
	changed chan struct{} // closed when a waiting turn has to look again
	failed  map[string]failure
	away    bool
	since   time.Time     // of the last change of away; pushes that began before say nothing new
	lasted  time.Duration // of the last absence
	probing int           // number of the turn that is taken; 0: none
	prober  side          // who took it
	turns   int
	probes  int // that failed
	of      [sides]struct {
		next  time.Time // no turn before
		waits int       // that have passed
	}
}

// failure is the last push of a key that the receiver didn't take.
type failure struct {
	at    time.Time
	asked time.Duration // Retry-After
}

func newDestination(log *slog.Logger, ease func(bool)) *destination {
	return &destination{log: log, ease: ease, draw: draw, failed: map[string]failure{}}
}

// begin is called once, before anything else.
func (d *destination) begin(soft context.Context) {
	d.soft, d.changed = soft, make(chan struct{})
	d.calm, d.upset = context.WithCancel(soft)
}

// turn is the leave to work on events. While ctx lasts they may be started.
type turn struct {
	ctx   context.Context
	probe bool   // only one event, and of a lane only one
	end   func() // has to be called when that one is settled, whether or not it was pushed
}

// await returns when turn wouldn't wait, but for the probe of another. It fails only when the worker stops.
func (d *destination) await(s side) error {
	_, err := d.wait(s, false)
	return err
}

// turn waits until events of a side may be worked on: at once, or while the destination is away until a probe is due. It
// fails only when the worker stops.
func (d *destination) turn(s side) (turn, error) { return d.wait(s, true) }

func (d *destination) wait(s side, take bool) (turn, error) {
	for {
		d.mu.Lock()
		if !d.away {
			defer d.mu.Unlock()
			return turn{ctx: d.calm, end: func() {}}, d.soft.Err()
		}
		changed, wait := d.changed, time.Until(d.of[s].next)
		switch {
		case wait > 0:
		case !take:
			d.mu.Unlock()
			return turn{}, nil
		case d.probing == 0:
			defer d.mu.Unlock()
			return d.take(s), d.soft.Err()
		default:
			wait = longestProbe // its end is told
		}
		d.mu.Unlock()
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-changed:
		case <-d.soft.Done():
			timer.Stop()
			return turn{}, d.soft.Err()
		}
		timer.Stop()
	}
}

// take begins a probe. The mutex is held.
func (d *destination) take(s side) turn {
	d.turns++
	d.probing, d.prober = d.turns, s
	number := d.turns
	return turn{ctx: d.soft, probe: true, end: func() { d.unused(number) }}
}

// unused ends a turn whose event turned out not to be one for a probe. With source events that counts as a probe that failed:
// else all of them would be looked at, one after the other.
func (d *destination) unused(number int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.probing != number {
		return
	}
	d.probing = 0
	s := &d.of[d.prober]
	if d.prober == fromSource {
		s.waits++
	}
	s.next = time.Now().Add(d.backoff(s.waits))
	d.wake()
}

// answered notes a push that began at start and that the receiver has answered, well or not.
func (d *destination) answered(start time.Time) {
	if !d.troubled.Load() {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if !start.After(d.since) {
		return
	}
	clear(d.failed)
	d.troubled.Store(false)
	if !d.away {
		return
	}
	now := time.Now()
	d.lasted = now.Sub(d.since)
	d.log.Info("the destination answers again", "after", d.lasted.Round(time.Millisecond), "probes", d.probes)
	d.away, d.since, d.probing = false, now, 0
	d.calm, d.upset = context.WithCancel(d.soft)
	d.ease(false)
	d.wake()
}

// unanswered notes a push of key that began at start and whose receiver is away, and asked for a pause or not. It answers
// how long the key need wait at most: as long as nobody probes, should the destination be away.
func (d *destination) unanswered(start time.Time, key string, asked time.Duration, err error) time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	switch {
	case !start.After(d.since): // no news
	case !d.away:
		d.count(now, key, asked)
		if len(d.failed) >= awayKeys {
			d.leave(now, err)
		}
	case d.probing != 0:
		d.probing = 0
		d.probes++
		s := &d.of[d.prober]
		s.waits++
		s.next = now.Add(max(d.backoff(s.waits), d.spread(min(asked, longestAsked))))
		if lanes := &d.of[fromLanes]; d.prober == fromSource {
			lanes.waits, lanes.next = max(lanes.waits, s.waits), latest(lanes.next, s.next.Add(lanesLater))
		}
		d.wake()
	}
	if !d.away || asked > 0 {
		return math.MaxInt64
	}
	return max(time.Millisecond, latest(d.of[fromSource].next, d.of[fromLanes].next).Sub(now))
}

func (d *destination) count(now time.Time, key string, asked time.Duration) {
	for k, f := range d.failed {
		if now.Sub(f.at) > awayWithin {
			delete(d.failed, k)
		}
	}
	d.failed[key] = failure{now, asked}
	d.troubled.Store(true)
}

// leave takes the destination to be away. It is left alone for as long as all that found it so were asked to.
func (d *destination) leave(now time.Time, err error) {
	asked := MaxRetryAfter
	for _, f := range d.failed {
		asked = min(asked, f.asked)
	}
	clear(d.failed)
	d.away, d.since, d.probes = true, now, 0
	source, lanes := &d.of[fromSource], &d.of[fromLanes]
	source.waits, source.next = 0, now.Add(max(d.backoff(0), d.spread(asked)))
	lanes.waits, lanes.next = 0, source.next.Add(lanesLater)
	d.upset()
	d.ease(true)
	d.log.Warn("the destination is away for several keys in a row; their events stay in the source", "keys", awayKeys, "err", err)
}

// backoff is half to all of the wait after so many.
func (d *destination) backoff(waits int) time.Duration {
	w := longestProbe
	if waits < 7 {
		w = min(w, firstProbe<<waits)
	}
	return w/2 + time.Duration(d.draw()*float64(w/2))
}

// spread makes a pause that was asked for a little longer, so that a fleet doesn't come back in one moment.
func (d *destination) spread(asked time.Duration) time.Duration {
	return asked + time.Duration(d.draw()*float64(min(asked/10, time.Second)))
}

func (d *destination) wake() {
	close(d.changed)
	d.changed = make(chan struct{})
}

// isAway says that the destination is away, and since when.
func (d *destination) isAway() (since time.Time, yes bool) {
	if !d.troubled.Load() {
		return time.Time{}, false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.since, d.away
}

// excuses is for how long an event of that age may wait in its lane beyond what is usual: the destination was away when it came.
func (d *destination) excuses(age time.Duration) time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.away || age <= time.Since(d.since) {
		return 0
	}
	return d.lasted
}
