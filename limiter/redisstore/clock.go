package redisstore

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// clock relates Redis' clock to this process' monotonic one, so that a reply tells when its script ran however late it
// comes: by the least difference between receiving a reply and the script's time that was seen lately. That is the true
// difference and the shortest way of a reply. A time that it answers is never before the script's, so that nothing counted
// from it is too early, and after it by no more than that way.
type clock struct {
	mu           sync.Mutex
	start        time.Time // of the window
	best, before int64     // least differences in this window and the one before it, in microseconds
}

const (
	clockWindow = 5 * time.Second // the clocks run apart by less than a millisecond in two of them
	never       = int64(1) << 62
)

var processStart = time.Now()

// at answers when a script ran whose Redis time was now.
func (c *clock) at(sent, received time.Time, now int64) time.Time {
	seen := received.Sub(processStart).Microseconds() - now
	c.mu.Lock()
	switch age := received.Sub(c.start); {
	case c.start.IsZero() || age >= 2*clockWindow:
		c.start, c.best, c.before = received, never, never
	case age >= clockWindow:
		c.start, c.best, c.before = received, never, c.best
	}
	c.best = min(c.best, seen)
	offset := min(c.best, c.before)
	c.mu.Unlock()

	ran := processStart.Add(micros(now + offset))
	switch {
	case ran.Before(sent): // Redis' clock went back
		return sent
	case ran.After(received):
		return received
	}
	return ran
}

// wall relates Redis' clock to this process' monotonic one, also while no call is answered: this machine's own may be wrong,
// and jump.
type wall struct {
	offset atomic.Int64 // Redis' clock less the monotonic time since processStart, in microseconds; 0: not known
	apart  bool         // it differs from this machine's, and that was told; used by Run only
}

const (
	clocksApart  = 5 * time.Second // is told: receivers allow webhook-timestamp some minutes at best
	compareEvery = 10 * time.Second
)

// ran answers when a script ran whose Redis time was now, by c, which has seen the other replies of its kind.
func (s *Store) ran(c *clock, sent, received time.Time, now int64) time.Time {
	at := c.at(sent, received, now)
	s.wall.see(at, now)
	return at
}

// see notes that Redis' clock showed now at a time of this process.
func (w *wall) see(at time.Time, now int64) {
	w.offset.Store(now - at.Sub(processStart).Microseconds())
}

// askTime is for before the first event is judged, which may be before the first other call.
func (s *Store) askTime(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	now, err := s.rdb.Time(ctx).Result()
	if err != nil {
		return fmt.Errorf("redis: asking for the time: %w", err)
	}
	s.wall.see(time.Now(), now.UnixMicro())
	return nil
}

// Now is the time by Redis' clock; by this machine's until Redis was asked.
func (s *Store) Now() time.Time {
	if offset := s.wall.offset.Load(); offset != 0 {
		return time.UnixMicro(time.Since(processStart).Microseconds() + offset)
	}
	return time.Now()
}

// ahead is what Redis' clock is ahead of this machine's, as of now.
func (s *Store) ahead() time.Duration {
	return s.Now().Sub(time.Now().Round(0)) // without the monotonic reading, which doesn't know how the clock was set
}

// compareClocks tells when the clocks begin and cease to differ.
func (s *Store) compareClocks() {
	ahead := s.ahead()
	apart := ahead.Abs() > clocksApart
	if apart == s.wall.apart {
		return
	}
	s.wall.apart = apart
	if !apart {
		s.opt.Log.Info("this machine's clock agrees with Redis' again")
		return
	}
	s.opt.Log.Warn("this machine's clock and Redis' differ; limits and the ages of events go by Redis', webhook-timestamp by this "+
		"machine's, so that receivers may refuse what it pushes: run NTP on both", "redis_ahead", ahead.Round(time.Millisecond))
}
