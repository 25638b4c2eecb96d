package redisstore

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"sluice/limiter"
	"sluice/pipeline"
)

// verifyAge is at least how old a body is when its place in the index is looked for: much older than one whose worker
// still is about to park it.
const verifyAge = 10 * time.Second

// reconcile verifies every stored body once, when it has reached the age: one that has no place in the index gets one. It
// lost it, or never had one, when a worker died before it could park, or when Redis lost writes. It goes on until ctx ends.
//
// A body is known to be old enough by the stream's last sequence, as of two looks ago; nobody's clock matters. These looks
// also tell when the stream was deleted and created anew: the state belongs to the old one then, and is opened anew.
func (s *Store) reconcile(ctx context.Context) {
	age := s.opt.VerifyAge
	if age == 0 {
		age = verifyAge
	}
	looks := time.NewTicker(age / 2)
	defer looks.Stop()
	var before, last uint64 // the last sequence, two looks ago and one look ago
	var of int64            // creation time of the stream that they are of
	for {
		select {
		case <-ctx.Done():
			return
		case <-looks.C:
		}
		if of == s.opt.Bodies.Created() && of == s.created.Load() {
			if err := s.verify(ctx, before); err != nil && !errors.Is(err, ErrEpoch) && ctx.Err() == nil {
				s.opt.Log.Debug("the index can't be verified now", "err", err)
			}
		}
		now, err := s.opt.Bodies.Last(ctx)
		if err != nil {
			continue
		}
		if created := s.opt.Bodies.Created(); created != of {
			of, last = created, 0 // it counts from 1
			s.follow(created)
		}
		before, last = last, now
	}
}

// Follow lets the state be opened anew if it belongs to another lane stream than the one that there is, as far as the bodies
// know. By itself the store finds out within seconds.
func (s *Store) Follow() { s.follow(s.opt.Bodies.Created()) }

func (s *Store) follow(created int64) {
	if created == s.created.Load() {
		return
	}
	if s.followed.Swap(created) != created {
		s.opt.Log.Warn("the lane stream was created anew; the lane index is built anew")
	}
	for _, sh := range s.shards {
		sh.mu.Lock()
		id := sh.epoch
		sh.mu.Unlock()
		sh.lose(id)
	}
}

// verify verifies the bodies up to the sequence last, of those shards where that wasn't done yet, unless another worker
// is about it.
func (s *Store) verify(ctx context.Context, last uint64) error {
	r := newReading(ctx)
	from := last
	for i, mark := range s.verified(ctx) {
		sh := s.shards[i]
		if err := mark.Err(); err != nil && !errors.Is(err, redis.Nil) {
			r.missed(fmt.Errorf("redis: asking up to where the index is verified: %w", err))
			continue
		}
		if done, _ := mark.Uint64(); done >= last && !sh.suspect.Load() { // there is none yet: nothing is
			continue
		}
		if v, err := sh.verify(r.ctx, last); err == nil {
			r.add(v)
			from = min(from, v.verified)
		} else if !r.missed(err) {
			break
		}
	}
	r.read(s.workLease, func(ctx context.Context, fn func(*pipeline.Event, uint64) error) error {
		if from == last {
			return nil
		}
		return s.opt.Bodies.Between(ctx, from, last, fn)
	})
	if err := r.end(); !errors.Is(err, errTaken) {
		return err
	}
	return nil
}

// verified is up to where each shard is verified, by Redis' own word: what it says was written together with the places that
// were found, so that whoever lost the last of these says less again.
func (s *Store) verified(ctx context.Context) (marks [limiter.Shards]*redis.StringCmd) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	calls := s.rdb.Pipeline()
	for i, sh := range s.shards {
		marks[i] = calls.HGet(ctx, sh.epochKey, "verified")
	}
	_, _ = calls.Exec(ctx) // each tells its own error
	return marks
}

// verification is one worker's pass over the bodies of one shard.
type verification struct {
	*work
	verified uint64 // all up to here are
	last     uint64 // the last one of the pass
	events   []stored
}

// stored is an event whose body is in the lane stream.
type stored struct {
	key   string
	tier  string
	entry pipeline.Entry
}

// asBefore says that no more is verified than before, upToSeq that all up to a sequence is.
const asBefore = ""

func upToSeq(seq uint64) string { return strconv.FormatUint(seq, 10) }

// verify begins to verify the shard up to last, from the start if writes were lost.
func (sh *shard) verify(ctx context.Context, last uint64) (*verification, error) {
	sh.mu.Lock()
	id := sh.epoch
	sh.mu.Unlock()
	if id == "" {
		return nil, ErrEpoch
	}
	w, answer, err := sh.take(ctx, "verify", id)
	if err != nil {
		return nil, err
	}
	if integer(answer[0]) == 2 {
		sh.lose(id)
		return nil, ErrEpoch
	}
	v := &verification{work: w, last: last}
	mark, _ := answer[1].(string)
	v.verified, _ = strconv.ParseUint(mark, 10, 64)
	if sh.suspect.Swap(false) {
		v.verified = 0
		if _, _, err := v.call(nil, false, upToSeq(0), false); err != nil {
			sh.suspect.Store(true)
			w.leave()
			return nil, err
		}
	}
	return v, nil
}

func (v *verification) add(ev *pipeline.Event, seq uint64) error {
	if seq <= v.verified {
		return nil
	}
	v.events = append(v.events, stored{ev.Key, v.tierOf(ev), storedEntry(ev, seq)})
	if len(v.events) < maxKeys {
		return nil
	}
	return v.flush(false, upToSeq(seq))
}

