package redisstore

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing/synctest"
	"time"

	"sluice/limiter"
	"sluice/pipeline"
)

// standIn is a store and a fleet in memory.
type standIn struct {
	mu     sync.Mutex
	broken bool // the breaker is open
	away   bool // Redis is
	turned chan struct{}
	did    []string // calls that were answered, and what was told
	fails  string   // the call that fails
	why    error    // what is told of Redis
	tries  int

	over bool // what Redis had promised has passed

	workers int
	without int // other workers without Redis
	self    bool
}

func (s *standIn) note(format string, args ...any) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	what := fmt.Sprintf(format, args...)
	if s.away || s.fails != "" && strings.HasPrefix(what, s.fails) {
		return errAway
	}
	s.did = append(s.did, what)
	return nil
}

func (s *standIn) Reserve(_ context.Context, key, _ string, _ int64, horizon time.Duration) (limiter.Decision, error) {
	if horizon == time.Second {
		return limiter.Decision{Verdict: limiter.Hold, At: time.Now().Add(time.Second)}, s.note("hold %s", key)
	}
	return limiter.Decision{Verdict: limiter.Go}, s.note("reserve %s", key)
}

func (s *standIn) Park(_ context.Context, r pipeline.ParkRequest) (pipeline.LaneInfo, error) {
	return pipeline.LaneInfo{Waiting: 7}, s.note("park %s", r.Key)
}

func (s *standIn) Claim(context.Context, int) ([]string, time.Duration, error) {
	return []string{"k"}, time.Second, s.note("claim")
}

func (s *standIn) Lease(_ context.Context, r pipeline.LeaseRequest) (pipeline.Lease, error) {
	return pipeline.Lease{Token: 1}, s.note("lease %s", r.Key)
}

func (s *standIn) Settle(_ context.Context, r pipeline.SettleRequest) (pipeline.LaneInfo, error) {
	return pipeline.LaneInfo{}, s.note("settle %s", r.Key)
}

func (s *standIn) Holds(_ context.Context, key string, _ uint64) (bool, error) {
	return false, s.note("holds %s", key)
}

func (s *standIn) Forget(_ context.Context, key string, _ pipeline.Entry) (bool, error) {
	return true, s.note("forget %s", key)
}

func (s *standIn) Now() time.Time { return time.Now() }

func (s *standIn) reachable() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.broken
}

func (s *standIn) passed(yes bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = yes
}

func (s *standIn) promisesOver() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.over
}

func (s *standIn) turns() <-chan struct{} { return s.turned }

func (s *standIn) try(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tries++
	if s.away {
		return cmp.Or(s.why, errAway)
	}
	s.broken, s.why = false, nil
	return nil
}

func (s *standIn) Trouble() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.why
}

func (s *standIn) Open(context.Context) error { return s.note("open") }

func (s *standIn) charge(debts []debt) error {
	var owed []string
	for _, d := range debts {
		owed = append(owed, fmt.Sprintf("{%s %v}", d.key, d.tokens))
	}
	return s.note("charge %v", owed)
}

func (s *standIn) index(requests []pipeline.ParkRequest) ([]pipeline.ParkRequest, error) {
	var keys []string
	for _, r := range requests {
		keys = append(keys, fmt.Sprint(r.Key, " ", r.After))
	}
	if err := s.note("index %v", keys); err != nil {
		return requests, err
	}
	return nil, nil
}

// lose lets Redis go away, or come back.
func (s *standIn) lose(away bool) {
	s.mu.Lock()
	s.away = away
	if away {
		s.broken = true
	}
	s.mu.Unlock()
	if away {
		s.turned <- struct{}{}
	}
	pass(decideEvery)
}

func (s *standIn) Tell(away bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.self = away
	s.did = append(s.did, fmt.Sprint("tell ", away))
}

func (s *standIn) Workers() (ids []string, away int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.workers {
		ids = append(ids, fmt.Sprint("w", i))
	}
	away = s.without
	if s.self {
		away++
	}
	return ids, away
}

func (s *standIn) failing(call string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fails = call
}

// others says how many workers there are, and how many but this one are without Redis.
func (s *standIn) others(workers, without int) {
	s.mu.Lock()
	s.workers, s.without = workers, without
	s.mu.Unlock()
	pass(decideEvery)
}

// took answers what was done since the last call, without the tries.
func (s *standIn) took() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	did := slices.Compact(slices.DeleteFunc(s.did, func(what string) bool { return what == "open" }))
	s.did = nil
	return strings.Join(did, ", ")
}

func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// because says why Redis is away.
func (s *standIn) because(why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.why = why
}
