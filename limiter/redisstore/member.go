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

// member is an entry as it stands in the sets: its sequence alone for an event that was never tried, costs 1, never expires
// and has no name.
func member(e pipeline.Entry) string {
	if e.Attempt == 0 && e.Cost == 1 && e.Expires.IsZero() && e.Collapse == "" {
		return strconv.FormatUint(e.Seq, 10)
	}
	m := fmt.Sprintf("%d,%d,%d,%d,%d,%d", e.Seq, e.Attempt, e.Cost, millis(e.Expires), e.Order, millis(e.First))
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

func parseMember(m string, order uint64) (pipeline.Entry, error) {
	e := pipeline.Entry{Cost: 1, Order: order}
	f := strings.Split(m, ",")
	var err error
	if len(f) > 6 {
		name, collapsed := strings.CutPrefix(f[6], "!")
		e.Collapsed = collapsed
		e.Collapse, err = limiter.DecodeKey(name)
	}
	number := func(i int) int64 {
		if i >= len(f) {
			return 0
		}
		n, e := strconv.ParseInt(f[i], 10, 64)
		err = errors.Join(err, e)
		return n
	}
	e.Seq = uint64(number(0))
	if len(f) > 1 {
		e.Attempt, e.Cost = int(number(1)), max(1, number(2))
		if ms := number(3); ms > 0 {
			e.Expires = time.UnixMilli(ms)
		}
		if ms := number(5); ms > 0 {
			e.First = time.UnixMilli(ms)
		}
	}
	return e, err
}
