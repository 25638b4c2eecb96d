package httplimit

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sluice/limiter"
)

func TestWhatBecomesOfEachRequestIsCounted(t *testing.T) {
	t.Parallel()
	counts := map[Result]int{}
	count := OnResult(func(r *http.Request, got Result) {
		if r == nil {
			t.Error("told of no request")
		}
		counts[got]++
	})
	quiet := OnError(func(*http.Request, error) {})
	l, broken := local(t, "2/h"), &stub{err: errors.New("away")}
	for range 5 {
		ask(request(), l, count) // two of them are allowed
	}
	for range 3 {
		ask(request(), broken, count, quiet)
	}
	ask(request(), broken, count, quiet, FailClosed())
	gone, leave := context.WithCancel(t.Context())
	leave()
	ask(request().WithContext(gone), l, count, quiet)
	ask(httptest.NewRequest("GET", "/", nil), l, count, PassKeyless())

	want := map[Result]int{Allowed: 2, Refused: 3, Uncounted: 3, Unavailable: 2, Keyless: 1}
	if !maps.Equal(counts, want) {
		t.Errorf("counted %v, want %v", counts, want)
	}
	for r := range counts {
		if !strings.Contains(" "+joined(Results)+" ", " "+string(r)+" ") {
			t.Errorf("%s isn't among the Results", r)
		}
	}
}

func joined(results []Result) string {
	var all []string
	for _, r := range results {
		all = append(all, string(r))
	}
	return strings.Join(all, " ")
}

// Not parallel: the default logger is that of the process.
func TestLimiterThatErrsIsLoggedNowAndThenUnlessOtherwiseChosen(t *testing.T) {
	var text bytes.Buffer
	was := slog.Default()
	defer slog.SetDefault(was)
	slog.SetDefault(slog.New(slog.NewTextHandler(&text, nil)))
	synctest.Test(t, func(t *testing.T) {
		h := New(&stub{err: errors.New("the server is away")}, Header("X-User"))(http.NotFoundHandler())
		for range 100 { // of 11 seconds
			h.ServeHTTP(httptest.NewRecorder(), request())
			time.Sleep(110 * time.Millisecond)
		}
	})
	said := text.String()
	if strings.Count(said, "\n") != 2 || !strings.Contains(said, "the server is away") || !strings.Contains(said, "errors=1 ") ||
		!strings.Contains(said, "errors=91 ") {
		t.Errorf("said\n%s", said)
	}
	text.Reset()
	ask(request(), &stub{decision: limiter.Decision{Verdict: limiter.Go}})
	ask(request(), &stub{err: errors.New("away")}, OnError(func(*http.Request, error) {}))
	if text.Len() > 0 {
		t.Errorf("said %s", &text)
	}
}
