package redisstore

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// latencies keeps the 99th percentile of the last calls.
type latencies struct {
	mu   sync.Mutex
	ring [512]time.Duration
	n    int
	last atomic.Int64
}

func (l *latencies) add(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ring[l.n%len(l.ring)] = d
	l.n++
	if l.n%64 == 0 {
		sorted := slices.Clone(l.ring[:min(l.n, len(l.ring))])
		slices.Sort(sorted)
		l.last.Store(int64(sorted[len(sorted)*99/100]))
	}
}

func (l *latencies) p99() time.Duration { return time.Duration(l.last.Load()) }
