package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

const (
	redrawEvery = 250 * time.Millisecond // on a terminal
	lineEvery   = time.Second            // elsewhere
)

// devView shows the ledger until its context ends: a table on a terminal, a line a second elsewhere.
type devView struct {
	ledger  *ledger
	notices *notices
	task    func() string // what is being done beside; nil: nothing to tell

	lines  io.Writer // takes whole lines, beside the table too
	screen *screen   // nil: no terminal
	paint  paint
}

func newDevView(out io.Writer, l *ledger, n *notices, task func() string) *devView {
	v := &devView{ledger: l, notices: n, task: task, lines: out}
	if file, ok := out.(*os.File); ok && isTerminal(out) && os.Getenv("TERM") != "dumb" {
		v.screen = newScreen(file)
		v.lines = v.screen
		v.paint = os.Getenv("NO_COLOR") == ""
	}
	return v
}

// run returns when ctx ends, with the terminal as it was.
func (v *devView) run(ctx context.Context) {
	show, every := v.line, lineEvery
	if v.screen != nil {
		defer v.screen.close()
		show, every = v.table, redrawEvery
		show()
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			show()
		case <-ctx.Done():
			show()
			return
		}
	}
}

func (v *devView) table() {
	width, height := v.screen.room()
	s := v.ledger.snapshot(time.Now(), roomFor(height))
	status := elapsed(s.after)
	if v.task != nil {
		status += "  " + v.task()
	}
	if trouble := troubled(s.total); trouble != "" {
		status += "  " + trouble
	}
	if n, last := v.notices.seen(); n > 0 {
		status += fmt.Sprintf("  %s, the last: %s", count(int64(n), "warning"), last)
	}
	v.screen.draw(v.paint.tableLines(s, status, width, height))
}

func (v *devView) line() {
	if n, last := v.notices.fresh(); n > 0 {
		more := ""
		if n > 1 {
			more = fmt.Sprintf(" (and %d before it)", n-1)
		}
		_, _ = fmt.Fprintf(v.lines, "warning: %s%s\n", last, more)
	}
	line := plainLine(v.ledger.snapshot(time.Now(), 1))
	if v.task != nil {
		line += "; " + v.task()
	}
	_, _ = fmt.Fprintln(v.lines, line) // nobody reads: that is no reason to stop
}

// notices keep the last line of a log that is written to them.
type notices struct {
	mu    sync.Mutex
	n     int
	shown int
	last  string
}

// Write takes one line.
func (n *notices) Write(line []byte) (int, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.n++
	n.last = visible(string(bytes.TrimRight(line, "\n")))
	return len(line), nil
}

// seen is how many lines there were, and the last of them.
func (n *notices) seen() (int, string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.n, n.last
}

// fresh is how many lines came since it was last asked, and the last of them.
func (n *notices) fresh() (int, string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	fresh := n.n - n.shown
	n.shown = n.n
	return fresh, n.last
}
