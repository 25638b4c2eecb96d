package pipeline

import (
	"log/slog"
	"sync"
	"time"
)

const (
	digestEvery = time.Second
	digestTold  = 10 // lines in that time, and one more
)

// digest logs what may happen very often: in each second the first few, one of each key, and then how many there were more.
type digest struct {
	log  *slog.Logger
	what string // the message of one
	more string // the message of how many more

	mu    sync.Mutex
	begun time.Time
	told  map[string]bool // keys
	left  int             // not told
	last  error           // of those
}

func newDigest(log *slog.Logger, what, more string) *digest {
	return &digest{log: log, what: what, more: more, told: map[string]bool{}}
}

// see tells of one; err is its cause and attrs are for slog.
func (d *digest) see(key string, err error, attrs ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	if now.Sub(d.begun) >= digestEvery {
		d.flush()
		d.begun = now
		clear(d.told)
	}
	if len(d.told) < digestTold && !d.told[key] {
		d.told[key] = true
		d.log.Warn(d.what, append(append([]any{"key", key}, attrs...), "err", err)...)
		return
	}
	if d.left == 0 {
		time.AfterFunc(digestEvery-now.Sub(d.begun), d.end)
	}
	d.left++
	d.last = err
}

// end tells of those that weren't.
func (d *digest) end() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.flush()
}

func (d *digest) flush() {
	if d.left > 0 {
		d.log.Warn(d.more, "count", d.left, "last_err", d.last)
		d.left = 0
	}
}
