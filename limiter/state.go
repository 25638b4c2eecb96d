package limiter

import "math"

// clockTolerance is by how many microseconds a clock may go back before that is taken as the new time. Below it the time
// stands still until the clock has caught up.
const clockTolerance = int64(1_000_000)

// State is what is kept of one limit: the fields of its hash in Redis, all integers, times in microseconds. The zero State
// is a missing one.
//
// Tokens of a limit that are promised for later are taken from the level at once, and those that the level would lose at
// its cap until then, too: the level is that of the line that passes through what is left at the promised time. So one
// number holds any promises, and what the line says of earlier times is never too much.
type State struct {
	// Bucket, Leaky: the level was Tokens + Frac/Den at UpdatedAt; negative: promised already.
	// Window: Tokens are left of the window that began at UpdatedAt; negative: of later ones, promised already.
	Tokens, Frac int64

	Den       int64 // of the class, at least 1
	UpdatedAt int64 // Sliding: the time of the last reservation

	// Sliding: tokens taken in each slice, newest first; Counts[0] is of slice number Slice, which begins at Slice x length.
	Slice  int64
	Counts []int64 // Slices + 1 of them
}

// refill brings a state to now. since is when states were lost, 0: never; a missing one then holds only what has accrued
// since. The caller's state stays as it is. rebased says that the clock went back too far to wait for it, which has to be
// stored even if nothing is taken.
func (c Class) refill(s State, now, since int64) (_ State, rebased bool) {
	if c.Kind == Sliding {
		return c.refillSliding(s, now, since)
	}
	switch {
	case s.Den != 0:
	case since == 0:
		s = State{Tokens: c.Burst, Den: c.Den, UpdatedAt: now}
	default:
		s = State{Den: c.Den, UpdatedAt: since}
	}
	if s.Den != c.Den {
		s.Frac, s.Den = rescale(s.Frac, s.Den, c.Den), c.Den
	}
	if s.UpdatedAt-now > clockTolerance {
		s.UpdatedAt, rebased = now, true
	}
	s = c.cutDebt(s, now)

	gone := now - s.UpdatedAt
	switch {
	case gone <= 0:
	case c.Kind == Window:
		windows := gone / c.Den
		s.UpdatedAt += windows * c.Den // not now: the windows don't drift
		if windows >= ceilDiv(c.Burst-s.Tokens, c.Num) {
			s.Tokens = max(s.Tokens, c.Burst)
		} else {
			s.Tokens += windows * c.Num
		}
	default:
		s.UpdatedAt = now
		if s.Tokens >= c.Burst || gone >= ceilDiv((c.Burst-s.Tokens)*c.Den-s.Frac, c.Num) { // first, so that gone*Num can't overflow
			s.Tokens = max(s.Tokens, c.Burst)
		} else {
			units := s.Frac + gone*c.Num
			s.Tokens, s.Frac = s.Tokens+units/c.Den, units%c.Den
		}
	}
	if s.Tokens >= c.Burst {
		s.Tokens, s.Frac = c.Burst, 0 // a full one drops its fraction
	}
	return s, rebased
}

// cutDebt makes a debt no greater than what a second pays off: promises are for a second at most, so that what is beyond
// was promised under a faster limit. All of it has been pushed a second after UpdatedAt, and from then on tokens accrue.
// That time is kept rather than a level below 0, so that the faster limit, which other workers may still go by, finds
// nothing either.
func (c Class) cutDebt(s State, now int64) State {
	second := c.Num * horizonMicros
	switch {
	case c.Kind == Window: // tokens come at the ends of windows, of which one more may lie within a second
		s.Tokens = max(s.Tokens, -(horizonMicros/c.Den+1)*c.Num)
	case s.Tokens < -second/c.Den-2 || s.Tokens < 0 && c.units(s) < -second: // the first, so that units can't overflow
		s.Tokens, s.Frac, s.UpdatedAt = 0, 0, min(s.UpdatedAt, now)+horizonMicros
	}
	return s
}

// rescale turns a fraction f/from into one of to, rounded down as far as doubles go: the scripts compute the same.
func rescale(f, from, to int64) int64 {
	return min(to-1, int64(math.Floor(float64(float64(f)/float64(from))*float64(to))))
}

// units is the level of a bucket's line at UpdatedAt in 1/Den tokens.
func (c Class) units(s State) int64 { return s.Tokens*c.Den + s.Frac }

// fits says how many tokens a refilled state can pay at now.
func (c Class) fits(s State, now int64) int64 {
	switch {
	case c.Kind == Sliding:
		if s.Slice*c.slice() > now {
			return 0
		}
		return max(0, c.Num-c.used(s, now))
	case c.Kind == Window: // before UpdatedAt, when the clock went back, without what that window brought
		return max(0, s.Tokens+floorDiv(now-s.UpdatedAt, c.Den)*c.Num)
	default:
		return max(0, (c.units(s)-c.Num*max(0, s.UpdatedAt-now))/c.Den)
	}
}

// earliest is the first time, not before now, at which a refilled state can pay cost tokens. cost is at most Burst, or the
// answer is when a bucket with room for them would hold them.
func (c Class) earliest(s State, now, cost int64) int64 {
	switch c.Kind {
	case Sliding:
		return c.earliestSliding(s, now, cost)
	case Window:
		return max(now, s.UpdatedAt+ceilDiv(cost-s.Tokens, c.Num)*c.Den)
	default:
		return max(now, s.UpdatedAt+ceilDiv((cost-s.Tokens)*c.Den-s.Frac, c.Num))
	}
}

// charge takes cost tokens from a refilled state at the time at, which is not before the state's earliest. What the level
// would have lost at its cap until then is lost.
func (c Class) charge(s State, now, at, cost int64) State {
	switch c.Kind {
	case Sliding:
		return c.chargeSliding(s, at, cost)
	case Window:
		level := s.Tokens + floorDiv(at-s.UpdatedAt, c.Den)*c.Num
		s.Tokens -= cost + max(0, level-c.Burst)
	default:
		units := c.units(s)
		if at > c.earliest(s, now, cost) { // at the earliest there is at most the fraction of a microsecond too much
			units -= max(0, units+c.Num*(at-s.UpdatedAt)-c.Burst*c.Den)
		}
		units -= cost * c.Den
		s.Tokens = floorDiv(units, c.Den)
		s.Frac = units - s.Tokens*c.Den
	}
	return s
}

// fullAt is when a refilled state is as good as a missing one, if nothing more is taken.
func (c Class) fullAt(s State, now int64) int64 {
	switch c.Kind {
	case Sliding:
		return c.fullSliding(s, now)
	case Window:
		return max(now, s.UpdatedAt+ceilDiv(c.Burst-s.Tokens, c.Num)*c.Den)
	default:
		return max(now, s.UpdatedAt+ceilDiv((c.Burst-s.Tokens)*c.Den-s.Frac, c.Num))
	}
}

// floorDiv is floor(a/b), b > 0.
func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

// ceilDiv is ceil(a/b), b > 0.
func ceilDiv(a, b int64) int64 { return -floorDiv(-a, b) }
