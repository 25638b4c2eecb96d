package pipeline

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
)

// logCounter counts log lines by their message.
type logCounter struct {
	mu    sync.Mutex
	lines map[string]int
}

func (l *logCounter) Enabled(context.Context, slog.Level) bool { return true }
func (l *logCounter) WithAttrs([]slog.Attr) slog.Handler       { return l }
func (l *logCounter) WithGroup(string) slog.Handler            { return l }

func (l *logCounter) Handle(_ context.Context, r slog.Record) error {
	text := r.Message
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "call" {
			text += ": " + a.Value.String()
		}
		return true
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lines == nil {
		l.lines = map[string]int{}
	}
	l.lines[text]++
	return nil
}

// about counts the lines about calls that fail, and lists them.
func (l *logCounter) about() (n int, list string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var lines []string
	for _, text := range slices.Sorted(maps.Keys(l.lines)) {
		if strings.Contains(text, "call") {
			n += l.lines[text]
			lines = append(lines, fmt.Sprintf("%d x %s", l.lines[text], text))
		}
	}
	return n, strings.Join(lines, "\n")
}
