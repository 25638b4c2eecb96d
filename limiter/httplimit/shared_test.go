package httplimit_test

import (
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sluice/integration/testenv"
	"sluice/limiter"
	"sluice/limiter/httplimit"
	"sluice/limiter/redisstore"
)

// servers are HTTP servers, each with a middleware and a limiter of its own on one Redis, asked in turn.
type servers struct {
	urls    []string
	turn    atomic.Int64
	handled atomic.Int64
}

func startServers(t *testing.T, limit string) *servers {
	t.Helper()
	limits, err := limiter.ParseLimits(limit)
	if err != nil {
		t.Fatal(err)
	}
	rdb := testenv.Redis(t).Client()
	s := &servers{}
	for range 3 {
		shared, err := redisstore.NewLimiter(rdb, limits, redisstore.LimiterOptions{})
		if err != nil {
			t.Fatal(err)
		}
		handler := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { s.handled.Add(1) })
		limited := httplimit.New(shared, httplimit.APIKey("X-API-Key"), httplimit.FailClosed(), httplimit.Timeout(5*time.Second))
		server := httptest.NewServer(limited(handler))
		t.Cleanup(server.Close)
		s.urls = append(s.urls, server.URL)
	}
	return s
}

func (s *servers) ask(t *testing.T, key string) *http.Response {
	request, err := http.NewRequestWithContext(t.Context(), "GET", s.urls[s.turn.Add(1)%int64(len(s.urls))], nil)
	if err != nil {
		t.Error(err)
		return nil
	}
	request.Header.Set("X-API-Key", key)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Error(err)
		return nil
	}
	_ = response.Body.Close()
	return response
}

func TestServersShareOneLimitUnderAFlood(t *testing.T) {
	t.Parallel()
	const rate, burst = 50, 20
	s := startServers(t, "50/s burst 20")
	var accepted, others atomic.Int64
	start := time.Now()
	var clients sync.WaitGroup
	for range 8 {
		clients.Go(func() {
			for time.Since(start) < time.Second {
				switch response := s.ask(t, "hammer"); {
				case response == nil:
					return
				case response.StatusCode == http.StatusOK:
					accepted.Add(1)
				case response.StatusCode != http.StatusTooManyRequests || response.Header.Get("Retry-After") != "1":
					others.Add(1)
				}
			}
		})
	}
	clients.Wait()
	most := burst + int64(rate*time.Since(start).Seconds())
	if n := accepted.Load(); n > most || n < burst+rate*8/10 {
		t.Errorf("%d accepted by three servers, want at most %d and most of that", n, most)
	}
	if s.handled.Load() != accepted.Load() || others.Load() > 0 {
		t.Errorf("%d handled of %d accepted, %d other answers", s.handled.Load(), accepted.Load(), others.Load())
	}
	if response := s.ask(t, "quiet"); response == nil || response.StatusCode != http.StatusOK {
		t.Error("another key was refused")
	}
}

// Who waits as long as the answer says is served by whatever server comes next.
func TestWaitingAsAdvisedIsAlwaysServed(t *testing.T) {
	t.Parallel()
	for _, limit := range []string{"10/11s burst 1", "2/1500ms window", "1/900ms sliding", "3/2s leaky"} {
		t.Run(limit, func(t *testing.T) {
			t.Parallel()
			s := startServers(t, limit)
			for refused := 0; refused < 1; {
				response := s.ask(t, "patient")
				if response == nil {
					return
				}
				if response.StatusCode == http.StatusOK {
					continue
				}
				refused++
				wait, err := strconv.Atoi(response.Header.Get("Retry-After"))
				if err != nil || wait < 1 || wait > 2 {
					t.Fatalf("%d, Retry-After %q", response.StatusCode, response.Header.Get("Retry-After"))
				}
				time.Sleep(time.Duration(wait) * time.Second)
				if again := s.ask(t, "patient"); again == nil || again.StatusCode != http.StatusOK {
					t.Fatalf("refused again after %d s, as advised", wait)
				}
			}
		})
	}
}
