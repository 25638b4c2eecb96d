package limiter

// Slices is the number of parts that the period of a [Sliding] limit is cut into. It divides a millisecond, so that every
// period of the grammar has slices of equal length. A token counts from the begin of the slice in which it was taken until
// a period after that slice's end: never too short, and too long by less than one slice. With a backlog at least
// Slices/(Slices+1) of the events pass.
const Slices = 20

// slice is the length of a slice in microseconds.
func (c Class) slice() int64 { return ceilDiv(c.Den, Slices) }

// expires is when the tokens taken in slice number q no longer count.
func (c Class) expires(q int64) int64 { return (q+1)*c.slice() + c.Den }

// refillSliding brings a state to now, so that its newest slice is that of now, or a later one with promised tokens.
func (c Class) refillSliding(s State, now, since int64) (_ State, rebased bool) {
	counts := make([]int64, Slices+1)
	copy(counts, s.Counts)
	s.Counts = counts
	if s.Den == 0 {
		s.UpdatedAt = now
		if since != 0 {
			c.assumeSpent(&s, since)
		}
	}
	s.Den = c.Den

	switch ahead := s.UpdatedAt - now; {
	case ahead > clockTolerance: // tokens keep their age, or grow younger by less than a slice
		s.Slice -= ahead / c.slice()
		s.UpdatedAt, rebased = now, true
	case ahead < 0:
		s.UpdatedAt = now
	}
	s.begin(floorDiv(now, c.slice()))
	return s, rebased
}

// assumeSpent fills a state lost at since as if all tokens had been taken at that moment, the latest that can have been: nothing is
// known of them.
func (c Class) assumeSpent(s *State, since int64) {
	s.UpdatedAt, s.Slice = since, floorDiv(since, c.slice())
	s.Counts[0] = c.Num
}

// begin makes slice number q the newest, unless it is older. The slices that fall out expire before it begins.
func (s *State) begin(q int64) {
	shift := q - s.Slice
	if shift <= 0 {
		return
	}
	keep := max(0, int64(len(s.Counts))-shift)
	copy(s.Counts[min(shift, int64(len(s.Counts))):], s.Counts[:keep])
	clear(s.Counts[:min(shift, int64(len(s.Counts)))])
	s.Slice = q
}

// used is the number of tokens that count at t, which is not before the newest slice.
func (c Class) used(s State, t int64) int64 {
	n := int64(0)
	for i, count := range s.Counts {
		if c.expires(s.Slice-int64(i)) > t {
			n += count
		}
	}
	return n
}

// earliestSliding never answers a time before the newest slice, so that no token is taken between others that are promised:
// all that a window can hold lies before its last token, and was looked at when that was taken.
func (c Class) earliestSliding(s State, now, cost int64) int64 {
	t := max(now, s.Slice*c.slice())
	used := c.used(s, t)
	for i := Slices; i >= 0 && used+cost > c.Num; i-- {
		if end := c.expires(s.Slice - int64(i)); end > t && s.Counts[i] > 0 {
			used -= s.Counts[i]
			t = end
		}
	}
	return t
}

// chargeSliding counts in the slice of at.
func (c Class) chargeSliding(s State, at, cost int64) State {
	s.begin(floorDiv(at, c.slice()))
	s.Counts[0] += cost
	return s
}

// fullSliding is when nothing counts any more.
func (c Class) fullSliding(s State, now int64) int64 {
	for i, count := range s.Counts {
		if count > 0 {
			return max(now, c.expires(s.Slice-int64(i)))
		}
	}
	return now
}
