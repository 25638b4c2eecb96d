package sink

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

// maxRetryAfter caps the pause that a receiver may ask for, so that a mistake of its clock can't stop a key for good.
const maxRetryAfter = 24 * time.Hour

// parseRetryAfter reads the value of a Retry-After header: whole seconds, or an HTTP date that is compared with now. It
// says false for whatever asks for no pause: nonsense, zero, and dates that are over. The pause is at most
// [maxRetryAfter].
func parseRetryAfter(value string, now time.Time) (time.Duration, bool) {
	value = strings.Trim(value, " \t")
	if value == "" {
		return 0, false
	}
	if strings.Trim(value, "0123456789") == "" {
		// More digits than an int64 holds still ask for a long pause.
		seconds, err := strconv.ParseInt(value, 10, 64)
		if err != nil || seconds > int64(maxRetryAfter/time.Second) {
			return maxRetryAfter, true
		}
		return time.Duration(seconds) * time.Second, seconds > 0
	}
	at, err := http.ParseTime(value)
	if err != nil || !at.After(now) {
		return 0, false
	}
	return min(at.Sub(now), maxRetryAfter), true
}
