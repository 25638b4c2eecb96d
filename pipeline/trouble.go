package pipeline

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// longestPause is the longest between two tries of insist.
const longestPause = 2 * time.Second

// The calls that may find no room. Of the events that wait for room one asks for it, and the next when that one has found some.
const (
	storing = "store in lane"
	burying = "dead-letter"
)

// insist calls fn until it succeeds: nothing may go on before it has. It gives up when ctx ends or nothing can help; and, if
// what it waits for is room, when the worker stops.
func (w *Worker) insist(ctx context.Context, what string, fn func(context.Context) error) error {
	asks := false
	for wait := 20 * time.Millisecond; ; wait = min(2*wait, longestPause) {
		err := fn(ctx)
		if err == nil || errors.Is(err, ErrTooLarge) || errors.Is(err, ErrFenced) || errors.Is(err, ErrGone) ||
			errors.Is(err, ErrElsewhere) {
			w.troubles.over(w.Log, what)
			return err
		}
		if ctx.Err() != nil {
			return err
		}
		if errors.Is(err, ErrFull) && !asks {
			w.troubles.see(w.Log, what, err)
			select {
			case w.asking[what] <- struct{}{}:
				defer func() { <-w.asking[what] }()
				asks, wait = true, 10*time.Millisecond // the one before may have found room
				continue
			case <-w.stopping:
			case <-ctx.Done():
			}
			return err
		}
		var stopping <-chan struct{}
		if asks {
			stopping = w.stopping
		}
		changed, told := awayFrom(err)
		// What begins as a server's absence is told by who notices it, unless that turns out to be none.
		if !told && (changed == nil || wait == longestPause) {
			w.troubles.see(w.Log, what, err)
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-changed:
			wait = 10 * time.Millisecond
		case <-stopping:
			timer.Stop()
			return err
		case <-ctx.Done():
			timer.Stop()
			return err
		}
		timer.Stop()
	}
}

// insistLast is insist for what saves the next worker a duplicate: it goes on for a moment after the drain time.
func (w *Worker) insistLast(hard context.Context, what string, fn func(context.Context) error) error {
	if hard.Err() == nil {
		return w.insist(w.last, what, fn)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(hard), laneShutdown)
	defer cancel()
	return w.insist(ctx, what, fn)
}

func sleepUntil(ctx context.Context, t time.Time) error {
	d := time.Until(t)
	if d <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// troubles tells an operator of a call that keeps failing: once when it begins, once in ten seconds while it lasts, once
// when it is over; however many events wait for it, and however often it works in between.
type troubles struct {
	lasting atomic.Int32 // calls that failed when they were last seen
	mu      sync.Mutex
	of      map[string]*trouble
}

type trouble struct {
	lasts       bool
	since, told time.Time
	seen        time.Time
	text        string
	open        bool // the operator was told of it, and not yet that it is over
}

const tellAgain = 10 * time.Second

// lanesFull is a trouble that comes and goes with every event that leaves: it lasts until it hasn't been seen for a while.
const (
	lanesFull  = "lanes full"
	fullLinger = 5 * time.Second
)

// tales are what is told of a trouble, and of its end.
func tales(what string) (begun, ended string) {
	if what == lanesFull {
		return "the lanes are full: SLUICE_OVERFLOW applies to events that would have to wait", "the lanes have room again"
	}
	return "a call keeps failing; events wait for it", "the call works again"
}

func (t *troubles) see(log *slog.Logger, what string, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	s := t.of[what]
	if s == nil {
		if t.of == nil {
			t.of = map[string]*trouble{}
		}
		s = &trouble{}
		t.of[what] = s
	}
	if !s.lasts {
		s.lasts, s.since = true, now
		t.lasting.Add(1)
	}
	s.seen = now
	if quiet := now.Sub(s.told); quiet < time.Second || quiet < tellAgain && s.text == err.Error() {
		return
	}
	s.told, s.text, s.open = now, err.Error(), true
	begun, _ := tales(what)
	log.Warn(begun, "call", what, "for", now.Sub(s.since).Round(time.Millisecond),
		"err", err)
}

func (t *troubles) over(log *slog.Logger, what string) {
	if t.lasting.Load() == 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.of[what]
	if s == nil || !s.lasts || what == lanesFull && time.Since(s.seen) < fullLinger {
		return
	}
	s.lasts = false
	t.lasting.Add(-1)
	if s.open {
		s.open = false
		_, ended := tales(what)
		log.Info(ended, "call", what, "after", time.Since(s.since).Round(time.Millisecond))
	}
}
