package pipeline

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

// memory is a limiter and a lane index in memory. It decides as the scripts of the Redis side do.
type memory struct {
	note  func(format string, args ...any)
	ahead time.Duration // of the shared clock before this process'

	mu        sync.Mutex
	limits    map[string]limit // of keys that have not fallback
	fallback  limit
	maxWait   time.Duration                // 0: any
	perKey    int                          // pushes of a key in flight; 0: any
	allowance time.Duration                // how long after its slot a token may be used
	took      time.Duration                // by each call
	fault     func(call string) fault      // nil: none
	calls     map[string]map[string][]call // by name and key
	state     map[string]*laneState
	due       map[string]time.Time
	spins     int // calls at one and the same moment
	last      time.Time
}

type fault uint8

const (
	noFault   fault = iota
	notDone         // the call failed before it did anything
	replyLost       // the call was carried out, and the caller is told that it failed
	partly          // some of the call failed: there is an answer and an error
)

var errFault = errors.New("connection reset")

type call struct {
	at time.Time
	n  int // events leased or settled
}

type laneState struct {
	full         time.Time // when the bucket is full again; before now: it is full
	opened       time.Time
	opening      int
	openingExtra int64
	closedUntil  time.Time
	fails        int
	failure      string
	holder       string
	token        int64
	until        time.Time
	lane, busy   map[string]Entry
	retry        map[string]retried
	newest       map[string]Entry // by name
}

type retried struct {
	Entry
	due time.Time
}

const (
	leaseTime = 5 * time.Second
	leaseSeen = 100 * time.Millisecond // how long before its slot a lane is looked at
)

func newMemory() *memory {
	return &memory{
		fallback: limit{every: 100 * time.Millisecond, burst: 1}, allowance: 20 * time.Millisecond,
		limits: map[string]limit{}, calls: map[string]map[string][]call{},
		state: map[string]*laneState{}, due: map[string]time.Time{},
	}
}

// memberOf is what makes two entries one.
func memberOf(e Entry) string {
	if e.Attempt == 0 && e.Cost == 1 && e.Collapse == "" {
		return fmt.Sprint(e.Seq)
	}
	return fmt.Sprint(e.Seq, e.Attempt, e.Cost, e.Order, e.First.UnixMilli(), e.Collapsed)
}

func (m *memory) of(key string) *laneState {
	s := m.state[key]
	if s == nil {
		s = &laneState{lane: map[string]Entry{}, busy: map[string]Entry{}, retry: map[string]retried{},
			newest: map[string]Entry{}}
		m.state[key] = s
	}
	return s
}

// enter counts a call and says how it fails. It returns with the memory locked. It ends a test that calls without end at one moment.
func (m *memory) enter(ctx context.Context, name, key string, n int) (fault, error) {
	gone := sleepUntil(ctx, time.Now().Add(m.took))
	m.mu.Lock()
	now := time.Now()
	if !now.Equal(m.last) {
		m.spins, m.last = 0, now
	}
	if m.spins++; m.spins > 100_000 {
		panic("100,000 calls at one moment, the last a " + name + " of " + key)
	}
	if m.calls[name] == nil {
		m.calls[name] = map[string][]call{}
	}
	m.calls[name][key] = append(m.calls[name][key], call{now, n})
	if gone != nil {
		return replyLost, gone // it was sent
	}
	if m.fault != nil {
		if f := m.fault(name); f != noFault {
			return f, errFault
		}
	}
	return noFault, nil
}

func (m *memory) look(key string, s *laneState, lead time.Duration, now time.Time) time.Duration {
	if len(s.lane)+len(s.retry) == 0 {
		return -1
	}
	if m.limit(key).every < 0 {
		return time.Minute
	}
	next := time.Minute
	if len(s.lane) > 0 {
		next = m.slot(key, s, ordered(s.lane)[0].Cost, now) - lead
	}
	for _, e := range s.retry {
		next = min(next, max(e.due.Sub(now), m.slot(key, s, e.Cost, now)-lead))
	}
	return min(max(next, s.closedUntil.Sub(now), 0), time.Minute)
}

func ordered(set map[string]Entry) []Entry {
	return slices.SortedFunc(maps.Values(set), func(a, b Entry) int {
		if a.Order == b.Order {
			return cmp.Compare(memberOf(a), memberOf(b))
		}
		return cmp.Compare(a.Order, b.Order)
	})
}

