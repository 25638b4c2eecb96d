package limiter

import (
	"maps"
	"math"
	"slices"
	"time"
)

// Model is the limits of one key and their state, with the time as an argument: what the scripts do in Redis, in plain
// data. It is for one goroutine at a time; [Local] is the limiter for many keys.
//
// Times are microseconds of one clock, positive. A clock that goes back by up to a second stands still until it has caught
// up; one that goes back further is the new time.
type Model struct {
	// Since is when the states of all keys were lost, 0: never. A missing state then holds only what accrued since.
	Since int64

	plan   *plan
	states []State         // of plan.classes
	unused map[string]kept // by name, of limits that are no longer among them
}

// kept is a state that may be gone on with.
type kept struct {
	State
	fullAt int64 // when it says no more than a missing one, by the limit that it was of last
}

// NewModel returns a model that has seen no event yet. Limits that the arithmetic can't hold are an error.
func NewModel(limits Limits) (*Model, error) {
	p, err := newPlan(limits)
	if err != nil {
		return nil, err
	}
	return &Model{plan: p, states: make([]State, len(p.classes))}, nil
}

// SetLimits changes the limits. Each goes on with the state of its name: a lower burst cuts what there was at once, a higher
// one adds nothing. A limit with a new name goes on with the state of one of its kind that is no longer among them; else it
// begins as a missing one.
func (m *Model) SetLimits(limits Limits) error {
	p, err := newPlan(limits)
	if err != nil {
		return err
	}
	m.follow(p)
	return nil
}

func (m *Model) follow(p *plan) {
	all := make(map[string]kept, len(m.states)+len(m.unused))
	maps.Copy(all, m.unused)
	for i, s := range m.states {
		if s.Den != 0 {
			all[m.plan.names[i]] = kept{s, m.plan.classes[i].fullAt(s, s.UpdatedAt)}
		}
	}
	states := make([]State, len(p.classes))
	for i, name := range p.names {
		states[i] = all[name].State
		delete(all, name)
	}
	m.plan, m.states, m.unused = p, states, all
}

// State is what is kept of the limit with a name, as of the last reservation that changed it.
func (m *Model) State(name string) State {
	s := m.unused[name].State
	if i := slices.Index(m.plan.names, name); i >= 0 {
		s = m.states[i]
	}
	s.Counts = slices.Clone(s.Counts)
	return s
}

// Reservation is the answer to a call of [Model.Reserve].
type Reservation struct {
	Granted   int64         // so many of the events may go now
	Scheduled int64         // so many of the others have a slot
	Slots     []int64       // the times of those, in order
	Wait      time.Duration // from now until a further event of this cost could go, rounded up; Forever
	Remaining int64         // whole tokens that the limit with the fewest has left for now; math.MaxInt64 if unlimited
	Scarcest  int           // the place of that limit in the Limits
}

// Reserve takes the tokens of up to n events of the same cost, at least 1, in the order of the events: now, or at the
// earliest time at which all limits have them, if that is at most horizon (1 s at most) ahead. An event takes its tokens
// from every limit or from none. A horizon below 0 takes nothing and asks only for Wait. Unlimited events have all they
// want, paused ones nothing; a cost above [Limits.MaxCost] is never paid.
func (m *Model) Reserve(now, n, cost int64, horizon time.Duration) Reservation {
	return m.reserve(now, n, max(1, cost), int64(floorDiv(int64(min(horizon, MaxHorizon)), int64(time.Microsecond))))
}

// reserve is Reserve with a horizon of any number of microseconds.
func (m *Model) reserve(now, n, cost, horizon int64) Reservation {
	switch {
	case m.plan.unlimited:
		return Reservation{Granted: max(0, n), Remaining: math.MaxInt64}
	case m.plan.paused || cost > m.plan.maxCost:
		return Reservation{Wait: Forever}
	}
	states, rebased, from := m.refilled(now)
	var r Reservation
	if horizon >= 0 {
		r.Granted = m.plan.fits(states, now, n, cost)
		if r.Granted > 0 {
			m.plan.charge(states, now, now, r.Granted*cost)
		}
	}
	next := m.plan.earliest(states, now, cost)
	for r.Granted+r.Scheduled < n && horizon >= 0 && next <= now+horizon {
		m.plan.charge(states, now, next, cost)
		r.Slots = append(r.Slots, next)
		r.Scheduled++
		next = m.plan.earliest(states, now, cost)
	}
	r.Wait = duration(next - now)
	r.Remaining, r.Scarcest = m.plan.scarcest(states, now)
	for i := range states {
		if r.Granted+r.Scheduled > 0 || rebased[i] {
			m.states[i] = states[i]
			delete(m.unused, from[i])
		}
	}
	return r
}

