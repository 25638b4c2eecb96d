package redisstore

import (
	"context"
	"fmt"
	"time"

	"sluice/limiter"
	"sluice/pipeline"
)

// Standing is how a key stands at a moment, for those who ask why it gets what it gets.
type Standing struct {
	Ruling  *limiter.Ruling // by which its lane goes, or a new event would
	Tier    string          // by which that was found
	Known   bool            // Redis keeps anything of the key
	Damaged bool            // what it keeps isn't what sluice writes; nothing more is told

	Limits []LimitLevel  // those of Ruling, in their order; none if it pauses or limits nothing
	Wait   time.Duration // until these let the first event go, or a new one; < 0: never
	Taken  time.Duration // since tokens were last taken; < 0: not known

	Waiting  int64          // events in the lane, without those leased
	Retrying int64          // of these, those with their own due time
	Leased   int64          // on their way to their push
	Arriving int64          // on their way into the lane
	First    pipeline.Entry // the first of all these in the source's order, as far as it is in the index; Seq 0: none
	Retry    time.Duration  // until the first of those with their own due time is due

	Due     time.Duration // until a worker looks at the lane; < 0: nobody is to
	Overdue time.Duration // for how long it is due and nobody has looked; < 0: it isn't due

	Closed  time.Duration // until the receiver may be asked again; 0: now
	Fails   int64         // how often it was away in a row
	Failure string        // what the last attempt that failed said, unless all has been well since

	Holder string        // who holds the lease of the lane; "": nobody
	Held   time.Duration // for which that is good
}

// LimitLevel is what a limit of a key has.
type LimitLevel struct {
	Tokens int64         // whole ones; < 0: so many are promised to events that are on their way
	Wait   time.Duration // until it could pay for the next event
}

// Standing tells how a key stands, by one look that changes nothing. tier is what a new event of it would name; where events
// wait, their tier counts. The store needn't be open. [ErrEpoch]: there is no state, or it is being rebuilt.
func (s *Store) Standing(ctx context.Context, key, tier string) (Standing, error) {
	sh, err := s.opened(ctx, key)
	if err != nil {
		return Standing{}, err
	}
	for range maxLeaseCalls {
		of := s.rule(key, tier)
		table := newTable(1, func(int) *rule { return of })
		args := append(table.args, limiter.EncodeKey(key), table.places[0], tier)
		r, err := sh.run(explainScript, sh.keys([]string{sh.epochKey, sh.dueKey}, key), args)
		if err != nil {
			return Standing{}, err
		}
		switch integer(r.values[0]) {
		case otherClass:
			tier, _ = r.values[1].(string)
			continue
		case -1:
			return Standing{Ruling: of.ruling, Tier: tier, Known: true, Damaged: true}, nil
		}
		st, err := readStanding(r.values[2:], r.lanes)
		st.Ruling, st.Tier = of.ruling, tier
		return st, err
	}
	return Standing{}, fmt.Errorf("redis: the tier of %q changes with every call", key)
}

// opened is the shard of a key, once its epoch is known.
func (s *Store) opened(ctx context.Context, key string) (*shard, error) {
	sh := s.shard(key)
	switch ok, err := sh.open(ctx, false); {
	case err != nil:
		return nil, err
	case !ok:
		return nil, ErrEpoch
	}
	return sh, nil
}

// readStanding reads what the script answers after the class.
func readStanding(v []any, lanes int64) (Standing, error) {
	text := func(i int) string { s, _ := v[i].(string); return s }
	span := func(i int) time.Duration { return micros(integer(v[i])) }
	st := Standing{
		Known: integer(v[0]) == 1, Waiting: integer(v[1]), Retrying: integer(v[2]), Leased: integer(v[3]), Arriving: integer(v[4]),
		Wait: span(5), Taken: span(6), Retry: span(9), Due: span(10), Overdue: span(11), Closed: span(12), Fails: integer(v[13]),
		Failure: text(14), Holder: text(15), Held: span(16),
	}
	if member := text(7); member != "" {
		var err error
		st.First, err = parseMember(member, text(8))
		if st.First.Created = lanes; err != nil {
			return st, fmt.Errorf("redis: waiting event %q: %w", member, err)
		}
	}
	for v = v[17:]; len(v) >= 2; v = v[2:] {
		st.Limits = append(st.Limits, LimitLevel{Tokens: integer(v[0]), Wait: micros(integer(v[1]))})
	}
	return st, nil
}
