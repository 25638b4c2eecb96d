package redisstore

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// A call that Redis refuses may be the fault of that call alone (a key that the user may not use, a value of another type) or
// that of all calls (another password, a user without rights, a server in protected mode or over its quota). The texts don't
// tell: NOPERM is either, and of a command within a script some versions don't even say that. So the plainest call decides, whose
// rights all others need, of another shard: when that is refused, too, all is, and Redis is away like one that doesn't answer. The
// plainest call also finds out when the outage is over, so that both verdicts agree.

// refusedAll is a refusal that holds for every call.
type refusedAll struct{ error }

func (r refusedAll) Unwrap() error { return r.error }

// refusesAll says whether err comes from a Redis that refuses every call.
func refusesAll(err error) bool {
	_, ok := errors.AsType[refusedAll](err)
	return ok
}

// refusals remembers a verdict for a moment: a call that keeps being refused must not double all calls.
type refusals struct {
	mu    sync.Mutex
	last  time.Time
	all   bool
	asked int // how often
}

// judge is err of a call with these keys, as a refusedAll if the plainest call is refused as well.
func (r *refusals) judge(ctx context.Context, s *Store, keys []string, err error) error {
	if err == nil || failing(err) || errorKind(err) != "refused" {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Since(r.last) >= trialEvery {
		r.asked++
		plain := s.otherShard(keys, r.asked).plain(ctx)
		r.last, r.all = time.Now(), plain != nil
	}
	if r.all {
		return refusedAll{err}
	}
	return err
}

// otherShard is one that a call with these keys isn't of: what ails the state of a shard is no fault of Redis'. n chooses it.
func (s *Store) otherShard(keys []string, n int) *shard {
	for i := range s.shards {
		if sh := s.shards[(n+i)%len(s.shards)]; !slices.Contains(keys, sh.epochKey) {
			return sh
		}
	}
	return s.shards[0]
}

// plain makes the call that needs the least. It writes, if the epoch is known.
func (sh *shard) plain(ctx context.Context) error {
	sc, args := epochScript, sh.epochArgs([]any{"open", 0})
	of := newEpochs()
	if of.add(sh) {
		sc, args = parkScript, append(sh.bundle.callArgs(of, newTable(0, nil).args, 1), lead.Microseconds())
	}
	return sc.Run(ctx, sh.rdb, []string{sh.epochKey, sh.dueKey}, args...).Err()
}
