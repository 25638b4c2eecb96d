// Package statuspage looks at the status page with a browser. It is a module of its own, since nothing else needs one.
package statuspage

import (
	"context"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/prometheus/client_golang/prometheus"

	status "sluice/cmd/sluice/statuspage"
	"sluice/limiter"
	"sluice/limiter/redisstore"
	"sluice/pipeline"
	"sluice/pipeline/metrics"
	"sluice/sink"
)

// browser is the path of a Chromium.
func browser(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	const missing = "no Chromium in the PATH; Debian: apt-get install chromium"
	if os.Getenv("CI") == "true" {
		t.Fatal(missing)
	}
	t.Skip(missing)
	return ""
}

// served is the page of a worker that exists in numbers only.
type served struct {
	url      string
	observer *metrics.Observer
	start    func(address string) (stop func())
	stop     func()
}

// odd is a key that would do harm if it became part of the document, and shows its odd bytes otherwise.
const (
	odd     = "<img src=x onerror=alert(1)>\xff"
	oddText = "<img src=x onerror=alert(1)>%FF"
)

func serve(t *testing.T) *served {
	t.Helper()
	limits, err := limiter.ParseLimits("10/s burst 20")
	if err != nil {
		t.Fatal(err)
	}
	reg := prometheus.NewRegistry()
	s := &served{observer: metrics.New(reg, limiter.Fixed(limits), "webhook", sink.Classes, sink.Class)}
	p := status.New(status.Config{
		Name: "sluice", Version: "1.0.0", Hint: "sluice publish events.alice hello", Metrics: reg,
		Ready: func() (bool, map[string]string) {
			return true, map[string]string{"nats": "connected", "redis": "connected"}
		},
		Facts: func() []status.Fact { return []status.Fact{{Name: "LIMIT", Value: limits.String()}} },
	})
	p.Begin(status.Parts{
		Worker: "worker-1", HotKeys: s.observer.HotKeys(),
		Levels: func(_ context.Context, subjects []redisstore.Subject) ([]redisstore.Level, error) {
			levels := make([]redisstore.Level, len(subjects))
			for i := range levels {
				levels[i] = redisstore.Level{Limits: limits, Tokens: []int64{5}, Waiting: 1234}
			}
			return levels, nil
		},
		Workers: func() ([]string, int) { return []string{"worker-1", "worker-2"}, 0 },
	})
	s.start = func(address string) (stop func()) {
		ln, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		server := &http.Server{Handler: p}
		s.url = "http://" + ln.Addr().String()
		go func() { _ = server.Serve(ln) }()
		return func() { _ = server.Close() }
	}
	s.stop = s.start("127.0.0.1:0")
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { p.Run(ctx) })
	t.Cleanup(func() {
		s.stop()
		cancel()
		running.Wait()
	})
	return s
}

func (s *served) event(key string) {
	ev := &pipeline.Event{Key: key}
	s.observer.Received(false)
	s.observer.Decided(ev, limiter.Decision{Verdict: limiter.Go, Remaining: 5})
	s.observer.Pushed(ev, nil, time.Millisecond)
	s.observer.Latency(pipeline.Direct, 3*time.Millisecond)
	s.observer.Settled(pipeline.Delivered)
}

// visit is a browser with what it complained about and what it asked for.
type visit struct {
	t   *testing.T
	ctx context.Context

	mu         sync.Mutex
	complaints []string
	asked      []string
}

func open(t *testing.T, path, scheme string, width, height int64) *visit {
	t.Helper()
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.WSURLReadTimeout(time.Minute))
	if os.Getuid() == 0 {
		options = append(options, chromedp.NoSandbox) // it refuses root otherwise; it sees nothing but our page
	}
	allocated, stop := chromedp.NewExecAllocator(t.Context(), options...)
	t.Cleanup(stop)
	ctx, closeTab := chromedp.NewContext(allocated)
	t.Cleanup(closeTab)
	ctx, cancel := context.WithTimeout(ctx, 60*time.Second)
	t.Cleanup(cancel)
	v := &visit{t: t, ctx: ctx}
	chromedp.ListenTarget(ctx, v.hear)
	v.do(network.Enable(), emulation.SetDeviceMetricsOverride(width, height, 1, width < 500),
		emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}))
	return v
}

func (v *visit) hear(event any) {
	v.mu.Lock()
	defer v.mu.Unlock()
	switch e := event.(type) {
	case *runtime.EventConsoleAPICalled:
		v.complaints = append(v.complaints, "console: "+string(e.Type))
	case *runtime.EventExceptionThrown:
		v.complaints = append(v.complaints, e.ExceptionDetails.Error())
	case *log.EventEntryAdded:
		v.complaints = append(v.complaints, e.Entry.Text+" "+e.Entry.URL)
	case *network.EventRequestWillBeSent:
		v.asked = append(v.asked, e.Request.URL)
	}
}

func (v *visit) do(actions ...chromedp.Action) {
	v.t.Helper()
	if err := chromedp.Run(v.ctx, actions...); err != nil {
		v.t.Fatal(err)
	}
}

