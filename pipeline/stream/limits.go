package stream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"sluice/limiter"
)

// LimitsVersion says up to which change of the bucket somebody has its rules. The zero value: there is no bucket.
type LimitsVersion struct {
	Bucket int64  `json:"bucket,omitempty"` // creation time of the bucket, Unix nanoseconds: a re-created one counts from 1 again
	Seq    uint64 `json:"seq,omitempty"`    // of the last change
}

// Covers says that who has v has the change that made other.
func (v LimitsVersion) Covers(other LimitsVersion) bool {
	return v.Bucket == other.Bucket && v.Seq >= other.Seq
}

// Limits carries the rules of the KV bucket sluice_limits into a [limiter.Book], and goes on doing so.
//
// A change comes by a watch within a millisecond. A watch that broke is silent for long (15 s after a restart of the server, for
// ever when the bucket is gone), so that it is made anew after each reconnect, and what the bucket counts is compared with what was
// seen. Only what was missed is read then; everything only when that can't be told.
//
// An entry that can't be understood is ignored, told, and counted; the last good one of the same place, if the bucket still has
// it, rules on, also for workers that start later. When the bucket is gone, what was last known rules on.
type Limits struct {
	js    jetstream.JetStream
	names Names
	book  *limiter.Book
	log   *slog.Logger
	told  func(LimitsVersion)
	pace  limitsPace

	// Used by Run, or before it, only.
	watch    jetstream.KeyWatcher // nil: none
	unwatch  context.CancelFunc
	kv       jetstream.KeyValue
	mistrust bool // what was seen may not be all
	msgs     uint64
	msgsAt   LimitsVersion // when the bucket held msgs
	trouble  string        // logged last

	mu      sync.Mutex
	version LimitsVersion
	faults  map[string]uint64 // keys of entries that can't be understood, and their revisions
}

// limitsPace says how often something is looked at.
type limitsPace struct {
	compare time.Duration // what the bucket counts
	missing time.Duration // whether there is a bucket
	idle    time.Duration // after so long without a message a read has failed
	retry   time.Duration // first pause after a failure
}

var usualPace = limitsPace{compare: 30 * time.Second, missing: time.Second, idle: 10 * time.Second, retry: 250 * time.Millisecond}

const (
	mostLimitsRetry = 5 * time.Second
	mostChanges     = 1000 // that are made at once
)

var (
	errNoBucket = errors.New("there is no KV bucket of limits")
	errSilent   = errors.New("the watch has become silent")
	errMissed   = errors.New("changes were deleted out of the history before they were seen")
)

// OpenLimits reads the bucket into book; without a bucket the book stays as it is. It waits until it has read all, or ctx ends; an
// error that needs somebody to act is returned. told is called with each new version, once its rules rule; it must not block.
func OpenLimits(ctx context.Context, js jetstream.JetStream, cfg Config, book *limiter.Book, log *slog.Logger, told func(LimitsVersion)) (*Limits, error) {
	return openLimits(ctx, js, cfg, book, log, told, usualPace)
}

func openLimits(ctx context.Context, js jetstream.JetStream, cfg Config, book *limiter.Book, log *slog.Logger, told func(LimitsVersion),
	pace limitsPace) (*Limits, error) {
	l := &Limits{js: js, names: cfg.names(), book: book, log: log, told: told, pace: pace, faults: map[string]uint64{}}
	for wait := pace.retry; ; wait = min(2*wait, mostLimitsRetry) {
		err := l.begin(ctx)
		switch {
		case err == nil || errors.Is(err, errNoBucket):
			return l, nil
		case ctx.Err() != nil:
			return nil, fmt.Errorf("reading the limits: %w", context.Cause(ctx))
		}
		if err = explain(js.Conn(), "reading KV bucket "+l.names.LimitsBucket(), err); isFault(err) {
			return nil, err
		}
		l.report(err)
		sleep(ctx, wait)
	}
}

// Version is that of the rules that rule.
func (l *Limits) Version() LimitsVersion {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.version
}

// Faults is the number of entries that can't be understood.
func (l *Limits) Faults() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.faults)
}

// Run carries changes into the book until ctx ends.
func (l *Limits) Run(ctx context.Context) {
	nc := l.js.Conn()
	connected := nc.StatusChanged(nats.CONNECTED)
	defer nc.RemoveStatusListener(connected)
	defer l.end()
	wait := l.pace.retry
	for ctx.Err() == nil {
		if l.watch != nil {
			l.report(l.follow(ctx, connected))
			l.end()
			wait = l.pace.retry
		}
		err := l.begin(ctx)
		if ctx.Err() != nil {
			return
		}
		l.report(err)
		switch {
		case errors.Is(err, errNoBucket):
			sleep(ctx, l.pace.missing)
		case err != nil:
			sleep(ctx, wait/2+rand.N(wait))
			wait = min(2*wait, mostLimitsRetry)
		}
	}
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// report logs what keeps the limits from being followed, once, and that it is over.
func (l *Limits) report(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text == l.trouble {
		return
	}
	was := l.trouble
	l.trouble = text
	switch {
	case errors.Is(err, errNoBucket) && l.Version() == (LimitsVersion{}):
		l.log.Warn("there is no KV bucket of limits: SLUICE_LIMIT rules", "bucket", l.names.LimitsBucket())
	case errors.Is(err, errNoBucket):
		l.log.Error("the KV bucket of limits is gone; the limits last known rule on until it is there again", "bucket", l.names.LimitsBucket())
	case err != nil:
		l.log.Warn("following the limits; trying again", "err", err)
	case was != "":
		l.log.Info("following the limits again", "version", l.Version().Seq)
	}
}

// follow makes the changes that the watch tells. It returns when the watch has to be made anew: nil if that is all.
func (l *Limits) follow(ctx context.Context, connected <-chan nats.Status) error {
	compare := time.NewTicker(l.pace.compare)
	defer compare.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-connected:
			return nil
		case <-compare.C:
			now, err := l.look(ctx)
			switch {
			case errors.Is(err, errNoBucket):
				return err
			case err == nil && (l.mistrust || now != l.Version()):
				return nil
			}
		case e, open := <-l.watch.Updates():
			entries, _, err := l.gather(e, open)
			if err == nil {
				err = l.make(ctx, entries)
			}
			if err != nil {
				return err
			}
		}
	}
}

// make makes changes in the book.
func (l *Limits) make(ctx context.Context, entries []jetstream.KeyValueEntry) error {
	if len(entries) == 0 {
		return nil
	}
	changes := make([]limiter.Change, 0, len(entries))
	for _, e := range entries {
		l.mu.Lock()
		faults := l.faults
		l.mu.Unlock()
		c, ok, err := l.understand(ctx, e, faults)
		if err != nil {
			return err
		}
		if ok {
			changes = append(changes, c)
		}
	}
	if err := l.book.Apply(changes...); err != nil {
		return err
	}
	l.note(LimitsVersion{Bucket: l.Version().Bucket, Seq: entries[len(entries)-1].Revision()})
	return nil
}

func (l *Limits) note(v LimitsVersion) {
	l.mu.Lock()
	changed := l.version != v
	l.version = v
	l.mu.Unlock()
	if changed && l.told != nil {
		l.told(v)
	}
}
