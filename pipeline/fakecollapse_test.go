package pipeline

import (
	"context"
	"maps"
	"slices"
	"time"
)

// put lets an event wait, and answers the one that is to be dropped for it, or the event itself if a newer one is there.
func (s *laneState) put(e Entry, after time.Duration, now time.Time) (dropped *Entry) {
	drop := func(e Entry) *Entry {
		e.Collapsed = true
		s.retry[memberOf(e)] = retried{e, time.Time{}}
		return &e
	}
	if s.superseded(e) {
		return drop(e)
	}
	if e.Collapse != "" && !e.Collapsed {
		if last, ok := s.newest[e.Collapse]; ok && last.Order < e.Order {
			_, waits := s.lane[memberOf(last)]
			_, retries := s.retry[memberOf(last)]
			if waits || retries {
				delete(s.lane, memberOf(last))
				delete(s.retry, memberOf(last))
				dropped = drop(last)
			}
		}
		s.newest[e.Collapse] = e
	}
	if after > 0 {
		s.retry[memberOf(e)] = retried{e, now.Add(after)}
	} else {
		s.lane[memberOf(e)] = e
	}
	return dropped
}

func (s *laneState) superseded(e Entry) bool {
	return e.Collapse != "" && !e.Collapsed && s.newest[e.Collapse].Order > e.Order
}

// Holds says whether an event may be in its lane.
func (m *memory) Holds(ctx context.Context, key string, order uint64) (bool, error) {
	f, err := m.enter(ctx, "holds", key, 1)
	defer m.mu.Unlock()
	if f != noFault {
		return false, err
	}
	s := m.of(key)
	has := func(e Entry) bool { return e.Order == order }
	for _, e := range s.retry {
		if has(e.Entry) {
			return true, nil
		}
	}
	return slices.ContainsFunc(slices.Collect(maps.Values(s.lane)), has) || slices.ContainsFunc(slices.Collect(maps.Values(s.busy)), has), nil
}

// Forget takes an event that was to be dropped out of the index.
func (m *memory) Forget(ctx context.Context, key string, e Entry) (bool, error) {
	f, err := m.enter(ctx, "forget", key, 1)
	defer m.mu.Unlock()
	if f == notDone {
		return false, err
	}
	s := m.of(key)
	_, was := s.retry[memberOf(e)]
	delete(s.retry, memberOf(e))
	return was, err
}
