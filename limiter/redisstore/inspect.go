package redisstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"sluice/limiter"
	"sluice/pipeline"
)

// FindingKind is what can be wrong with the lane index.
type FindingKind string

// The kinds of findings.
const (
	NoIndex       FindingKind = "no_index"       // a shard's state is missing, is being rebuilt, or belongs to another lane stream
	NoPlace       FindingKind = "no_place"       // a stored event that no worker would ever find
	NoBody        FindingKind = "no_body"        // a place without a stored event
	WrongLane     FindingKind = "wrong_lane"     // a place whose stored event is of another key
	WrongOrder    FindingKind = "wrong_order"    // a place that isn't where the event stands in the source
	Twice         FindingKind = "twice"          // a second place of one event
	Unreadable    FindingKind = "unreadable"     // a place that sluice didn't write
	DeadLease     FindingKind = "dead_lease"     // events that a worker leased, whose lease has ended
	NotDue        FindingKind = "not_due"        // a lane that nobody would ever look at
	WrongCost     FindingKind = "wrong_cost"     // what a lane's events are noted to cost isn't what they cost
	DamagedBucket FindingKind = "damaged_bucket" // a key's state that isn't what sluice writes
	DamagedLane   FindingKind = "damaged_lane"   // a part of a lane that has another type than sluice writes
)

// Finding is one thing in the index that isn't as it should be.
type Finding struct {
	Kind   FindingKind
	Key    string // of NoIndex: the shard's tag
	Seq    uint64 // of the event in the lane stream; 0: the whole lane is meant
	Detail string // for people; may be empty

	set    int    // see mend.lua
	member string // its place
	order  uint64 // its place in the source
	as     string // the place as it should be
}

// Inspection is what was looked at and found.
type Inspection struct {
	Bodies   int // stored events
	Places   int // in the index
	Lanes    int
	Findings []Finding // by key
}

// leaseGrace is for how long a lease may have ended before it counts as dead: the next worker takes over at once.
const leaseGrace = time.Second

// Inspect compares the lane stream with the index. It changes nothing, and may be used while workers run: what seems wrong
// is looked at again after patience, so that only what stays so is told. The store needn't be open.
func (s *Store) Inspect(ctx context.Context, patience time.Duration) (Inspection, error) {
	in, err := s.newInspector(ctx)
	if err != nil {
		return Inspection{}, err
	}
	suspects, err := in.all(ctx)
	if err != nil || len(suspects) == 0 {
		return in.Inspection, err
	}
	select {
	case <-ctx.Done():
		return in.Inspection, context.Cause(ctx)
	case <-time.After(patience):
	}
	out := in.Inspection // what is looked at again doesn't count again
	out.Findings, err = in.confirm(ctx, suspects)
	return out, err
}

// inspector is one inspection.
type inspector struct {
	*Store
	Inspection
	bodies []body // by sequence
	lanes  map[string][]body
}

// body is what is known of a stored event.
type body struct {
	seq, order uint64
	key        string
}