// finish verifies what is left and lets others go on from the last one.
func (v *verification) finish() error {
	err := v.flush(true, upToSeq(max(v.last, v.verified)))
	v.done = err == nil
	return err
}

// flush verifies the events collected, up to the sequence upTo (asBefore: some of them), and gives the lease up if that was the last of it.
// The place of one that seems to have none is given only after another look at its body: had it been settled since it was read, there
// would be none.
func (v *verification) flush(last bool, upTo string) error {
	var missing []int64
	var err error
	if len(v.events) > 0 {
		var unsure []int64
		if missing, unsure, err = v.call(v.events, false, asBefore, false); err != nil {
			return err
		}
		for range 2 { // one that was leased at the first look may be back
			if unsure, err = v.notRetried(unsure); err != nil {
				return err
			}
		}
		missing = append(missing, unsure...)
	}
	var orphans []stored
	for _, i := range missing {
		ev := v.events[i]
		there, err := v.opt.Bodies.Has(v.ctx, ev.key, ev.entry.Seq)
		if err != nil {
			return fmt.Errorf("read the lane stream: %w", err)
		}
		if there {
			orphans = append(orphans, ev)
		}
	}
	added, _, err := v.call(orphans, last, upTo, true)
	if err != nil {
		return err
	}
	v.events = v.events[:0]
	if len(added) > 0 {
		v.due(0)
		v.metrics.orphans.Add(float64(len(added)))
		v.opt.Log.Warn("stored events had no place in the lane index and got one", "shard", v.tag, "events", len(added))
	}
	return nil
}

// call runs the script and answers which of the events had no place, and of which it couldn't tell.
func (v *verification) call(events []stored, last bool, upTo string, add bool) (missing, unsure []int64, err error) {
	keys := append(make([]string, 0, 2+4*len(events)), v.epochKey, v.dueKey)
	args := append(make([]any, 0, 4+5*len(events)), v.token, bit(last), upTo, bit(add))
	for _, ev := range events {
		keys = v.keys(keys, ev.key)
		args = append(args, limiter.EncodeKey(ev.key), ev.entry.Seq, member(ev.entry), ev.entry.Order, ev.tier)
	}
	r, err := v.run(verifyScript, keys, args)
	if err != nil {
		return nil, nil, err
	}
	if integer(r.values[0]) > 0 {
		return nil, nil, errTaken
	}
	for _, value := range r.values[1:] {
		if place := integer(value); place > 0 {
			missing = append(missing, place-1)
		} else {
			unsure = append(unsure, -place-1)
		}
	}
	return missing, unsure, nil
}

// notRetried answers those of the events that aren't among the events of their keys with a due time of their own.
func (v *verification) notRetried(events []int64) (left []int64, err error) {
	keys := map[string]map[uint64]int64{}
	for _, i := range events {
		ev := v.events[i]
		if keys[ev.key] == nil {
			keys[ev.key] = map[uint64]int64{}
		}
		keys[ev.key][ev.entry.Seq] = i
	}
	for key, wanted := range keys {
		if err := v.strike(key, wanted); err != nil {
			return nil, err
		}
		left = slices.AppendSeq(left, maps.Values(wanted))
	}
	return left, nil
}

// strike takes the events of a key that have a due time of their own out of those wanted, until none is left. It reads them a page
// at a time, so that no call stops others for long, from the first due on: what was stored a moment ago hasn't been tried often.
func (v *verification) strike(key string, wanted map[uint64]int64) error {
	retry := v.keys(nil, key)[3]
	from, same := math.Inf(-1), int64(0) // the last time read, and how many of it were
	for len(wanted) > 0 {
		page, err := v.rdb.ZRangeByScoreWithScores(v.ctx, retry, &redis.ZRangeBy{
			Min: strconv.FormatFloat(from, 'f', -1, 64), Max: "+inf", Offset: same, Count: pageSize,
		}).Result()
		if err != nil {
			return fmt.Errorf("redis: reading a lane: %w", err)
		}
		for _, z := range page {
			if z.Score != from {
				from, same = z.Score, 0
			}
			same++
			m, _ := z.Member.(string)
			if e, err := parseMember(m, "0"); err == nil {
				delete(wanted, e.Seq)
			}
		}
		if len(page) < pageSize {
			return nil
		}
	}
	return nil
}

// tierOf is the tier of a stored event, if that counts.
func (s *Store) tierOf(ev *pipeline.Event) string {
	if !s.opt.Tiers {
		return ""
	}
	return pipeline.TierOf(ev.Header)
}

// storedEntry is the place that a stored body has in the index as long as the index knows nothing newer.
func storedEntry(ev *pipeline.Event, seq uint64) pipeline.Entry {
	cost, err := pipeline.CostOf(ev.Header)
	if err != nil {
		cost = 1 // it was readable when the event was parked
	}
	expires, err := pipeline.ExpiresOf(ev.Header, ev.Time)
	if err != nil {
		expires = time.Time{}
	}
	collapse, err := pipeline.CollapseOf(ev.Header, ev.Source)
	if err != nil {
		collapse = ""
	}
	return pipeline.Entry{
		BodyID: pipeline.BodyID{Seq: seq}, Order: ev.Order(), Attempt: ev.Attempt, Cost: cost, First: ev.First, Expires: expires,
		Collapse: collapse,
	}
}
