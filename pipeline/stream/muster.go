package stream

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// hearingAll is after what time everybody who is alive was heard.
const hearingAll = beatEvery + 250*time.Millisecond

// Muster hears the workers of a pipeline, for those who aren't one.
type Muster struct {
	sub   *nats.Subscription
	since time.Time
	news  chan struct{} // somebody was heard; holds one

	mu    sync.Mutex
	heard map[string]WorkerInfo
}

// CallMuster begins to listen; what is said once it has returned is heard.
func CallMuster(ctx context.Context, nc *nats.Conn, cfg Config) (*Muster, error) {
	m := &Muster{news: make(chan struct{}, 1), heard: map[string]WorkerInfo{}}
	subject := cfg.names().Worker()
	var err error
	if m.sub, err = nc.Subscribe(subject, m.hear); err == nil {
		ctx, cancel := context.WithTimeout(ctx, connectTimeout)
		defer cancel()
		err = nc.FlushWithContext(ctx)
	}
	if err != nil {
		return nil, explain(nc, fmt.Sprintf("listening on %s", subject), err)
	}
	m.since = time.Now()
	return m, nil
}

func (m *Muster) hear(msg *nats.Msg) {
	info, ok := parseWorkerInfo(msg.Data)
	if !ok {
		return
	}
	m.mu.Lock()
	m.heard[info.ID] = info
	m.mu.Unlock()
	select {
	case m.news <- struct{}{}:
	default:
	}
}

// Close ends the listening.
func (m *Muster) Close() { _ = m.sub.Unsubscribe() }

// Workers listens until everybody was heard, and answers them, by id.
func (m *Muster) Workers(ctx context.Context) []WorkerInfo {
	sleep(ctx, time.Until(m.since.Add(hearingAll)))
	return m.workers()
}

func (m *Muster) workers() []WorkerInfo {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.SortedFunc(maps.Values(m.heard), func(a, b WorkerInfo) int { return cmp.Compare(a.ID, b.ID) })
}

// Await listens until everybody was heard and runs the limits of v, at most for d after that could be. behind are those who
// don't.
func (m *Muster) Await(ctx context.Context, v LimitsVersion, d time.Duration) (all, behind []WorkerInfo) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	everybody := time.After(time.Until(m.since.Add(hearingAll)))
	heardAll := false
	for {
		all = m.workers()
		behind = slices.DeleteFunc(slices.Clone(all), func(w WorkerInfo) bool { return w.Limits.Covers(v) })
		if heardAll && len(behind) == 0 {
			return all, nil
		}
		select {
		case <-ctx.Done():
			return all, behind
		case <-everybody:
			heardAll = true
		case <-m.news:
		}
	}
}
