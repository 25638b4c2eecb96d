package stream

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	beatEvery = time.Second
	beatsLive = 3 * time.Second // a worker is gone when it wasn't heard for so long
	beatsSure = 2 * time.Second // who has listened for less may not have heard everybody
)

// Fleet tells which workers of the pipeline are alive and whether they see Redis, by plain NATS messages: each says so
// every second, and at once when it changes.
type Fleet struct {
	nc      *nats.Conn
	subject string
	self    string

	mu     sync.Mutex
	info   WorkerInfo // this worker
	speaks bool       // Run has begun
	heard  map[string]beat
	since  time.Time // since when this worker hears itself, and so others; zero: it doesn't
}

// beat is what was heard last of a worker.
type beat struct {
	at   time.Time
	away bool
}

// WorkerInfo is what a worker tells of itself. It is the payload of a message on sluice.worker, in JSON.
type WorkerInfo struct {
	ID       string        `json:"id"`
	Away     bool          `json:"away,omitempty"`     // it is without Redis
	Limits   LimitsVersion `json:"limits"`             // that rule in it
	Settings string        `json:"settings,omitempty"` // tells equal settings from others
	Build    string        `json:"build,omitempty"`
	Since    time.Time     `json:"since,omitzero"` // when it started, by its own clock
}

func parseWorkerInfo(data []byte) (info WorkerInfo, ok bool) {
	err := json.Unmarshal(data, &info)
	return info, err == nil && info.ID != ""
}

// Worker is the core NATS subject on which workers tell that they are alive.
func (n Names) Worker() string { return n.name + ".worker" }

// JoinFleet begins to listen; Run speaks. The ID of self is unique among the live workers.
func JoinFleet(nc *nats.Conn, cfg Config, self WorkerInfo) (*Fleet, error) {
	f := &Fleet{nc: nc, subject: cfg.names().Worker(), self: self.ID, info: self, heard: map[string]beat{}}
	if _, err := nc.Subscribe(f.subject, func(msg *nats.Msg) {
		if info, ok := parseWorkerInfo(msg.Data); ok {
			f.hear(info, time.Now())
		}
	}); err != nil {
		return nil, explain(nc, fmt.Sprintf("listening on %s", f.subject), err)
	}
	return f, nil
}

// Run tells every second that this worker is alive, until ctx ends.
func (f *Fleet) Run(ctx context.Context) {
	f.mu.Lock()
	f.speaks = true
	f.mu.Unlock()
	beats := time.NewTicker(beatEvery)
	defer beats.Stop()
	for {
		f.say()
		select {
		case <-ctx.Done():
			return
		case <-beats.C:
		}
	}
}

// Tell says whether this worker is without Redis.
func (f *Fleet) Tell(away bool) {
	f.mu.Lock()
	changed := f.info.Away != away
	f.info.Away = away
	f.mu.Unlock()
	if changed {
		f.say()
	}
}

// RunsLimits says which limits rule in this worker.
func (f *Fleet) RunsLimits(v LimitsVersion) {
	f.mu.Lock()
	f.info.Limits = v
	speaks := f.speaks
	f.mu.Unlock()
	if speaks {
		f.say()
	}
}

func (f *Fleet) say() {
	f.mu.Lock()
	note, err := json.Marshal(f.info)
	f.mu.Unlock()
	if err == nil {
		_ = f.nc.Publish(f.subject, note) // unsaid: then nothing is heard either, and Workers answers none
	}
}

func (f *Fleet) hear(note WorkerInfo, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if note.ID == f.self {
		if now.Sub(f.heard[f.self].at) > beatsLive {
			f.since = now
		}
		note.Away = f.info.Away // what was said before the last Tell may come after it
	}
	f.heard[note.ID] = beat{at: now, away: note.Away}
}

// Workers answers the ids of the live workers, this one among them, in order, and how many of them are without Redis. It
// answers none while that isn't sure: without NATS, and for the first seconds after.
func (f *Fleet) Workers() (ids []string, away int) { return f.workers(time.Now()) }

func (f *Fleet) workers(now time.Time) (ids []string, away int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now.Sub(f.heard[f.self].at) > beatsLive || now.Sub(f.since) < beatsSure {
		return nil, 0
	}
	for id, b := range f.heard {
		if now.Sub(b.at) > beatsLive {
			delete(f.heard, id)
			continue
		}
		ids = append(ids, id)
		if id == f.self && f.info.Away || id != f.self && b.away {
			away++
		}
	}
	slices.Sort(ids)
	return ids, away
}
