package main

import (
	"bytes"
	"io"
	"log"
	"log/slog"
	"regexp"
	"sync"
	"time"
)

const (
	maxLibraryLine   = 1000 // bytes of one that are kept: the beginning of a stack, too
	libraryLineEvery = 10 * time.Second
)

// libraryLog takes what libraries print by the standard log, net/http above all, and logs a line of it now and then: whoever sends
// what makes a library complain decides how often it does.
type libraryLog struct {
	log *slog.Logger

	mu   sync.Mutex
	last time.Time
	left int // lines that were left out since
}

// quoted is a text in a library's line that others wrote. It may hold a secret of the request that it answers.
var quoted = regexp.MustCompile(`"(?:[^"\\]|\\.)*"`)

// Write takes one line.
func (l *libraryLog) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if now.Sub(l.last) < libraryLineEvery {
		l.left++
		return len(line), nil
	}
	text := quoted.ReplaceAll(bytes.TrimSpace(line), []byte("[hidden]"))
	l.log.Warn("a library says: "+visible(string(text[:min(len(text), maxLibraryLine)])), "left_out", l.left)
	l.last, l.left = now, 0
	return len(line), nil
}

// captureLibraries leads the standard log to a logger, until the function returned is called.
func captureLibraries(to *slog.Logger) (release func()) {
	log.SetFlags(0)
	log.SetOutput(&libraryLog{log: to})
	return silenceLibraries
}

// silenceLibraries drops what libraries print. Commands tell of all that fails by themselves.
func silenceLibraries() { log.SetOutput(io.Discard) }