func (s *laneState) sleep(d time.Duration, now time.Time) {
	s.closedUntil = latest(s.closedUntil, now.Add(d))
	s.fails++
}

// blame keeps the last failure.
func (s *laneState) blame(text string) {
	if text != "" {
		s.failure = text
	}
}

func (s *laneState) give() {
	maps.Copy(s.lane, s.busy)
	clear(s.busy)
}

func (s *laneState) free() { s.holder, s.token, s.until = "", 0, time.Time{} }

func (s *laneState) waiting() int64 { return int64(len(s.lane) + len(s.retry)) }

// Claim takes due keys and moves them a second ahead.
func (m *memory) Claim(ctx context.Context, most int) ([]string, time.Duration, error) {
	f, err := m.enter(ctx, "claim", "", most)
	defer m.mu.Unlock()
	if f == notDone {
		return nil, 0, err
	}
	now, next := time.Now(), 250*time.Millisecond
	var keys []string
	byTime := func(a, b string) int { return cmp.Or(m.due[a].Compare(m.due[b]), cmp.Compare(a, b)) }
	for _, key := range slices.SortedFunc(maps.Keys(m.due), byTime) {
		if at := m.due[key]; at.After(now) || len(keys) == most {
			next = min(next, max(at.Sub(now), 0))
			continue
		}
		keys = append(keys, key)
		m.due[key] = now.Add(time.Second)
	}
	if f == replyLost {
		keys = nil
	}
	return keys, next, err
}

// Park adds an event to its lane.
func (m *memory) Park(ctx context.Context, r ParkRequest) (LaneInfo, error) {
	f, err := m.enter(ctx, "park", r.Key, 1)
	defer m.mu.Unlock()
	if f == notDone {
		return LaneInfo{}, err
	}
	m.note("park")
	s, now, name := m.of(r.Key), time.Now(), memberOf(r.Entry)
	var collapsed *Entry
	if _, leased := s.busy[name]; !leased {
		collapsed = s.put(r.Entry, r.After, now)
	}
	if r.Counted && s.opening > 0 {
		s.openingExtra -= r.Entry.Cost - 1
		if s.opening--; s.opening == 0 {
			s.opened, s.openingExtra = time.Time{}, 0
		}
	}
	s.blame(r.Failure)
	if r.Sleep > 0 {
		s.sleep(r.Sleep, now)
	}
	next := time.Duration(-1)
	if !s.until.After(now) {
		next = m.look(r.Key, s, leaseSeen, now)
	}
	if at, ok := m.due[r.Key]; next >= 0 && (!ok || now.Add(next).Before(at)) {
		m.due[r.Key] = now.Add(next)
	}
	each := max(0, m.limit(r.Key).every)
	return LaneInfo{Waiting: s.waiting(), Next: next, Extra: s.extra(), Each: each, Collapsed: collapsed}, err
}

// Now is the shared clock.
func (m *memory) Now() time.Time { return time.Now().Add(m.ahead) }

// indexOf is a worker's view of the memory: it holds leases under its name.
type indexOf struct {
	*memory
	worker string
}

// Lease gives one worker the right to push the next events of a lane.
func (m indexOf) Lease(ctx context.Context, r LeaseRequest) (Lease, error) {
	f, err := m.enter(ctx, "lease", r.Key, r.Max)
	defer m.mu.Unlock()
	if f == notDone {
		return Lease{}, err
	}
	s, now := m.of(r.Key), time.Now()
	if r.Token > 0 && s.token != r.Token {
		return Lease{LaneInfo: LaneInfo{Next: -1}}, err
	}
	if r.Token == 0 && s.until.After(now) && s.holder != m.worker {
		m.due[r.Key] = s.until
		return Lease{LaneInfo: LaneInfo{Waiting: int64(len(s.lane)), Next: s.until.Sub(now)}}, err
	}
	token := r.Token
	if token == 0 {
		s.give()
		token = max(now.UnixMicro(), s.token+1)
	}
	l := Lease{Token: token, Until: now.Add(leaseTime)}
	l.Events, l.Barred = m.fill(r, s, now)
	l.Fails = s.fails
	next := m.look(r.Key, s, min(leaseSeen, r.Horizon), now)
	if l.Barred > 0 {
		next = max(next, time.Second)
	}
	if len(s.busy) > 0 {
		s.holder, s.token, s.until = m.worker, token, now.Add(leaseTime)
		m.due[r.Key] = s.until
	} else {
		l.Token = 0
		s.free()
		if next >= 0 {
			next = max(next, 10*time.Millisecond)
			m.due[r.Key] = now.Add(next)
		} else {
			delete(m.due, r.Key)
		}
	}
	l.LaneInfo = LaneInfo{Waiting: s.waiting(), Next: next}
	return l, err
}

