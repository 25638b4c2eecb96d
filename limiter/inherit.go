package limiter

import "strings"

// inherited is what a limit without a state of its own begins with where it takes another's place: the state of a limit of its
// kind that ruled the key before and doesn't now, of several the one used last. from is its name; "" if there is none, and the
// zero State then. So a change of the unit gives no more than one of the number: nothing but what accrues.
func (m *Model) inherited(c Class) (s State, from string) {
	for name, other := range m.unused {
		if kind, _, _ := strings.Cut(name, "/"); kind != c.Kind.String() || other.Den == 0 {
			continue
		}
		if from == "" || other.usedAfter(s, c.Kind) || !s.usedAfter(other.State, c.Kind) && name < from {
			s, from = other.State, name
		}
	}
	if from == "" {
		return State{}, ""
	}
	return c.inherit(s), from
}

// usedAfter compares the states of limits of one kind. With the same time that with fewer tokens counts as the later one.
func (s State) usedAfter(other State, kind Kind) bool {
	if s.UpdatedAt != other.UpdatedAt || kind == Sliding {
		return s.UpdatedAt > other.UpdatedAt
	}
	return s.Tokens < other.Tokens
}

// inherit is the state of another limit of the kind as one of c. A level is the same under any unit. A window that was begun ends
// when it would have ended, if c's are longer, and brings what c's do. What was taken in a slice counts from its end on, but not
// from later than it can have been taken.
func (c Class) inherit(s State) State {
	switch c.Kind {
	case Window:
		s.UpdatedAt += min(0, s.Den-c.Den)
	case Sliding:
		was, length := Class{Den: s.Den}.slice(), c.slice()
		last := func(q int64) int64 {
			return floorDiv(max(q*was, min((q+1)*was-1, s.UpdatedAt+horizonMicros)), length)
		}
		counts, newest := make([]int64, Slices+1), last(s.Slice)
		for i, n := range s.Counts {
			if shift := newest - last(s.Slice-int64(i)); shift <= Slices {
				counts[shift] += n
			}
		}
		s.Slice, s.Counts = newest, counts
	}
	return s
}
