package pipeline

import (
	"hash/maphash"
	"sync"
	"time"
)

// keys is what a worker remembers of keys for a moment: pushes in flight, lanes it knows of, cool-downs. None of it is
// needed for the promises; it saves calls and keeps one key from taking all push slots.
type keys struct {
	cap  int // pushes of one key in flight
	seed maphash.Seed
	part [64]struct {
		sync.Mutex
		m map[string]*keyState
	}
}

type keyState struct {
	inFlight int
	booked   int // leased events that wait for their slot
	held     int // events of the source that do
	cooling  time.Time

	lane    time.Time     // until when the key surely has a lane
	waiting int64         // events in it
	cost    int64         // tokens that they take
	each    time.Duration // what each of these adds to the wait; 0: not known
}

func (s *keyState) saysNothing(now time.Time) bool {
	return s.inFlight == 0 && s.booked == 0 && s.held == 0 && !s.cooling.After(now) && !s.lane.After(now)
}

// A lane with more than one waiting event is believed in without asking for as long as these surely take, but for what may be
// leased already; within these bounds, since limits can change. Being wrong costs an event a detour of a few milliseconds.
const (
	laneMemory    = 200 * time.Millisecond
	maxLaneMemory = 3 * time.Second
)

func newKeys(capacity int) *keys {
	k := &keys{cap: capacity, seed: maphash.MakeSeed()}
	for i := range k.part {
		k.part[i].m = map[string]*keyState{}
	}
	return k
}

// with runs fn on the state of key under its lock and forgets a state that says nothing any more.
func (k *keys) with(key string, fn func(*keyState)) {
	p := &k.part[maphash.String(k.seed, key)%uint64(len(k.part))]
	p.Lock()
	defer p.Unlock()
	s := p.m[key]
	if s == nil {
		s = &keyState{}
		p.m[key] = s
	}
	fn(s)
	if s.saysNothing(time.Now()) {
		delete(p.m, key)
	}
}

// known runs fn on the state of key if there is one.
func (k *keys) known(key string, fn func(*keyState)) {
	p := &k.part[maphash.String(k.seed, key)%uint64(len(k.part))]
	p.Lock()
	defer p.Unlock()
	if s := p.m[key]; s != nil {
		fn(s)
	}
}

// enter counts a push of key as in flight, unless the key has as many as it may.
func (k *keys) enter(key string) (ok bool) {
	k.with(key, func(s *keyState) {
		if ok = s.inFlight < k.cap; ok {
			s.inFlight++
		}
	})
	return ok
}

func (k *keys) leave(key string) {
	k.with(key, func(s *keyState) { s.inFlight-- })
}

// book counts n leased events of key as about to be pushed; n < 0: no longer.
func (k *keys) book(key string, n int) {
	k.with(key, func(s *keyState) { s.booked += n })
}

// hold counts n events of the source as held; n < 0: no longer.
func (k *keys) hold(key string, n int) {
	k.with(key, func(s *keyState) { s.held += n })
}

func (k *keys) held(key string) (n int) {
	k.known(key, func(s *keyState) { n = s.held })
	return n
}

// room is how many more events of key may be leased: none while it cools.
func (k *keys) room(key string) int {
	n := k.cap
	k.known(key, func(s *keyState) {
		if n -= s.inFlight + s.booked; s.cooling.After(time.Now()) {
			n = 0
		}
	})
	return max(0, n)
}

// cool notes that nothing of key may be pushed for d; 0: that it may again.
func (k *keys) cool(key string, d time.Duration) {
	k.with(key, func(s *keyState) {
		until := time.Now().Add(d)
		if d == 0 {
			s.cooling = time.Time{}
		} else if until.After(s.cooling) {
			s.cooling = until
		}
	})
}

func (k *keys) cooling(key string) (yes bool) {
	k.known(key, func(s *keyState) { yes = s.cooling.After(time.Now()) })
	return yes
}

// parked notes the lane that a park answered with.
func (k *keys) parked(key string, info LaneInfo) {
	k.with(key, func(s *keyState) {
		s.waiting, s.cost, s.each = info.Waiting, info.Waiting+info.Extra, info.Each
		s.lane = time.Time{}
		if info.Waiting > 1 {
			lasts := maxLaneMemory
			if all := maxHorizon + maxLaneMemory; s.each == 0 || s.cost < int64(all/s.each) {
				lasts = time.Duration(s.cost)*s.each - maxHorizon
			}
			s.lane = time.Now().Add(max(laneMemory, lasts))
		}
	})
}

// limitsChanged forgets how long the lanes take.
func (k *keys) limitsChanged() {
	for i := range k.part {
		p := &k.part[i]
		p.Lock()
		for _, s := range p.m {
			s.lane = time.Time{}
		}
		p.Unlock()
	}
}

// queued says that key surely has a lane, and that one more event of that cost in it is well within the bounds (0: none); it
// counts that event. Near a bound the limiter is asked, since it alone is exact. Near is beyond half of it, less what this
// worker may have on the way into the lane: other workers have as much, and none knows of the others' before it is there.
func (k *keys) queued(key string, cost int64, maxWait time.Duration, maxWaiting int64) (yes bool) {
	k.known(key, func(s *keyState) {
		if !s.lane.After(time.Now()) {
			return
		}
		if maxWait > 0 && (s.each == 0 || s.cost+cost+maxHandedOut > int64(maxWait/2/s.each)) {
			return
		}
		if maxWaiting > 0 && s.waiting+1+maxHandedOut > maxWaiting/2 {
			return
		}
		s.waiting++
		s.cost += cost
		yes = true
	})
	return yes
}

// sweep forgets what says nothing any more; called once in a while, since a key may never be seen again.
func (k *keys) sweep() {
	now := time.Now()
	for i := range k.part {
		p := &k.part[i]
		p.Lock()
		for key, s := range p.m {
			if s.saysNothing(now) {
				delete(p.m, key)
			}
		}
		p.Unlock()
	}
}
