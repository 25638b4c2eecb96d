package statuspage

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"
)

const (
	// mostClients bounds the open streams: each costs a connection and a message of some kilobytes a second.
	mostClients = 16

	// writePatience is how long a client may take for a message before its stream ends. It comes back if it still cares.
	writePatience = 10 * time.Second

	// levelsEvery lies between two looks at the busiest keys in Redis, while somebody watches.
	levelsEvery = time.Second
)

// message is what a stream sends every second: the newest figures, and the points of the history that this client hasn't
// seen; at first all of them.
type message struct {
	Points  []point         `json:"points"`
	Figures json.RawMessage `json:"figures"`
}

// Run keeps the figures up to date until ctx ends.
func (p *Page) Run(ctx context.Context) {
	var looking sync.WaitGroup
	defer looking.Wait()
	looking.Go(func() { p.look(ctx) })
	tick := time.NewTicker(p.every)
	defer tick.Stop()
	for {
		p.update(time.Now())
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// update takes a sample and tells all clients.
func (p *Page) update(now time.Time) {
	families, _ := p.cfg.Metrics.Gather() // what can't be gathered isn't shown; /metrics says why
	s := newSample(now, families)
	p.mu.Lock()
	p.history.add(s)
	p.mu.Unlock()
	figures := p.encode(now)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.figures = figures
	close(p.changed)
	p.changed = make(chan struct{})
}

// look reads what the busiest keys have left, while somebody watches. It has its own pace, since Redis may be slow.
func (p *Page) look(ctx context.Context) {
	tick := time.NewTicker(levelsEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if p.clients.Load() > 0 {
			levels := p.readLevels(ctx)
			p.mu.Lock()
			p.levels = levels
			p.mu.Unlock()
		}
	}
}

// news is the message for a client that has seen the points up to number seen, and how it learns of the next.
func (p *Page) news(seen int64) (m message, newest int64, changed <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	points, newest := p.history.after(seen)
	return message{Points: points, Figures: p.figures}, newest, p.changed
}

// stream serves server-sent events until the client or the server ends it.
func (p *Page) stream(w http.ResponseWriter, r *http.Request) {
	if p.clients.Add(1) > mostClients {
		p.clients.Add(-1)
		w.Header().Set("Retry-After", "5")
		http.Error(w, fmt.Sprintf("%d others watch already", mostClients), http.StatusServiceUnavailable)
		return
	}
	defer p.clients.Add(-1)
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no") // proxies would collect it
	if r.Method == http.MethodHead {
		return
	}
	control := http.NewResponseController(w)
	for seen := int64(0); ; {
		m, newest, changed := p.news(seen)
		text, err := json.Marshal(m)
		if err != nil {
			return // can't be: the figures are encoded already
		}
		_ = control.SetWriteDeadline(time.Now().Add(writePatience))
		if _, err := w.Write(slices.Concat([]byte("data: "), text, []byte("\n\n"))); err != nil {
			return
		}
		if err := control.Flush(); err != nil {
			return
		}
		seen = newest
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
	}
}