func (m indexOf) fill(r LeaseRequest, s *laneState, now time.Time) (out []Leased, barred uint64) {
	most := r.Max
	if m.perKey > 0 {
		most = min(most, m.perKey-len(s.busy))
	}
	if s.fails > 0 {
		most = min(most, 1-len(s.busy))
	}
	if s.closedUntil.After(now) || m.limit(r.Key).every < 0 {
		return nil, 0
	}
	var ready []Entry
	for _, e := range slices.SortedFunc(maps.Values(s.retry), func(a, b retried) int { return a.due.Compare(b.due) }) {
		if !e.due.After(now) && (s.fails == 0 || len(s.lane) == 0) { // another event is to find out
			ready = append(ready, e.Entry)
		}
	}
	for _, e := range append(ready, ordered(s.lane)...) {
		if r.Ordered && e.Order > r.UpTo && e.Order != r.Stray && len(out) < most {
			return out, e.Order
		}
		if len(out) >= most {
			break
		}
		superseded, costly := s.superseded(e), m.limit(r.Key).never(e.Cost)
		if superseded || costly || e.Collapsed || !e.Expires.IsZero() && !m.Now().Before(e.Expires) {
			delete(s.retry, memberOf(e))
			delete(s.lane, memberOf(e))
			e.Collapsed = e.Collapsed || superseded
			s.busy[memberOf(e)] = e
			useless := e.Collapsed || !e.Expires.IsZero() && !m.Now().Before(e.Expires)
			out = append(out, Leased{Entry: e, Useless: useless, Costly: !useless})
			continue
		}
		slot := m.slot(r.Key, s, e.Cost, now)
		if slot > r.Horizon {
			break
		}
		delete(s.retry, memberOf(e))
		delete(s.lane, memberOf(e))
		s.busy[memberOf(e)] = e
		m.charge(r.Key, s, e.Cost, now)
		out = append(out, Leased{Entry: e, At: now.Add(slot), Stale: now.Add(slot + m.allowance)})
	}
	return out, 0
}

// Settle says what became of leased events.
func (m *memory) Settle(ctx context.Context, r SettleRequest) (LaneInfo, error) {
	f, err := m.enter(ctx, "settle", r.Key, len(r.Events))
	defer m.mu.Unlock()
	if f == notDone {
		return LaneInfo{}, err
	}
	s, now := m.of(r.Key), time.Now()
	if s.token != r.Token {
		return LaneInfo{}, cmp.Or(err, ErrFenced)
	}
	if len(r.Events) > 0 {
		m.note("settle")
	}
	for _, e := range r.Events {
		if _, ok := s.busy[memberOf(e.Was)]; !ok {
			continue
		}
		delete(s.busy, memberOf(e.Was))
		if e.Fate == Back {
			s.put(e.Now, e.After, now)
		} else if s.newest[e.Was.Collapse].Seq == e.Was.Seq {
			delete(s.newest, e.Was.Collapse)
		}
	}
	if r.Healthy {
		s.fails = 0
	}
	s.blame(r.Failure)
	if r.Sleep > 0 {
		s.sleep(r.Sleep, now)
	}
	if r.Release {
		s.give()
		s.free()
	}
	next := m.look(r.Key, s, leaseSeen, now)
	switch {
	case r.Release && next >= 0:
		m.due[r.Key] = now.Add(next)
	case r.Release:
		delete(m.due, r.Key)
	case s.until.Sub(now) < leaseTime/2:
		s.until = now.Add(leaseTime)
		m.due[r.Key] = s.until
	}
	return LaneInfo{Waiting: s.waiting(), Next: next}, err
}