func (s *Store) newInspector(ctx context.Context) (*inspector, error) {
	in := &inspector{Store: s, lanes: map[string][]body{}}
	err := s.opt.Bodies.Each(ctx, func(ev *pipeline.Event, seq uint64) error {
		b := body{seq, ev.Order(), ev.Key}
		in.bodies = append(in.bodies, b)
		in.lanes[ev.Key] = append(in.lanes[ev.Key], b)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the lane stream: %w", err)
	}
	in.Bodies = len(in.bodies)
	return in, nil
}

// all looks at every key that has stored events or an entry in due.
func (in *inspector) all(ctx context.Context) ([]Finding, error) {
	keys := map[*shard]map[string]bool{}
	for key := range in.lanes {
		sh := in.shard(key)
		if keys[sh] == nil {
			keys[sh] = map[string]bool{}
		}
		keys[sh][key] = true
	}
	var found []Finding
	for _, sh := range in.shards {
		ok, err := sh.open(ctx, false)
		if err != nil {
			return nil, err
		}
		if !ok {
			found = append(found, Finding{Kind: NoIndex, Key: sh.tag, Detail: "missing, being rebuilt, or of another lane stream"})
			continue
		}
		due, err := in.rdb.ZRange(ctx, sh.dueKey, 0, -1).Result()
		if err != nil {
			return nil, fmt.Errorf("redis: reading which lanes are due: %w", err)
		}
		all := keys[sh]
		if all == nil {
			all = map[string]bool{}
		}
		for _, token := range due {
			if key, err := limiter.DecodeKey(token); err == nil {
				all[key] = true
			}
		}
		for some := range slices.Chunk(slices.Collect(maps.Keys(all)), maxKeys) {
			here, err := in.look(ctx, sh, some)
			if err != nil {
				return nil, err
			}
			found = append(found, here...)
		}
	}
	return found, nil
}

// confirm answers those suspects that are still so.
func (in *inspector) confirm(ctx context.Context, suspects []Finding) ([]Finding, error) {
	again := map[string][]Finding{}
	var g errgroup.Group
	g.SetLimit(64)
	sure := make([]bool, len(suspects))
	for i, f := range suspects {
		if f.Kind == NoIndex {
			ok, err := in.shards[slices.IndexFunc(in.shards[:], func(sh *shard) bool { return sh.tag == f.Key })].open(ctx, false)
			if err != nil {
				return nil, err
			}
			sure[i] = !ok
			continue
		}
		if _, looked := again[f.Key]; !looked {
			here, err := in.look(ctx, in.shard(f.Key), []string{f.Key})
			if err != nil {
				return nil, err
			}
			again[f.Key] = here
		}
		if !slices.ContainsFunc(again[f.Key], func(g Finding) bool { return g == f }) {
			continue
		}
		if sure[i] = f.Kind != NoPlace && f.Kind != NoBody; sure[i] {
			continue
		}
		g.Go(func() error {
			there, err := in.opt.Bodies.Has(ctx, f.Key, f.Seq)
			sure[i] = there == (f.Kind == NoPlace)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, fmt.Errorf("read the lane stream: %w", err)
	}
	var found []Finding
	for i, f := range suspects {
		if sure[i] {
			found = append(found, f)
		}
	}
	slices.SortStableFunc(found, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.Key, b.Key), cmp.Compare(a.Seq, b.Seq), cmp.Compare(a.Kind, b.Kind))
	})
	return found, nil
}

// sets are the numbers that mend.lua has for a key's sets, the surest place of an event first.
var sets = []struct {
	number int
	name   string
}{{3, "busy"}, {4, "retry"}, {2, "lane"}}

// look looks at keys of one shard.
func (in *inspector) look(ctx context.Context, sh *shard, keys []string) ([]Finding, error) {
	looks := make([]mending, len(keys))
	for i, key := range keys {
		looks[i] = mending{key: key, what: "look"}
	}
	r, err := sh.mend(looks)
	if err != nil {
		return nil, err
	}
	var found []Finding
	for i, key := range keys {
		v, _ := r.values[i].([]any)
		here, err := in.one(ctx, sh, key, v)
		if err != nil {
			return nil, err
		}
		found = append(found, here...)
	}
	return found, nil
}

// one judges what mend.lua told of a key, and compares its places.
func (in *inspector) one(ctx context.Context, sh *shard, key string, v []any) ([]Finding, error) {
	var found []Finding
	if integer(v[0]) == 1 {
		found = append(found, Finding{Kind: DamagedBucket, Key: key, Detail: "its tokens begin anew when it is mended"})
	}
	sizes := map[int]int64{2: integer(v[1]), 3: integer(v[2]), 4: integer(v[3])}
	whole := true
	for _, set := range sets {
		if sizes[set.number] < 0 {
			whole = false
			found = append(found, Finding{Kind: DamagedLane, Key: key, Detail: set.name, set: set.number})
		}
	}
	if integer(v[6]) == 0 {
		whole = false
		found = append(found, Finding{Kind: DamagedLane, Key: key, Detail: "collapse", set: 5})
	}
	waiting := sizes[2] + sizes[3] + sizes[4]
	if !whole || waiting == 0 && len(in.lanes[key]) == 0 {
		return found, nil
	}
	if waiting > 0 && integer(v[4]) == 0 {
		found = append(found, Finding{Kind: NotDue, Key: key})
	}
	if sizes[3] > 0 && micros(integer(v[5])) > leaseGrace {
		found = append(found, Finding{Kind: DeadLease, Key: key, Detail: fmt.Sprintf("%d events", sizes[3])})
	}
	if integer(v[0]) == 1 { // what is noted is mended with it
		found, _, err := in.places(ctx, sh, key, sizes, found)
		return found, err
	}
	return in.costs(ctx, sh, key, sizes, found)
}

