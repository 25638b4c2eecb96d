package httplimit

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sluice/limiter"
)

func local(t testing.TB, text string) *limiter.Local {
	t.Helper()
	limits, err := limiter.ParseLimits(text)
	if err != nil {
		t.Fatal(err)
	}
	l, err := limiter.NewLocal(limits)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// stub answers what it is told.
type stub struct {
	decision limiter.Decision
	err      error
	hang     bool
	keys     []string
	costs    []int64
}

func (s *stub) Reserve(ctx context.Context, key string, cost int64, _ time.Duration) (limiter.Decision, error) {
	s.keys, s.costs = append(s.keys, key), append(s.costs, cost)
	if s.hang {
		<-ctx.Done()
		return limiter.Decision{}, ctx.Err()
	}
	return s.decision, s.err
}

func (s *stub) Limits(string) limiter.Limits {
	return limiter.Limits{{Events: 10, Period: time.Second, Burst: 20}}
}

// ask sends one request through the middleware and says whether the handler was called.
func ask(r *http.Request, l Limiter, options ...Option) (w *httptest.ResponseRecorder, handled int) {
	h := New(l, Header("X-User"), options...)(http.HandlerFunc(func(w http.ResponseWriter, got *http.Request) {
		handled++
		if got != r {
			panic("the handler got another request than came")
		}
		w.WriteHeader(http.StatusTeapot)
	}))
	w = httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w, handled
}

func request() *http.Request {
	r := httptest.NewRequest("GET", "/", nil)
	r.Header.Set("X-User", "alice")
	return r
}

func TestRefusedRequestNeverReachesTheHandler(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name       string
		decision   limiter.Decision
		retryAfter string
	}{
		{"microseconds", limiter.Decision{Verdict: limiter.Park, Wait: time.Microsecond}, "1"},
		{"a second", limiter.Decision{Verdict: limiter.Park, Wait: time.Second}, "1"},
		{"a little more", limiter.Decision{Verdict: limiter.Park, Wait: time.Second + time.Microsecond}, "2"},
		{"overflow", limiter.Decision{Verdict: limiter.Overflow, Wait: 1500 * time.Millisecond}, "2"},
		{"a slot that nobody waits for", limiter.Decision{Verdict: limiter.Hold, Wait: time.Second}, "1"},
		{"paused", limiter.Decision{Verdict: limiter.Park, Reason: limiter.Paused}, "60"},
		{"never", limiter.Decision{Verdict: limiter.Never}, ""},
	} {
		w, handled := ask(request(), &stub{decision: tt.decision})
		if w.Code != http.StatusTooManyRequests || handled != 0 || w.Header().Get("Retry-After") != tt.retryAfter {
			t.Errorf("%s: %d, handled %d times, Retry-After %q, want 429, 0, %q",
				tt.name, w.Code, handled, w.Header().Get("Retry-After"), tt.retryAfter)
		}
	}
	w, handled := ask(request(), &stub{decision: limiter.Decision{Verdict: limiter.Go}})
	if w.Code != http.StatusTeapot || handled != 1 || w.Header().Get("Retry-After") != "" {
		t.Errorf("allowed: %d, handled %d times, %v", w.Code, handled, w.Header())
	}
}

func TestLimiterThatErrsOrHangsLetsPassOrRefusesAsChosen(t *testing.T) {
	t.Parallel()
	away := errors.New("away")
	for _, l := range []*stub{{err: away}, {hang: true}} {
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			var told []error
			note := OnError(func(_ *http.Request, err error) { told = append(told, err) })

			w, handled := ask(request(), l, note)
			if w.Code != http.StatusTeapot || handled != 1 || w.Header().Get("RateLimit") != "" {
				t.Errorf("open: %d, handled %d times, %v", w.Code, handled, w.Header())
			}
			w, handled = ask(request(), l, note, FailClosed(), Timeout(time.Second))
			if w.Code != http.StatusServiceUnavailable || handled != 0 || w.Header().Get("Retry-After") != "1" {
				t.Errorf("closed: %d, handled %d times, %v", w.Code, handled, w.Header())
			}
			want := time.Duration(0)
			if l.hang {
				want = 1100 * time.Millisecond
			}
			if took := time.Since(start); took != want || len(told) != 2 {
				t.Errorf("took %v, want %v; errors told: %v", took, want, told)
			}
		})
	}
}

// Else who hangs up at once has the work done without tokens.
func TestRequestOfGoneClientIsNotHandledUncounted(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, l := range []Limiter{local(t, "1/h"), &stub{hang: true}} {
		if w, handled := ask(request().WithContext(ctx), l); handled != 0 || w.Code != http.StatusServiceUnavailable {
			t.Errorf("%d, handled %d times", w.Code, handled)
		}
	}
}

func TestHandlersContextOutlivesTheLimitersTimeout(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := New(local(t, "1/h"), Header("X-User"))(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			time.Sleep(time.Minute)
			if err := r.Context().Err(); err != nil {
				t.Error(err)
			}
			panic(http.ErrAbortHandler)
		}))
		defer func() {
			if recover() != http.ErrAbortHandler {
				t.Error("the handler's panic didn't come through")
			}
		}()
		h.ServeHTTP(httptest.NewRecorder(), request())
	})
}

func TestKeylessRequestCountsForItsPeerUnlessItMayPass(t *testing.T) {
	t.Parallel()
	l := local(t, "1/h")
	keyless := httptest.NewRequest("GET", "/", nil)
	for i, want := range []int{http.StatusTeapot, http.StatusTooManyRequests} {
		if w, _ := ask(keyless, l); w.Code != want {
			t.Errorf("request %d without a key: %d, want %d", i, w.Code, want)
		}
	}
	if w, _ := ask(keyless, l, PassKeyless()); w.Code != http.StatusTeapot || w.Header().Get("RateLimit") != "" {
		t.Errorf("keyless ones may pass: %d, %v", w.Code, w.Header())
	}
	if w, _ := ask(request(), l); w.Code != http.StatusTeapot {
		t.Errorf("another key: %d", w.Code)
	}
}

func TestLongKeysAreShortenedAndCostsPassedOn(t *testing.T) {
	t.Parallel()
	s := &stub{}
	long := request()
	long.Header.Set("X-User", strings.Repeat("u", limiter.MaxKey))
	cost := Cost(func(r *http.Request) int64 { return int64(len(r.URL.Path)) - 1 })
	ask(long, s)
	ask(httptest.NewRequest("GET", "/abc", nil), s, cost)
	ask(request(), s, cost)
	if len(s.keys[0]) > limiter.MaxKey || s.keys[0] == "" || s.costs[0] != 1 || s.costs[1] != 3 || s.costs[2] != 1 {
		t.Errorf("keys %q, costs %v; want a short first key, costs 1, 3, 1", s.keys, s.costs)
	}
}

func BenchmarkMiddlewareOverLocal(b *testing.B) {
	h := New(local(b, "1000000/s"), Header("X-User"))(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	r, w := request(), httptest.NewRecorder()
	b.ReportAllocs()
	for b.Loop() {
		clear(w.Header())
		h.ServeHTTP(w, r)
	}
}
