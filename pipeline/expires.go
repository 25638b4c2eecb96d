package pipeline

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

const expiresHeader = "Sluice-Expires"

// ExpiresOf is when an event loses its meaning: Sluice-Expires as a time in RFC 3339, or as a duration (also in days: 2d)
// counted from published. Zero: never. An error is final for the event: it is dead-lettered as [BadHeader].
func ExpiresOf(h Header, published time.Time) (time.Time, error) {
	text, err := h.only(expiresHeader)
	if err != nil {
		return time.Time{}, err
	}
	if text = strings.TrimSpace(text); text == "" {
		return time.Time{}, nil
	}
	if t, err := ParseTime(text); err == nil {
		return t, nil
	}
	d, err := time.ParseDuration(text)
	if days, ok := strings.CutSuffix(text, "d"); ok {
		var n int64
		n, err = strconv.ParseInt(days, 10, 64)
		d = time.Duration(n) * 24 * time.Hour
		if n > maxExpiryDays {
			err = errors.New("too long")
		}
	}
	if err != nil || d < 0 {
		return time.Time{}, fmt.Errorf("%s is %.40q, neither a time such as 2026-12-24T18:00:00Z nor a duration such as 90s or 2d", expiresHeader, text)
	}
	return published.Add(d), nil
}

// ParseTime reads a time in RFC 3339, and only that: [time.Parse] also takes hours of one digit, a comma before the fraction,
// and zones beyond 23:59.
func ParseTime(text string) (time.Time, error) {
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return time.Time{}, err
	}
	zone, n := "00:00", len(text)
	if text[n-1] != 'Z' {
		zone = text[n-len(zone):]
	}
	if text[len("2006-01-02T15")] != ':' || strings.Contains(text, ",") || zone[:2] > "23" || zone[3:] > "59" {
		return time.Time{}, fmt.Errorf("%.40q is not a time as RFC 3339 has it", text)
	}
	return t, nil
}

const maxExpiryDays = 100 * 365

// errExpired says that an event is not to be pushed, mostly because its time is over: its slot goes to the next.
var errExpired = errors.New("expired")

func (ev *Event) expired(now time.Time) bool { return !ev.Expires.IsZero() && !now.Before(ev.Expires) }