// costs is places, and compares what the waiting events cost with what is noted, unless that changes meanwhile: a lane that
// moves is looked at by the next inspection.
func (in *inspector) costs(ctx context.Context, sh *shard, key string, sizes map[int]int64, found []Finding) ([]Finding, error) {
	hash := sh.keys(nil, key)[0]
	noted := func() (int64, error) {
		n, err := in.rdb.HGet(ctx, hash, "extra").Int64()
		if err != nil && !errors.Is(err, redis.Nil) {
			return 0, fmt.Errorf("redis: reading what a lane costs: %w", err)
		}
		return n, nil
	}
	before, err := noted()
	if err != nil {
		return nil, err
	}
	found, extra, err := in.places(ctx, sh, key, sizes, found)
	if err != nil {
		return nil, err
	}
	after, err := noted()
	if err != nil {
		return nil, err
	}
	if before == after && after != extra {
		found = append(found, Finding{
			Kind: WrongCost, Key: key, Detail: fmt.Sprintf("%d tokens beyond one each are noted, it is %d", after, extra),
			member: strconv.FormatInt(after, 10), order: uint64(extra),
		})
	}
	return found, nil
}

// pageSize is how many places are read at a time.
const pageSize = 4096

// places compares the places of a key with its stored events. extra is what those that wait cost beyond one token each.
func (in *inspector) places(
	ctx context.Context, sh *shard, key string, sizes map[int]int64, found []Finding,
) (all []Finding, extra int64, err error) {
	names := sh.keys(nil, key)
	seen := map[uint64]bool{}
	for _, set := range sets {
		for from := int64(0); from < sizes[set.number]; from += pageSize {
			page, err := in.rdb.ZRangeWithScores(ctx, names[set.number-1], from, from+pageSize-1).Result()
			if err != nil {
				return nil, 0, fmt.Errorf("redis: reading a lane: %w", err)
			}
			for _, z := range page {
				in.Places++
				m, _ := z.Member.(string)
				if e, err := parseMember(m, "0"); err == nil && set.name != "busy" && !e.Collapsed {
					extra += e.Cost - 1
				}
				if f, wrong := in.place(key, set.number, m, z.Score, seen); wrong {
					f.Key, f.set, f.member = key, set.number, m
					found = append(found, f)
				}
			}
		}
	}
	for _, b := range in.lanes[key] {
		if !seen[b.seq] {
			found = append(found, Finding{Kind: NoPlace, Key: key, Seq: b.seq})
		}
	}
	in.Lanes++
	return found, extra, nil
}

// place looks at one place, and says whether anything is wrong with it.
func (in *inspector) place(key string, set int, m string, score float64, seen map[uint64]bool) (Finding, bool) {
	e, err := parseMember(m, "0")
	if err != nil {
		return Finding{Kind: Unreadable, Detail: fmt.Sprintf("%.40q", m)}, true
	}
	if seen[e.Seq] {
		return Finding{Kind: Twice, Seq: e.Seq}, true
	}
	i, stored := slices.BinarySearchFunc(in.bodies, e.Seq, func(b body, seq uint64) int { return cmp.Compare(b.seq, seq) })
	if !stored {
		return Finding{Kind: NoBody, Seq: e.Seq}, true
	}
	if b := in.bodies[i]; b.key != key {
		return Finding{Kind: WrongLane, Seq: e.Seq}, true
	}
	seen[e.Seq] = true
	named, order := e.Order, in.bodies[i].order // a member names only an order that its score doesn't hold
	if order <= exact && named > 0 || order > exact && named != order || score != float64(order) {
		f := Finding{Kind: WrongOrder, Seq: e.Seq, order: order}
		f.Detail = fmt.Sprintf("%s, in the source it is %d", strconv.FormatFloat(score, 'f', -1, 64), order)
		e.Order = order
		f.as = member(e)
		return f, set != 4
	}
	return Finding{}, false
}
