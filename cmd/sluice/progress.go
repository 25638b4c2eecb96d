package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// publishCounts is what publish prints at its end.
type publishCounts struct {
	Published  int64 `json:"published"`
	Duplicates int64 `json:"duplicates"`
	BadLines   int64 `json:"bad_lines"`
	Failed     int64 `json:"failed"`
}

func (c publishCounts) print(w io.Writer, took time.Duration, asJSON bool) error {
	seconds := took.Seconds()
	perSecond := float64(c.Published+c.Duplicates) / max(seconds, 1e-6)
	if asJSON {
		return json.NewEncoder(w).Encode(struct {
			publishCounts
			Seconds float64 `json:"seconds"`
			Rate    float64 `json:"rate"`
		}{c, seconds, perSecond})
	}
	_, err := fmt.Fprintf(w, "published %s, %s, %s, %d failed in %.1f s (%.0f/s)\n", count(c.Published, "event"),
		count(c.Duplicates, "duplicate"), count(c.BadLines, "bad line"), c.Failed, seconds, perSecond)
	return err
}

func count(n int64, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// err says what keeps the command from having succeeded.
func (c publishCounts) err(stopped error) error {
	if lost := c.BadLines + c.Failed; lost > 0 {
		return errors.Join(stopped, fmt.Errorf("%s not published", count(lost, "event")))
	}
	return stopped
}

// maxReports bounds the lines written about events that were not published.
const maxReports = 100

// progress shows how far a file is read or a list done, and what goes wrong, on a terminal or elsewhere. It may be used by many
// goroutines.
type progress struct {
	mu       sync.Mutex
	w        io.Writer
	bar      *progressbar.ProgressBar // nil: none is shown
	reported int
}

// newProgress shows a bar if w is a terminal and the size is known.
func newProgress(w io.Writer, size int64) *progress {
	p := &progress{w: w}
	if size > 0 && isTerminal(w) {
		p.bar = progressbar.NewOptions64(size, progressbar.OptionSetWriter(w), progressbar.OptionShowBytes(true),
			progressbar.OptionSetDescription("publishing"), progressbar.OptionThrottle(100*time.Millisecond),
			progressbar.OptionClearOnFinish())
	}
	return p
}

// newCountProgress shows a bar for n things if w is a terminal.
func newCountProgress(w io.Writer, doing string, n int) *progress {
	p := &progress{w: w}
	if n > 0 && isTerminal(w) {
		p.bar = progressbar.NewOptions(n, progressbar.OptionSetWriter(w), progressbar.OptionShowCount(),
			progressbar.OptionSetDescription(doing), progressbar.OptionThrottle(100*time.Millisecond), progressbar.OptionClearOnFinish())
	}
	return p
}

func (p *progress) set(offset int64) {
	if p.bar == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = p.bar.Set64(offset) // an unwritable terminal is no reason to stop
}

func (p *progress) report(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reported++
	switch {
	case p.reported > maxReports+1:
		return
	case p.reported > maxReports:
		err = errors.New("further troubles are only counted")
	}
	if p.bar != nil {
		_ = p.bar.Clear()
	}
	_, _ = fmt.Fprintf(p.w, "%s\n", err)
}

func (p *progress) close() {
	if p.bar != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		_ = p.bar.Clear()
	}
}

// isTerminal says whether a person sits at the stream.
func isTerminal(stream any) bool {
	file, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}
