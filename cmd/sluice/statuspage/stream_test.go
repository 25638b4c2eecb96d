package statuspage

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"sluice/limiter/redisstore"
)

// serve serves the page, whose stream has news every 20 ms, until the test ends or stop is called.
func (r *rig) serve(t *testing.T, change ...func(*http.Server)) (url string, stop func()) {
	t.Helper()
	r.every = 20 * time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan struct{})
	go func() {
		defer close(ran)
		r.Run(ctx)
	}()
	server := httptest.NewUnstartedServer(r)
	for _, change := range change {
		change(server.Config)
	}
	server.Start()
	stop = func() {
		cancel()
		<-ran
		server.CloseClientConnections()
		server.Close()
	}
	t.Cleanup(stop)
	return server.URL, stop
}

// watcher is a client of a stream.
type watcher struct {
	t        *testing.T
	response *http.Response
	lines    *bufio.Scanner
	leave    func()
}

func watch(t *testing.T, url string) *watcher {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	w := &watcher{t: t, response: response, lines: bufio.NewScanner(response.Body)}
	w.lines.Buffer(nil, 1<<20)
	w.leave = func() {
		cancel()
		response.Body.Close()
	}
	t.Cleanup(w.leave)
	return w
}

// news is what a message says; ok is false when the stream has ended.
type news struct {
	Points  []point
	Figures figures
}

func (w *watcher) next() (m news, ok bool) {
	w.t.Helper()
	for w.lines.Scan() {
		if text, found := strings.CutPrefix(w.lines.Text(), "data: "); found {
			if err := json.Unmarshal([]byte(text), &m); err != nil {
				w.t.Fatal(err)
			}
			return m, true
		}
	}
	return m, false
}

func (w *watcher) must() news {
	w.t.Helper()
	m, ok := w.next()
	if !ok {
		w.t.Fatalf("the stream ended: %v", w.lines.Err())
	}
	return m
}

func TestStreamSendsTheHistoryOnceAndThenWhatIsNew(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.begin()
	r.past(names(3), 3, 2)
	url, _ := r.serve(t)
	w := watch(t, url)
	first := w.must()
	if n := len(first.Points); n < 119 {
		t.Fatalf("the first message has %d points, want the history of 2 minutes", n)
	}
	last := first.Points[len(first.Points)-1].At
	for later := 0; later < 5; {
		m := w.must()
		n := len(m.Points)
		if n == 0 { // on a busy machine nothing new was sampled yet
			continue
		}
		if n > 20 || m.Points[0].At < last {
			t.Fatalf("a later message has %d points, the first at %d, after %d", n, m.Points[0].At, last)
		}
		later, last = later+1, m.Points[n-1].At
	}
	if again := watch(t, url).must(); len(again.Points) < 119 {
		t.Errorf("another client begins with %d points", len(again.Points))
	}
}

func TestStreamOutlivesTheServersTimeouts(t *testing.T) {
	t.Parallel()
	url, _ := newRig(t).serve(t, func(s *http.Server) { s.ReadTimeout, s.WriteTimeout = 50*time.Millisecond, 50*time.Millisecond })
	w := watch(t, url)
	for begun := time.Now(); time.Since(begun) < 300*time.Millisecond; {
		w.must()
	}
}

func TestClientsAreBoundedAndGiveTheirPlaceBack(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	url, _ := r.serve(t)
	var all []*watcher
	for range mostClients {
		w := watch(t, url)
		w.must()
		all = append(all, w)
	}
	if w := watch(t, url); w.response.StatusCode != http.StatusServiceUnavailable || w.response.Header.Get("Retry-After") == "" {
		t.Errorf("one too many got %s", w.response.Status)
	}
	for _, w := range all {
		w.leave()
	}
	for deadline := time.Now().Add(10 * time.Second); r.clients.Load() > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d streams go on without a client", r.clients.Load())
		}
	}
	watch(t, url).must()
}

func TestStreamsEndWithTheirRequests(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, http.MethodGet, "/events", nil))
	}()
	cancel()
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		t.Fatal("a stream goes on after its request has ended")
	}
}

func TestRedisIsAskedOnlyWhileSomebodyWatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		var asked atomic.Int64
		var away atomic.Bool
		parts := Parts{HotKeys: r.observer.HotKeys(), Workers: func() ([]string, int) { return nil, 0 }}
		parts.Levels = func(ctx context.Context, subjects []redisstore.Subject) ([]redisstore.Level, error) {
			asked.Add(1)
			if away.Load() {
				return nil, errors.New("away")
			}
			return r.levelsOf(ctx, subjects)
		}
		r.Begin(parts)
		r.past(names(3), 3, 1)
		ctx, cancel := context.WithCancel(t.Context())
		go r.Run(ctx)
		row := func() busyKey {
			var f figures
			time.Sleep(3 * time.Second)
			synctest.Wait()
			m, _, _ := r.news(0)
			if err := json.Unmarshal(m.Figures, &f); err != nil || len(f.Busy) == 0 {
				t.Fatalf("%s, %v", m.Figures, err)
			}
			return f.Busy[0]
		}
		if k := row(); asked.Load() != 0 || k.Known {
			t.Errorf("asked %d times while nobody watches: %+v", asked.Load(), k)
		}
		r.clients.Add(1)
		if k := row(); asked.Load() < 2 || asked.Load() > 3 || !k.Known || k.Waiting == 0 || k.Burst != 20 || k.Left == nil {
			t.Errorf("asked %d times in 3 s: %+v", asked.Load(), k)
		}
		away.Store(true)
		if k := row(); k.Known {
			t.Errorf("what can't be read any more is shown on: %+v", k)
		}
		cancel()
		synctest.Wait()
	})
}
