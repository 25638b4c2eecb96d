package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"

	"github.com/jedib0t/go-pretty/v6/text"
	"golang.org/x/term"
)

// The escape sequences that the screen needs. Terminals that don't know how to hold back half a frame ignore that.
const (
	holdBack   = "\x1b[?2026h"
	showFrame  = "\x1b[?2026l"
	hideCursor = "\x1b[?25l"
	showCursor = "\x1b[?25h"
	eraseLine  = "\x1b[K" // from the cursor on
	eraseBelow = "\x1b[J"
)

// screen draws a frame in place, below lines that stay. Everything goes out in one write, so that nothing flickers. It may
// be used by many goroutines.
type screen struct {
	out  io.Writer
	size func() (width, height int)

	mu     sync.Mutex
	frame  []string // as drawn; nil: none
	above  int      // lines above the frame that should stay in sight
	closed bool
}

func newScreen(out *os.File) *screen {
	return &screen{out: out, size: func() (int, int) {
		width, height, err := term.GetSize(int(out.Fd()))
		if err != nil || width < 1 || height < 1 {
			return 80, 24
		}
		return width, height
	}}
}

// Write writes whole lines above the frame. An unwritable terminal is no reason to stop, so that there is no error.
func (s *screen) Write(lines []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	width, _ := s.size()
	for line := range bytes.Lines(lines) {
		s.above += rows(string(bytes.TrimRight(line, "\n")), width)
	}
	var b strings.Builder
	b.WriteString(s.toTop(width))
	if len(s.frame) > 0 {
		b.WriteString(eraseBelow)
	}
	b.WriteString(strings.ReplaceAll(string(lines), "\n", "\r\n"))
	b.WriteString(strings.Join(s.frame, "\r\n"))
	_, _ = io.WriteString(s.out, b.String())
	return len(lines), nil
}

// room is what a frame may take: what the lines above leave, but not too little.
func (s *screen) room() (width, height int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	width, height = s.size()
	const least = 12
	return width, min(max(height-s.above, least), max(height-1, 1))
}

// draw replaces the frame.
func (s *screen) draw(lines []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	width, _ := s.size()
	var b strings.Builder
	b.WriteString(holdBack)
	if s.frame == nil {
		b.WriteString(hideCursor)
	}
	b.WriteString(s.toTop(width))
	for i, line := range lines {
		if i > 0 {
			b.WriteString("\r\n")
		}
		b.WriteString(line + eraseLine)
	}
	b.WriteString(eraseBelow + showFrame)
	s.frame = lines
	_, _ = io.WriteString(s.out, b.String())
}

// toTop moves the cursor from the end of the frame to its beginning. A terminal that has become narrower has wrapped the
// frame's lines meanwhile.
func (s *screen) toTop(width int) string {
	up := -1
	for _, line := range s.frame {
		up += rows(line, width)
	}
	if up <= 0 {
		return "\r"
	}
	return fmt.Sprintf("\r\x1b[%dA", up)
}

// rows is how many lines of a terminal a text takes.
func rows(line string, width int) int {
	return max(1, (text.StringWidthWithoutEscSequences(line)+width-1)/max(1, width))
}

// close leaves the last frame and gives the cursor back; the next line begins below.
func (s *screen) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.frame != nil && !s.closed {
		_, _ = io.WriteString(s.out, "\r\n"+showCursor)
	}
	s.closed, s.frame = true, nil
}