// FullAt is the time, at least now, from which on the key is as good as one never seen, if nothing more is taken: the
// expiry of its state. What was spent under limits that no longer rule counts, as they may rule again.
func (m *Model) FullAt(now int64) int64 {
	states, _, _ := m.refilled(now)
	at := now
	for i, c := range m.plan.classes {
		at = max(at, c.fullAt(states[i], now))
	}
	for _, s := range m.unused {
		at = max(at, s.fullAt)
	}
	return at
}

// refilled brings the states to now. from are the names of the limits that those without a state take the place of.
func (m *Model) refilled(now int64) (states []State, rebased []bool, from []string) {
	states, rebased, from = make([]State, len(m.states)), make([]bool, len(m.states)), make([]string, len(m.states))
	for i, c := range m.plan.classes {
		s := m.states[i]
		if s.Den == 0 {
			s, from[i] = m.inherited(c)
		}
		states[i], rebased[i] = c.refill(s, now, m.Since)
	}
	return states, rebased, from
}

// duration is so many microseconds.
func duration(micros int64) time.Duration {
	if micros > int64(Forever/time.Microsecond) {
		return Forever
	}
	return time.Duration(micros) * time.Microsecond
}

// minAllowance is how late after its time a token may always be used.
const minAllowance = 20 * time.Millisecond

// plan is limits with all that is computed from them once. It doesn't change.
type plan struct {
	limits            Limits // in their order
	paused, unlimited bool
	maxCost           int64
	allowance         time.Duration // how late a token may be used: one token's time, or a little more
	classes           []Class       // of the limits in their order; none while nothing is counted
	names             []string      // of the classes
}

func newPlan(limits Limits) (*plan, error) {
	limits, err := slices.Clone(limits).canonical()
	if err != nil {
		return nil, err
	}
	p := &plan{limits: limits, paused: limits.Paused(), unlimited: limits.Unlimited(), maxCost: limits.MaxCost()}
	allowance := Forever
	for _, l := range limits {
		if p.uncounted() {
			break
		}
		c, err := l.Class()
		if err != nil {
			return nil, err
		}
		if c.Kind == Sliding { // one token's time more would be one event more in a period
			allowance = 0
		}
		allowance = min(allowance, c.Every())
		p.classes = append(p.classes, c)
		p.names = append(p.names, l.Name())
	}
	p.allowance = max(minAllowance, allowance)
	return p, nil
}

func (p *plan) uncounted() bool { return p.paused || p.unlimited }

// fits says how many of n events all limits can pay now.
func (p *plan) fits(states []State, now, n, cost int64) int64 {
	for i, c := range p.classes {
		n = min(n, c.fits(states[i], now)/cost)
	}
	return max(0, n)
}

// scarcest is the fewest tokens that any limit can pay now, and the place of that limit.
func (p *plan) scarcest(states []State, now int64) (tokens int64, place int) {
	tokens = math.MaxInt64
	for i, c := range p.classes {
		if n := c.fits(states[i], now); n < tokens {
			tokens, place = n, i
		}
	}
	return tokens, place
}

// earliest is the greatest of the limits' earliest times. What fits a limit at one time fits it at any later one.
func (p *plan) earliest(states []State, now, cost int64) int64 {
	at := now
	for i, c := range p.classes {
		at = max(at, c.earliest(states[i], now, cost))
	}
	return at
}

// charge takes cost from every limit at the time at.
func (p *plan) charge(states []State, now, at, cost int64) {
	for i, c := range p.classes {
		states[i] = c.charge(states[i], now, at, cost)
	}
}
