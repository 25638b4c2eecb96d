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

	reachWithin = 5 * time.Second  // the destination answers a question of nobody's, if it is there
	suspectFor  = 10 * time.Minute // since its last failure
	mostSuspect = 4096             // keys

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
// trouble is its lane's business, and so is an event that the receiver can't take. When pushes of several keys fail with none between
// that is answered, and the destination says so itself or isn't there when it is asked, nothing more is pulled, leased or started; all
// that hasn't started goes back; and one push at a time finds out when to go on.
//
// A key whose push failed while the destination was there for others is suspect: as long as nothing of it is answered, what fails of it
// says nothing of the destination, as a probe neither.
type destination struct {
	log   *slog.Logger
	ease  func(on bool)               // the source: Ease
	reach func(context.Context) error // nil: only pushes can tell whether it is there
	run   func(func())                // in a goroutine
	draw  func() float64

	troubled atomic.Bool // failed or suspects isn't empty, or away: others need no lock

	mu      sync.Mutex
	soft    context.Context
	calm    context.Context // ends with soft, or when the destination is found to be away
	upset   context.CancelFunc
	changed chan struct{} // closed when a waiting turn has to look again
	failed  map[string]failure
	asking  bool                 // whether it is there
	suspect map[string]time.Time // by key: its last failure
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
	at     time.Time
	silent bool          // it didn't say so
	asked  time.Duration // Retry-After
}

func newDestination(log *slog.Logger, ease func(bool), reach func(context.Context) error, run func(func())) *destination {
	return &destination{
		log: log, ease: ease, reach: reach, run: run, draw: draw, failed: map[string]failure{}, suspect: map[string]time.Time{},
	}
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

// answered notes a push of key that began at start and that the receiver has answered, well or not.
func (d *destination) answered(start time.Time, key string) {
	if !d.troubled.Load() {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.suspect, key)
	if start.After(d.since) {
		delete(d.failed, key)
		d.suspectFailed(time.Now(), true)
		d.back()
	}
	d.note()
}

// back ends an absence. The mutex is held.
func (d *destination) back() {
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

// note sets troubled. The mutex is held.
func (d *destination) note() { d.troubled.Store(d.away || len(d.failed)+len(d.suspect) > 0) }

// suspectFailed says that the destination is there though pushes of some keys have failed: those that got no answer, or all. The mutex is
// held.
func (d *destination) suspectFailed(now time.Time, all bool) {
	for key, f := range d.failed {
		if all || f.silent {
			delete(d.failed, key)
			d.suspect[key] = now
		}
	}
	if len(d.suspect) > mostSuspect {
		clear(d.suspect) // they are found again
	}
}

// isSuspect says whether what fails of a key is its own trouble. The mutex is held.
func (d *destination) isSuspect(now time.Time, key string) bool {
	last, yes := d.suspect[key]
	if yes && now.Sub(last) > suspectFor {
		delete(d.suspect, key)
		return false
	}
	return yes
}

// unanswered notes a push of key that began at start and whose receiver is away, and said so or not, and asked for a pause or not. It
// answers how long the key need wait at most: as long as nobody probes, should the destination be away.
func (d *destination) unanswered(start time.Time, key string, said pushError, err error) time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	now, asked := time.Now(), said.retryAfter
	suspect := d.isSuspect(now, key)
	switch {
	case !start.After(d.since): // no news
	case suspect:
		d.suspect[key] = now
		d.missed(now)
	case !d.away:
		d.count(now, key, failure{now, said.silent, asked})
		d.judge(now, err)
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
	if !d.away || suspect || asked > 0 {
		return math.MaxInt64
	}
	return max(time.Millisecond, latest(d.of[fromSource].next, d.of[fromLanes].next).Sub(now))
}

// missed ends a probe by an event that says nothing of the destination: another one has to find out, soon. The mutex is held.
func (d *destination) missed(now time.Time) {
	if d.probing == 0 {
		return
	}
	d.probing = 0
	d.of[d.prober].next = now.Add(d.backoff(0))
	d.wake()
}

func (d *destination) count(now time.Time, key string, failed failure) {
	for k, f := range d.failed {
		if now.Sub(f.at) > awayWithin {
			delete(d.failed, k)
		}
	}
	d.failed[key] = failed
	d.troubled.Store(true)
}

// judge takes the destination to be away if pushes of enough keys have failed in a row: at once if it said so to all of them, else if
// it isn't there when asked. The mutex is held.
func (d *destination) judge(now time.Time, err error) {
	said := 0
	for _, f := range d.failed {
		if !f.silent {
			said++
		}
	}
	switch {
	case len(d.failed) < awayKeys:
	case said >= awayKeys || d.reach == nil:
		d.leave(now, err)
	case !d.asking:
		d.asking = true
		d.run(d.ask)
	}
}

// ask finds out whether the destination is there.
func (d *destination) ask() {
	ctx, cancel := context.WithTimeout(d.soft, reachWithin)
	defer cancel()
	err := d.reach(ctx)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asking = false
	switch {
	case d.soft.Err() != nil || d.away:
	case err == nil:
		d.suspectFailed(time.Now(), false)
		d.note()
	case len(d.failed) >= awayKeys:
		d.leave(time.Now(), err)
	}
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
