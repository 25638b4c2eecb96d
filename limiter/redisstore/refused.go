package redisstore

import (
	"context"
	"errors"
	"sync"
	"time"
)

// A call that Redis refuses may be the fault of that call alone (a key that the user may not use, a value of another type) or
// that of all calls (another password, a user without rights, a server in protected mode or over its quota). The texts don't
// tell: NOPERM is either, and of a command within a script some versions don't even say that. So the plainest call decides, whose
// rights all others need, for each shard, which other nodes of a Cluster may hold: when it is refused for all of them, all is, and
// Redis is away like one that doesn't answer. The plainest call also finds out when the outage is over, so that both verdicts agree.

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
	mu   sync.Mutex
	last time.Time
	all  bool
}

// judge is err of a call, as a refusedAll if the plainest call is refused as well.
func (r *refusals) judge(ctx context.Context, s *Store, err error) error {
	if err == nil || failing(err) || errorKind(err) != "refused" {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Since(r.last) >= trialEvery {
		all := s.refusesAll(ctx)
		r.last, r.all = time.Now(), all
	}
	if r.all {
		return refusedAll{err}
	}
	return err
}

// refusesAll says whether the plainest call fails for every shard. What ails the state of one is no fault of Redis'.
func (s *Store) refusesAll(ctx context.Context) bool {
	for _, sh := range s.shards {
		if ctx.Err() != nil || sh.plain(ctx) == nil {
			return false
		}
	}
	return true
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
