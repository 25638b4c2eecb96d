// Package statuspage is a worker's status page: one document that a browser keeps up to date over a stream of server-sent
// events. It only shows; nothing can be changed by it, and it asks no other host for anything.
package statuspage

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"net/http"
	"path"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sluice/limiter/redisstore"
	"sluice/pipeline/metrics"
)

// Config is what a page shows from the start.
type Config struct {
	Name    string // of the pipeline
	Version string // of the program
	Hint    string // a command that publishes an event, for those who see none
	Metrics prometheus.Gatherer
	Ready   func() (bool, map[string]string) // as the probe answers
	Facts   func() []Fact                    // the settings in force
}

// Fact is a setting with its value, as people write it.
type Fact struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Parts are what a page shows once the worker is connected.
type Parts struct {
	Worker  string // its id
	HotKeys *metrics.HotKeys
	Levels  func(ctx context.Context, subjects []redisstore.Subject) ([]redisstore.Level, error)
	Workers func() (ids []string, away int) // those alive, and how many of them are without Redis; none: not known
}

// Page is the page of one worker. Run has to run.
type Page struct {
	cfg     Config
	mux     *http.ServeMux
	every   time.Duration // between two samples
	begun   time.Time
	parts   atomic.Pointer[Parts]
	clients atomic.Int64 // streams that are open

	mu      sync.Mutex
	history history
	levels  map[string]redisstore.Level // of the busiest keys, as last read
	figures []byte                      // the newest ones, in JSON
	changed chan struct{}               // closed when there are newer ones
}

//go:embed index.html page.css charts.js page.js icon.svg
var assets embed.FS

// New returns a page. It shows the worker's parts once [Page.Begin] has told them.
func New(cfg Config) *Page {
	p := &Page{cfg: cfg, mux: http.NewServeMux(), every: time.Second, begun: time.Now(), changed: make(chan struct{})}
	p.figures = p.encode(time.Now())
	p.mux.Handle("GET /{$}", asset("index.html"))
	for _, name := range []string{"page.css", "charts.js", "page.js", "icon.svg"} {
		p.mux.Handle("GET /page/"+name, asset(name))
	}
	p.mux.HandleFunc("GET /events", p.stream)
	return p
}

// Begin tells what the worker is made of.
func (p *Page) Begin(parts Parts) { p.parts.Store(&parts) }

// policy lets the page load its own style, script and stream, and nothing else; nobody may put it into a frame.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// ServeHTTP serves the page at /, its parts below /page/, and its stream at /events.
func (p *Page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	p.mux.ServeHTTP(w, r)
}

var assetTypes = map[string]string{
	".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml",
}

// asset serves an embedded file, which browsers ask for anew only when it has changed.
func asset(name string) http.Handler {
	body, err := fs.ReadFile(assets, name)
	if err != nil {
		panic(err) // it is embedded; every test of the page would meet this
	}
	sum := sha256.Sum256(body)
	tag := `"` + hex.EncodeToString(sum[:8]) + `"`
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Type", assetTypes[path.Ext(name)])
		h.Set("Cache-Control", "no-cache")
		h.Set("ETag", tag)
		if r.Header.Get("If-None-Match") == tag {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		_, _ = w.Write(body) // the caller went away: nothing to be done
	})
}
