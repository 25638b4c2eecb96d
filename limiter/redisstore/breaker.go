package redisstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/sony/gobreaker/v2"

	"sluice/limiter"
)

const (
	breakAfter = 3                      // failures in a row after which Redis is taken for away
	trialEvery = 400 * time.Millisecond // then one call in so long is tried
	trialLook  = 50 * time.Millisecond  // how late a trial may be made

	movePatience = 200 * time.Millisecond // with a Cluster's slot that moves
	longestTrial = 2 * time.Second        // one call in so long is tried of a Redis that goes on refusing all
)

// errAway says that Redis is known to be away, so that the call wasn't made.
var errAway = errors.New("redis is known to be away: no call was made")

// errOnlyRead goes with the answer of a call that wrote nothing. A Redis that takes no writes gives such answers, too, so
// they say nothing of it while calls are made.
var errOnlyRead = errors.New("the call wrote nothing")

// failing says whether err means that Redis can't be worked with now: away, it takes no writes, or it refuses every call.
func failing(err error) bool {
	if err == nil {
		return false
	}
	return errors.Is(err, errAway) || away(err) || redis.IsOOMError(err) || redis.HasErrorPrefix(err, "MISCONF ") || refusesAll(err)
}

// newBreaker returns what all script calls go through. turned gets a value whenever its state has changed.
func newBreaker(turned chan<- struct{}) *gobreaker.CircuitBreaker[[]any] {
	return gobreaker.NewCircuitBreaker[[]any](gobreaker.Settings{
		Timeout:      trialEvery,
		ReadyToTrip:  func(c gobreaker.Counts) bool { return c.ConsecutiveFailures >= breakAfter },
		IsSuccessful: func(err error) bool { return !failing(err) },
		IsExcluded:   func(err error) bool { return errors.Is(err, errOnlyRead) || moving(err) },
		OnStateChange: func(string, gobreaker.State, gobreaker.State) {
			select {
			case turned <- struct{}{}:
			default:
			}
		},
	})
}

// call runs a script with keys of the shard, unless Redis is known to be away. shards is of how many the answer counts the
// calls that wrote; 0: of none, so that it says nothing of writing.
func (sh *shard) call(ctx context.Context, sc *redis.Script, shards int, keys []string, args []any) ([]any, error) {
	reachable := sh.breaker.State() == gobreaker.StateClosed // else this call is a trial, whose answer counts
	v, err := sh.breaker.Execute(func() ([]any, error) {
		sent := time.Now()
		v, err := sh.runPatiently(ctx, sc, keys, args)
		sh.metrics.observe(time.Since(sent), err)
		err = sh.refusals.judge(ctx, sh.Store, err)
		sh.note(err)
		if err == nil && reachable && onlyRead(v, shards) {
			err = errOnlyRead
		}
		return v, err
	})
	switch {
	case errors.Is(err, errOnlyRead):
		return v, nil
	case errors.Is(err, gobreaker.ErrOpenState), errors.Is(err, gobreaker.ErrTooManyRequests):
		return nil, errAway
	case moving(err):
		return nil, fmt.Errorf("redis: the slot of the key is moving to another node: %w", err)
	case err != nil:
		return nil, fmt.Errorf("redis: %w", err)
	}
	return v, nil
}

// runPatiently runs a script again while the slot of its keys moves, for as long as most moves take. Whoever asks again after
// that has given way to others meanwhile.
func (s *Store) runPatiently(ctx context.Context, sc *redis.Script, keys []string, args []any) ([]any, error) {
	ends := time.Now().Add(movePatience)
	for wait := time.Millisecond; ; wait = min(2*wait, movePatience/8) {
		v, err := sc.Run(ctx, s.rdb, keys, args...).Slice()
		if !moving(err) || time.Now().Add(wait).After(ends) {
			return v, err
		}
		select {
		case <-ctx.Done():
			return v, err
		case <-time.After(wait):
		}
	}
}

// onlyRead says whether an answer comes from a call that wrote nothing, and so counted none: of another epoch, or for all
// shards.
func onlyRead(v []any, shards int) bool {
	return integer(v[0]) == 1 || len(v) < 2+shards ||
		!slices.ContainsFunc(v[2:2+shards], func(calls any) bool { return integer(calls) != 0 })
}

// knock connects to Redis and goes away again. It may be done often: a failed call would keep the breaker open for a while,
// and after some connections that failed the client itself tries one in a second only.
func (s *Store) knock(ctx context.Context) error {
	client, ok := s.rdb.UniversalClient.(*redis.Client)
	if !ok {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	opt := client.Options()
	conn, err := opt.Dialer(ctx, opt.Network, opt.Addr)
	if err != nil {
		return fmt.Errorf("redis: %w", err)
	}
	return conn.Close()
}

// worst is the state of the breaker that lets the least pass.
func (s *Store) worst() gobreaker.State {
	worst := gobreaker.StateClosed
	for _, sh := range s.shards {
		worst = max(worst, sh.breaker.State())
	}
	return worst
}

// reachable says whether calls are made: Redis isn't known to be away.
func (s *Store) reachable() bool { return s.breaker.State() == gobreaker.StateClosed }

// passed says whether no worker has seen Redis for over a second, so that all it had promised has passed.
func (s *Store) passed(yes bool) { s.promisesPassed.Store(yes) }

// promisedFor is for how long tokens that Redis has promised may still be used, should it have lost its data.
func (s *Store) promisedFor() time.Duration {
	if s.promisesPassed.Load() {
		return 0
	}
	return limiter.MaxHorizon
}

func (s *Store) turns() <-chan struct{} { return s.turned }

// try makes a call that writes, of another shard each time. Its success lets all others be made again.
func (s *Store) try(ctx context.Context) error {
	if !refusesAll(s.Trouble()) { // else it is there
		if err := s.knock(ctx); err != nil {
			s.note(err)
			return err
		}
	}
	sh := s.shards[int(s.tries.Add(1))%len(s.shards)]
	var err error
	if of := newEpochs(); of.add(sh) {
		err = sh.bundle.parkIn(of, nil, nil, nil)
	} else {
		_, err = sh.epochCall(ctx, nil, "open", 0)
	}
	if failing(err) {
		return err
	}
	return nil
}