// await waits until a condition on the page holds.
func (v *visit) await(condition string) {
	v.t.Helper()
	if err := chromedp.Run(v.ctx, chromedp.Poll(condition, nil, chromedp.WithPollingInterval(50*time.Millisecond), chromedp.WithPollingTimeout(20*time.Second))); err != nil {
		var text string
		_ = chromedp.Run(v.ctx, chromedp.Evaluate("document.body.innerText", &text))
		v.t.Fatalf("waiting for %s: %v; the page says\n%s", condition, err, text)
	}
}

func (v *visit) text(expression string) (text string) {
	v.t.Helper()
	v.do(chromedp.Evaluate(expression, &text))
	return text
}

// wantPeace fails if the browser complained, asked anyone but the page's server, or has to be scrolled sideways.
func (v *visit) wantPeace(url string) {
	v.t.Helper()
	var sideways bool
	v.do(chromedp.Evaluate("document.documentElement.scrollWidth > innerWidth", &sideways))
	if sideways {
		v.t.Error("the page is wider than the window")
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.complaints) > 0 {
		v.t.Errorf("the browser complains: %q", v.complaints)
	}
	for _, asked := range v.asked {
		if !strings.HasPrefix(asked, url+"/") {
			v.t.Errorf("it asked for %s", asked)
		}
	}
}

func TestPageInABrowser(t *testing.T) {
	path := browser(t)
	for _, window := range []struct {
		name, scheme  string
		width, height int64
	}{{"light", "light", 1280, 900}, {"dark", "dark", 1280, 900}, {"phone", "dark", 360, 740}} {
		t.Run(window.name, func(t *testing.T) {
			s := serve(t)
			v := open(t, path, window.scheme, window.width, window.height)
			v.do(chromedp.Navigate(s.url + "/"))
			v.await(`document.getElementById("state-text").textContent === "working"`)
			v.await(`document.getElementById("no-keys").innerText.includes("sluice publish events.alice hello")`)

			for range 10 {
				s.event(odd)
				s.event("alice")
			}
			v.await(`document.querySelectorAll("#keys tr").length === 2`)
			v.await(`document.getElementById("keys").innerText.includes("1,234")`)
			if keys := v.text(`[...document.querySelectorAll("#keys .key")].map((e) => e.textContent).sort().join("|")`); keys != oddText+"|alice" {
				t.Errorf("the keys are %q", keys)
			}
			v.await(`document.getElementById("totals").innerText.includes("20")`)
			var elements int
			v.do(chromedp.Evaluate(`document.querySelectorAll("img, iframe").length`, &elements))
			if elements != 0 {
				t.Error("a key has become part of the document")
			}
			v.wantPeace(s.url)
			v.do(emulation.SetDeviceMetricsOverride(max(window.width*5/8, 320), window.height, 1, false))
			v.await(`["tiles", "fleet"].every((id) => byId(id).lastElementChild.getBoundingClientRect().right > byId(id).getBoundingClientRect().right - 3)`)
			v.wantPeace(s.url)
		})
	}
}

func TestChartsAreReadByKeyboard(t *testing.T) {
	path := browser(t)
	s := serve(t)
	v := open(t, path, "light", 1280, 900)
	v.do(chromedp.Navigate(s.url + "/"))
	v.await(`points.length >= 2`)
	v.do(chromedp.KeyEvent(kb.Tab)) // the first thing to reach
	v.await(`document.activeElement.classList.contains("plot")`)
	v.do(chromedp.KeyEvent(kb.ArrowLeft))
	v.await(`/^\d\d:\d\d:\d\d\s+received \S+, delivered \S+$/.test(document.querySelector("[data-chart=flow] output").textContent)`)
	v.do(chromedp.KeyEvent(kb.Escape))
	v.await(`document.querySelector("[data-chart=flow] output").textContent === ""`)
	v.wantPeace(s.url)
}

func TestFiguresAreWrittenForPeople(t *testing.T) {
	path := browser(t)
	s := serve(t)
	v := open(t, path, "light", 1280, 900)
	v.do(chromedp.Navigate(s.url + "/"))
	v.await(`points.length >= 1`)
	got := v.text(`[0, 0.0042, 0.25, 0.9999, 59.94, 59.97, 61, 3599.7, 7320, 200000].map(duration).join("|") + " " + [0, 0.004, 0.5, 12.34, 123456, 7.5e6].map((x) => rate(x)).join("|")`)
	if want := "0 s|4.2 ms|250 ms|1.0 s|59.9 s|1 min 0 s|1 min 1 s|1 h 0 min|2 h 2 min|2 days 0|< 0.01|0.50|12.3|123,456|7.50 M"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestPageTellsThatItsWorkerIsGone(t *testing.T) {
	path := browser(t)
	s := serve(t)
	v := open(t, path, "light", 1280, 900)
	v.do(chromedp.Navigate(s.url + "/"))
	v.await(`document.getElementById("state-text").textContent === "working"`)
	s.stop()
	v.await(`document.getElementById("state-text").textContent.startsWith("no word from the worker")`)
	s.stop = s.start(strings.TrimPrefix(s.url, "http://"))
	v.await(`document.getElementById("state-text").textContent === "working"`)
}
