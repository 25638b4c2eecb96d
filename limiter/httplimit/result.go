package httplimit

import (
	"log/slog"
	"net/http"
	"sync"
	"time"
)

// Result is what became of a request.
type Result string

const (
	Allowed     Result = "allowed"     // its tokens were taken
	Refused     Result = "refused"     // 429: it had none
	Uncounted   Result = "uncounted"   // passed without tokens, since the limiter erred
	Unavailable Result = "unavailable" // 503: the limiter erred, or the client was gone before it answered
	Keyless     Result = "keyless"     // passed without a key; see PassKeyless
)

// Results lists all results, for the values of a metric's label.
var Results = []Result{Allowed, Refused, Uncounted, Unavailable, Keyless}

// OnResult is called with what becomes of each request, before the handler is, to count them. A rising number of [Uncounted]
// says that the limit doesn't hold.
func OnResult(f func(*http.Request, Result)) Option { return func(m *middleware) { m.onResult = f } }

// tellEvery is how often it is logged, by default, that the limiter errs.
const tellEvery = 10 * time.Second

// errorLog is what becomes of the limiter's errors unless [OnError] is told: slog's default logger has the first, and one in ten
// seconds with the number of those since.
type errorLog struct {
	mu    sync.Mutex
	told  time.Time
	since int
}

func (l *errorLog) note(r *http.Request, err error) {
	if r.Context().Err() != nil {
		return // the client is gone, which is no fault of the limiter's
	}
	l.mu.Lock()
	l.since++
	since, now := l.since, time.Now()
	quiet := !l.told.IsZero() && now.Sub(l.told) < tellEvery
	if !quiet {
		l.since, l.told = 0, now
	}
	l.mu.Unlock()
	if !quiet {
		slog.WarnContext(r.Context(), "the rate limiter errs: requests pass uncounted, or are answered 503 if so chosen",
			"errors", since, "err", err)
	}
}
