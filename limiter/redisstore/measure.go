package redisstore

import (
	"math/rand/v2"
	"time"

	"sluice/limiter"
)

const (
	// untakenGrace is how long a lane is due before it counts as one that nobody takes: it is due so long before its first
	// slot, and a worker with room looks at least so often.
	untakenGrace = lead + longestLook

	// untakenSample is how many of these lanes are looked into, per shard.
	untakenSample = 16
)

// Backlog is what waits in the lanes, of all keys and for all workers.
type Backlog struct {
	Lanes    int64         // that hold events
	Eligible int64         // events that could be pushed now, in lanes that nobody takes
	Overdue  time.Duration // how long the first event of the lane that waits longest could have been pushed
}

// Backlog measures the lanes. What it costs Redis doesn't grow with what waits there: one or two short calls per shard. Of
// the lanes that nobody takes 16 per shard are looked into, in turn by chance; where there are more, Eligible is their
// average times all of them.
func (s *Store) Backlog() (Backlog, error) {
	var all Backlog
	for _, sh := range s.shards {
		b, err := sh.backlog()
		if err != nil {
			return Backlog{}, err
		}
		all.Lanes += b.Lanes
		all.Eligible += b.Eligible
		all.Overdue = max(all.Overdue, b.Overdue)
	}
	return all, nil
}

func (sh *shard) backlog() (Backlog, error) {
	v, err := sh.measure(nil, nil, untakenSample)
	if err != nil {
		return Backlog{}, err
	}
	b := Backlog{Lanes: integer(v[0])}
	untaken, sample := integer(v[1]), v[3].([]any)
	if len(sample) == 0 {
		return b, nil
	}
	b.Overdue = max(0, micros(integer(v[2]))-lead)
	var keys []string
	for _, token := range sample {
		token, _ := token.(string)
		if key, err := limiter.DecodeKey(token); err == nil { // else nobody can push its events, see claim
			keys = append(keys, key)
		}
	}
	found, err := sh.able(keys)
	b.Eligible = found * untaken / int64(len(sample))
	return b, err
}

// able counts the events of the lanes of keys that could be pushed now. Lanes say which tier they go by, and are asked once
// more if that isn't none.
func (sh *shard) able(keys []string) (found int64, err error) {
	tiers := make([]string, len(keys))
	for range 2 {
		v, err := sh.measure(keys, tiers, 0)
		if err != nil {
			return found, err
		}
		var others, theirs []string
		for i, able := range v[4].([]any) {
			if tier, is := able.(string); is {
				others, theirs = append(others, keys[i]), append(theirs, tier)
			} else {
				found += integer(able)
			}
		}
		if keys, tiers = others, theirs; len(keys) == 0 {
			break
		}
	}
	return found, nil
}

// measure runs the script for the lanes of keys in tiers.
func (sh *shard) measure(keys, tiers []string, most int) ([]any, error) {
	all := append(make([]string, 0, 2+3*len(keys)), sh.epochKey, sh.dueKey)
	for _, key := range keys {
		k := sh.keys(nil, key)
		all = append(all, k[0], k[1], k[3])
	}
	table := newTable(max(1, len(keys)), func(i int) *rule {
		if i < len(keys) {
			return sh.rule(keys[i], tiers[i])
		}
		return sh.rule("", "")
	})
	args := append(table.args, untakenGrace.Microseconds(), most, rand.IntN(1_000_000))
	for i := range keys {
		args = append(args, table.places[i], tiers[i])
	}
	r, err := sh.run(measureScript, all, args)
	return r.values, err
}
