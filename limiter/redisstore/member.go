package redisstore

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"sluice/limiter"
	"sluice/pipeline"
)

// exact is the largest number below which doubles hold all others: scores of Redis, numbers of Lua.
const exact = 1<<53 - 1

// digits is how long the longest sequence is.
const digits = 20

// member is an entry as it stands in the sets: its sequence alone for an event that was never tried, costs 1, never expires
// and has no name. One whose order a score doesn't hold begins with that, in all its digits: Redis sorts members of one score
// by their bytes.
func member(e pipeline.Entry) string {
	seq := strconv.FormatUint(e.Seq, 10)
	if e.Order > exact {
		seq = fmt.Sprintf("%0*d%0*d", digits, e.Order, digits, e.Seq)
	} else if e.Attempt == 0 && e.Cost == 1 && e.Expires.IsZero() && e.Collapse == "" {
		return seq
	}
	m := fmt.Sprintf("%s,%d,%d,%d,%d,%d", seq, e.Attempt, e.Cost, millis(e.Expires), e.Order, millis(e.First))
	switch {
	case e.Collapse == "":
		return m
	case e.Collapsed:
		return m + ",!" + limiter.EncodeKey(e.Collapse)
	}
	return m + "," + limiter.EncodeKey(e.Collapse)
}

// millis is t in Unix milliseconds, at least 1; 0 for no time.
func millis(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return max(1, t.UnixMilli())
}

// parseMember reads a member with that score, where it has one. It reads what readable in waiting.lua says can be read, but for
// names.
func parseMember(m, score string) (pipeline.Entry, error) {
	f := strings.Split(m, ",")
	e := pipeline.Entry{Cost: 1}
	var errs [8]error
	seq := f[0]
	if len(seq) == 2*digits && len(f) > 1 {
		score, seq = seq[:digits], seq[digits:]
	}
	e.Seq, errs[0] = sequence(seq)
	e.Order, errs[1] = sequence(score)
	if len(f) > 6 {
		name, collapsed := strings.CutPrefix(f[6], "!")
		e.Collapsed = collapsed
		e.Collapse, errs[2] = limiter.DecodeKey(name)
	}
	number := func(i int) (n uint64) {
		if i < len(f) {
			if n, errs[2+i] = sequence(f[i]); errs[2+i] == nil && n > exact {
				errs[2+i] = fmt.Errorf("%q is too large", f[i])
			}
		}
		return n
	}
	if len(f) > 4 {
		order, err := sequence(f[4])
		if errs[6] = err; len(f[0]) == 2*digits && order != e.Order {
			errs[6] = fmt.Errorf("it has two orders, %d and %d", e.Order, order)
		}
	}
	if len(f) > 1 {
		e.Attempt, e.Cost = int(number(1)), max(1, int64(number(2)))
		if ms := number(3); ms > 0 {
			e.Expires = time.UnixMilli(int64(ms))
		}
		if ms := number(5); ms > 0 {
			e.First = time.UnixMilli(int64(ms))
		}
	}
	return e, errors.Join(errs[:]...)
}

// sequence reads what is 64 bits wide.
func sequence(s string) (uint64, error) {
	if len(s) > digits {
		return 0, fmt.Errorf("%q is too long", s)
	}
	return strconv.ParseUint(s, 10, 64)
}
