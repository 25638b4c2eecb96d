// Package freshfile keeps what files hold of passwords, keys and certificates, and reads it again when the files change, so that
// these can be exchanged while a process runs. A file that can't be used at the moment, since it is being rewritten or is missing,
// changes nothing: the last good value stays, and that is told once.
package freshfile

import (
	"context"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// settle is for how long files have to be unchanged to be read: whoever rewrites one writes on within that.
	settle = 100 * time.Millisecond
	// rounds of settle are waited for at most: a connection is waiting.
	rounds = 4
	// sure is the age from which on a file's time tells of each change. Some file systems count it in seconds.
	sure = 2 * time.Second
)

// Value is what some files hold together. All methods may be called at the same time.
type Value[T any] struct {
	name  string
	paths []string
	parse func(texts []string) (T, error)
	log   *slog.Logger

	value  atomic.Pointer[T]
	looked atomic.Int64 // when Now looked at the files last, in Unix nanoseconds

	mu       sync.Mutex
	read     []os.FileInfo // of the files as they were when they were read; nil: not yet
	texts    []string
	readAt   time.Time
	changing []os.FileInfo // as they were when they were first seen to be others
	since    time.Time
	failing  bool // the operator knows
}

// New returns a value that is first until the files have been read. name is what the log calls them; parse makes the value of
// the texts of the files, in their order, and its errors hold no secret.
func New[T any](first T, log *slog.Logger, name string, parse func(texts []string) (T, error), paths ...string) *Value[T] {
	v := &Value[T]{name: name, paths: paths, parse: parse, log: log}
	v.value.Store(&first)
	return v
}

// Open is New with what the files hold now.
func Open[T any](log *slog.Logger, name string, parse func(texts []string) (T, error), paths ...string) (*Value[T], error) {
	texts := make([]string, len(paths))
	for i, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		texts[i] = string(text)
	}
	first, err := parse(texts)
	if err != nil {
		return nil, err
	}
	return New(first, log, name, parse, paths...), nil
}

// Now is the value as of at most 100 ms ago, or 200 ms while a file is being written. It never waits, and is cheap. Until
// something has changed it is the same.
func (v *Value[T]) Now() T {
	now := time.Now().UnixNano()
	if last := v.looked.Load(); now-last < int64(settle) && now >= last || !v.looked.CompareAndSwap(last, now) {
		return *v.value.Load()
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.look()
	return *v.value.Load()
}

// Await is the value as it is now. While a file is being written it waits a moment for its end, or that of ctx.
func (v *Value[T]) Await(ctx context.Context) T {
	for range rounds {
		v.mu.Lock()
		known := v.failing // then nobody is about to mend it
		done := v.look()
		v.mu.Unlock()
		if done || known {
			break
		}
		select {
		case <-ctx.Done():
			return *v.value.Load()
		case <-time.After(settle):
		}
	}
	return *v.value.Load()
}

// look reads the files if they have changed, and answers false when that would be too early.
func (v *Value[T]) look() bool {
	seen, err := v.stat()
	if err != nil {
		v.fail(err)
		return false
	}
	if same(seen, v.read) && v.readAt.Sub(newest(seen)) > sure {
		return true
	}
	now := time.Now()
	if !same(seen, v.changing) {
		v.changing, v.since = seen, now
	}
	// A time to come is that of another clock: then only what was seen here counts.
	if now.Sub(newest(seen)) < settle && now.Sub(v.since) < settle {
		return same(seen, v.read)
	}
	return v.readFiles(seen, now)
}

func (v *Value[T]) readFiles(seen []os.FileInfo, now time.Time) bool {
	texts := make([]string, len(v.paths))
	for i, path := range v.paths {
		text, err := os.ReadFile(path)
		if err != nil {
			v.fail(err)
			return false
		}
		texts[i] = string(text)
	}
	if after, err := v.stat(); err != nil || !same(seen, after) {
		return false
	}
	value, err := v.parse(texts)
	if err != nil {
		v.fail(err)
		return false
	}
	if v.failing {
		v.failing = false
		v.log.Info(v.name + " can be used again")
	}
	if !slices.Equal(texts, v.texts) {
		if v.texts != nil {
			v.log.Info(v.name+" was read again", "files", strings.Join(v.paths, ", "))
		}
		v.value.Store(&value)
		v.texts = texts
	}
	v.read, v.readAt = seen, now
	return true
}

// fail tells once that files can't be used.
func (v *Value[T]) fail(err error) {
	if v.failing {
		return
	}
	v.failing = true
	v.log.Warn(v.name+" can't be used as it is now; what was read before stays", "files", strings.Join(v.paths, ", "), "err", err)
}

func (v *Value[T]) stat() ([]os.FileInfo, error) {
	all := make([]os.FileInfo, len(v.paths))
	for i, path := range v.paths {
		info, err := os.Stat(path)
		if err != nil {
			return nil, err
		}
		all[i] = info
	}
	return all, nil
}

// same says whether files are the same ones, unchanged.
func same(a, b []os.FileInfo) bool {
	return slices.EqualFunc(a, b, func(a, b os.FileInfo) bool {
		return os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
	})
}

// newest is when the last of the files was changed.
func newest(files []os.FileInfo) (at time.Time) {
	for _, f := range files {
		if t := f.ModTime(); t.After(at) {
			at = t
		}
	}
	return at
}
