package sink

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

// maxRetryAfter caps the pause that a receiver may ask for, so that a mistake of its clock can't stop a key for good.
const maxRetryAfter = 24 * time.Hour

// parseRetryAfter reads the lines of a Retry-After header: seconds, of which a part counts as one, or HTTP dates, which are
// compared with now. Of several values, by lines or by commas, the longest counts, so that no reading of the header finds
// the next attempt too early. It says false for whatever asks for no pause: nonsense, zero, and dates that are over. The
// pause is at most [maxRetryAfter].
func parseRetryAfter(lines []string, now time.Time) (time.Duration, bool) {
	var longest time.Duration
	for _, line := range lines {
		before := ""
		for value := range strings.SplitSeq(line, ",") {
			// Most dates hold a comma.
			longest = max(longest, pauseOf(value, now), pauseUntil(before+","+value, now))
			before = value
		}
	}
	return longest, longest > 0
}

// pauseOf reads one value without a comma.
func pauseOf(value string, now time.Time) time.Duration {
	value = strings.Trim(value, " \t")
	whole, part, _ := strings.Cut(value, ".")
	if whole+part == "" || strings.Trim(whole+part, "0123456789") != "" {
		return pauseUntil(value, now)
	}
	// More digits than an int64 holds still ask for a long pause.
	seconds, err := strconv.ParseInt("0"+whole, 10, 64)
	if err != nil || seconds >= int64(maxRetryAfter/time.Second) {
		return maxRetryAfter
	}
	if strings.Trim(part, "0") != "" {
		seconds++
	}
	return time.Duration(seconds) * time.Second
}

// pauseUntil reads a date; 0 if it is none.
func pauseUntil(date string, now time.Time) time.Duration {
	at, err := http.ParseTime(strings.Trim(date, " \t"))
	if err != nil {
		return 0
	}
	return max(0, min(at.Sub(now), maxRetryAfter))
}
