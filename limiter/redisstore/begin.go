package redisstore

import (
	"context"
	"crypto/rand"
	"fmt"
	"time"
)

// othersBegin is how long a call waits for the epochs of shards that it doesn't need.
const othersBegin = 50 * time.Millisecond

// begin learns the epochs of all shards, and lets one begin where there is none. It waits for those that a call needs; the
// others' servers may be away. What one shard has lost, all have: the sooner that is seen by a process that knew them, the smaller
// is the chance that one that has just started begins them, as if for the first time, with a whole burst for each key.
func (s *Store) begin(needed []group) {
	if s.begun() {
		return
	}
	needs := make(map[*shard]bool, len(needed))
	for _, g := range needed {
		needs[g.shard] = true
	}
	var mine, others []<-chan struct{}
	for _, sh := range s.shards {
		if ends, first := sh.begin(needs[sh]); needs[sh] {
			mine = append(mine, ends)
		} else if first {
			others = append(others, ends)
		}
	}
	for _, ends := range mine {
		<-ends
	}
	patience := time.NewTimer(othersBegin)
	defer patience.Stop()
	for _, ends := range others {
		select {
		case <-ends:
		case <-patience.C:
			return
		}
	}
}

func (s *Store) begun() bool {
	for _, sh := range s.shards {
		if id, _, _ := sh.inEpoch(); id == "" {
			return false
		}
	}
	return true
}

// beginning is one shard's way to its epoch.
type beginning struct {
	ends  chan struct{} // closed when the try under way ends; nil: none is
	known bool          // an epoch was known before, so that another tells of a loss
	tries int           // that failed since one was
	last  time.Time     // when the last one began
	err   error         // why it failed; nil: it didn't
}

// atOnce has ended.
var atOnce = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// begin has the shard's epoch be known when ends is closed, or its beginning's err. One that no call needs is tried once in a
// second. first says that none has failed yet.
func (sh *shard) begin(needed bool) (ends <-chan struct{}, first bool) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	b := &sh.beginning
	switch {
	case sh.epoch != "", b.ends == nil && !needed && b.tries > 0 && time.Since(b.last) < time.Second:
		return atOnce, false
	case b.ends == nil:
		b.ends, b.last = make(chan struct{}), time.Now()
		go sh.beginOne(b.ends)
	}
	return b.ends, b.tries == 0
}

func (sh *shard) beginOne(ends chan struct{}) {
	sh.mu.Lock()
	known := sh.beginning.known
	sh.mu.Unlock()
	id, err := sh.askBegin(!known)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	b := &sh.beginning
	b.ends, b.err = nil, err
	if err != nil {
		b.tries++
	} else {
		if sh.epoch != id {
			sh.epoch, sh.calls = id, 0
		}
		b.known, b.tries = true, 0
	}
	close(ends)
}

// askBegin answers the id of the shard's epoch. fresh: if there is none it begins as if for the first time.
func (sh *shard) askBegin(fresh bool) (string, error) {
	v, err := sh.epochCall(context.Background(), nil, "begin", rand.Text(), bit(fresh))
	switch {
	case err != nil:
		return "", err
	case integer(v[0]) == 0:
		return "", fmt.Errorf("%w: %q", ErrName, sh.opt.Name)
	case integer(v[0]) == 2:
		return "", fmt.Errorf("%w: it has %v, this version of sluice reads 1", ErrFormat, v[1])
	}
	id, _ := v[1].(string)
	return id, nil
}

// whyUnknown is why the epoch of the shard isn't known.
func (sh *shard) whyUnknown() error {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.beginning.err != nil {
		return sh.beginning.err
	}
	return ErrEpoch
}
