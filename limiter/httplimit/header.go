package httplimit

import (
	"math"
	"math/bits"
	"net/http"
	"strconv"
	"time"

	"sluice/limiter"
)

// maxInteger is the greatest integer of a structured field.
const maxInteger = 999_999_999_999_999

// tell writes the fields RateLimit-Policy and, if it is known what is left, RateLimit. What isn't limited has none.
func tell(h http.Header, name string, limits limiter.Limits, d limiter.Decision) {
	if len(limits) == 0 || limits.Unlimited() {
		return
	}
	policy := make([]byte, 0, 32*len(limits))
	for i, l := range limits {
		if i > 0 {
			policy = append(policy, ", "...)
		}
		policy = appendItem(policy, policyName(name, limits, i))
		policy = appendParameter(policy, "q", l.Burst)
		if !l.Paused() {
			policy = appendParameter(policy, "w", window(l))
		}
	}
	h.Add("RateLimit-Policy", string(policy))

	left, known := d.Left()
	if !known {
		return
	}
	scarcest := min(d.Scarcest, len(limits)-1) // the limits may have changed since
	rest := appendItem(make([]byte, 0, 48), policyName(name, limits, scarcest))
	rest = appendParameter(rest, "r", left)
	if t := moreIn(limits[scarcest], d); t > 0 {
		rest = appendParameter(rest, "t", t)
	}
	h.Add("RateLimit", string(rest))
}

// policyName tells one of several limits from the others by its kind and period.
func policyName(name string, limits limiter.Limits, i int) string {
	if len(limits) == 1 {
		return name
	}
	return name + "-" + limits[i].Name()
}

// window is the time in which the whole burst comes back, in seconds: the field knows no shorter one than 1.
func window(l limiter.Limit) int64 {
	switch l.Kind {
	case limiter.Sliding:
		return seconds(l.Period)
	case limiter.Window:
		return seconds(times(l.Period, l.Burst, l.Events, true))
	default:
		return seconds(times(l.Period, l.Burst, l.Events, false))
	}
}

// times is d x n/of; wholes rounds n/of up first.
func times(d time.Duration, n, of int64, wholes bool) time.Duration {
	if wholes {
		n, of = (n+of-1)/of, 1
	}
	hi, lo := bits.Mul64(uint64(d), uint64(n))
	if hi >= uint64(of) {
		return limiter.Forever
	}
	q, _ := bits.Div64(hi, lo, uint64(of))
	return time.Duration(min(q, math.MaxInt64))
}

// moreIn is in how many seconds more comes at the latest; 0 if that can't be said. Of a refusal it is what Retry-After says.
func moreIn(l limiter.Limit, d limiter.Decision) int64 {
	switch {
	case d.Verdict != limiter.Go:
		return retryAfter(d)
	case d.Remaining >= l.Burst || l.Paused() || l.Kind == limiter.Window || l.Kind == limiter.Sliding:
		return 0
	default:
		return seconds(times(l.Period, 1, l.Events, false))
	}
}

// appendItem begins an item of a structured field, a string: visible ASCII and spaces, quoted.
func appendItem(b []byte, s string) []byte {
	b = append(b, '"')
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c >= ' ' && c <= '~':
			b = append(b, c)
		}
	}
	return append(b, '"')
}

func appendParameter(b []byte, name string, n int64) []byte {
	b = append(append(append(b, ';'), name...), '=')
	return strconv.AppendInt(b, max(0, min(n, maxInteger)), 10)
}
