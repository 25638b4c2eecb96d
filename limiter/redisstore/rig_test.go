package redisstore

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"sluice/integration/testenv"
	"sluice/limiter"
	"sluice/pipeline"
)

func TestMain(m *testing.M) {
	redis.SetLogger(quiet{})
	// A client whose Redis was killed last tries to reach it in a goroutine that sees only after a second that it is closed.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}

// bodies is a lane stream in memory. Many may read it at the same time as long as nobody changes it.
type bodies struct {
	created int64
	mark    sync.Mutex
	marked  bool
	events  []*pipeline.Event // their Source.Seq is their order; the place in the slice, from 1, their sequence
	pause   func()            // called between two bodies
	read    atomic.Int64      // bodies that were read
}

func (b *bodies) Created() int64 { return b.created }

func (b *bodies) Mark(context.Context) (bool, error) {
	b.mark.Lock()
	defer b.mark.Unlock()
	first := !b.marked
	b.marked = true
	return first, nil
}

func (b *bodies) Each(ctx context.Context, fn func(*pipeline.Event, uint64) error) error {
	return b.Between(ctx, 0, uint64(len(b.events)), fn)
}

func (b *bodies) Between(ctx context.Context, after, last uint64, fn func(*pipeline.Event, uint64) error) error {
	for seq := after + 1; seq <= last; seq++ {
		if b.pause != nil {
			b.pause()
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		b.read.Add(1)
		if err := fn(b.events[seq-1], seq); err != nil {
			return err
		}
	}
	return nil
}

// start is a time on Redis' clock that tests count from.
const start = int64(1_764_460_800_000_000)

// rig is an opened store on a real Redis whose scripts take start + t for the time.
type rig struct {
	*Store
	t      testing.TB
	server *testenv.RedisServer
	rdb    *redis.Client
	bodies *bodies
}

func newRig(t testing.TB, limit string) *rig {
	t.Helper()
	server := testenv.Redis(t)
	r := &rig{t: t, server: server, rdb: server.Client(), bodies: &bodies{created: 7}}
	r.Store = r.worker("one", limit)
	r.at(0)
	return r
}

// worker is another opened store on the same Redis.
func (r *rig) worker(name, limit string) *Store {
	r.t.Helper()
	l, err := limiter.ParseLimits(limit)
	if err != nil {
		r.t.Fatal(err)
	}
	s, err := New(r.rdb, Options{
		Name: "sluice", Worker: name, Limits: limiter.Fixed(l), Bodies: r.bodies,
		Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError + 1})),
	})
	if err != nil {
		r.t.Fatal(err)
	}
	s.now = start
	if err := s.Open(r.t.Context()); err != nil {
		r.t.Fatal(err)
	}
	return s
}

// at sets the time to t microseconds after the start.
func (r *rig) at(t int64) { r.now = start + t }

// use replaces the limit by exact arithmetic values.
func (r *rig) use(c limiter.Class) {
	changed := *r.rule("", "")
	changed.args = []any{modeCounted, 1, "", int(c.Kind), c.Num, c.Den, c.Burst, -1}
	changed.plain = c.Kind == limiter.Bucket
	r.setRule(&changed)
}

// setRule replaces the one rule there is.
func (r *rig) setRule(only *rule) {
	r.rules.recent = map[*limiter.Ruling]*rule{only.ruling: only}
	r.rules.last.Store(only)
}

// ruled are the arguments of a script for one entry of key up to its own, and the place of its rule.
func (r *rig) ruled(key string) (args []any, place int) {
	table := newTable(1, func(int) *rule { return r.rule(key, "") })
	return table.args, table.places[0]
}

// ask asks for n events of one token each and returns the raw answer; nothing is parked.
func (r *rig) ask(key string, n int64, horizon int64) answer {
	r.t.Helper()
	return r.groups([]group{{
		reservation: reservation{key, r.rule(key, ""), 1, micros(horizon)}, members: make([]int, n),
	}})[0]
}

// groups asks for groups of one shard, each of another key: take first, where it may be asked, then reserve for what is left
// open. Nothing is parked.
func (r *rig) groups(groups []group) []answer {
	r.t.Helper()
	answers := make([]answer, len(groups))
	var left []int
	for i, g := range groups {
		ok := false
		if g.rule.plain && g.horizon >= 0 {
			answers[i], ok = r.taken(g)
		}
		if !ok {
			left = append(left, i)
		}
	}
	if len(left) == 0 {
		return answers
	}
	rest := make([]group, len(left))
	for i, of := range left {
		rest[i] = groups[of]
	}
	for i, a := range r.reserved(rest...) {
		answers[left[i]] = a
	}
	return answers
}

// reserved is what reserve answers to groups of one shard; nothing is parked.
func (r *rig) reserved(groups ...group) (answers []answer) {
	r.t.Helper()
	return r.reservedWaiting(0, groups...)
}

// reservedWaiting is what reserve answers to groups of one shard where so many events of a key may wait.
func (r *rig) reservedWaiting(most int64, groups ...group) (answers []answer) {
	r.t.Helper()
	sh := r.shard(groups[0].key)
	table := newTable(len(groups), func(i int) *rule { return groups[i].rule })
	keys, args := []string{sh.epochKey}, append(table.args, 0, most)
	for i, g := range groups {
		keys = sh.keys(keys, g.key)
		horizon := int64(-1)
		if g.horizon >= 0 {
			horizon = g.horizon.Microseconds()
		}
		args = append(args, 1, table.places[i], len(g.members), g.cost, horizon)
	}
	rep, err := sh.run(reserveScript, keys, args)
	if err != nil {
		r.t.Fatal(err)
	}
	for _, v := range rep.values {
		answers = append(answers, readAnswer(v))
	}
	return answers
}

// taken is what take answers to one group, if it does.
func (r *rig) taken(g group) (answer, bool) {
	r.t.Helper()
	return r.takenWaiting(0, g)
}

// takenWaiting is what take answers to one group, if it does, where so many events of a key may wait.
func (r *rig) takenWaiting(most int64, g group) (answer, bool) {
	r.t.Helper()
	sh := r.shard(g.key)
	table := newTable(1, func(int) *rule { return g.rule })
	args := append(table.args, 0, most, 1, 1, 1, len(g.members), g.cost, g.horizon.Microseconds())
	rep, err := sh.run(takeScript, []string{sh.epochKey, sh.dueKey, sh.hashKey(g.key)}, args)
	if err != nil {
		r.t.Fatal(err)
	}
	return readTaken(rep.values[0], len(g.members))
}

// decide carries out a batch of reservations of one bundle as Reserve does, and returns the first error beside all answers.
func (s *Store) decide(key string, batch []reservation) ([]limiter.Decision, error) {
	answers, err := s.shard(key).bundle.decide(batch)
	out := make([]limiter.Decision, len(answers))
	for i, a := range answers {
		out[i], err = a.Decision, errors.Join(err, a.err)
	}
	return out, err
}

func (b *bundle) decide(batch []reservation) ([]reserved, error) {
	out := make([]reserved, len(batch))
	var taken, left []int
	for i, r := range batch {
		if r.rule.plain && r.horizon >= 0 && !b.detours.has(r.key) {
			taken = append(taken, i)
		} else {
			left = append(left, i)
		}
	}
	ask := func(of []int, run func([]awaited) ([]reserved, error)) error {
		if len(of) == 0 {
			return nil
		}
		part := make([]awaited, len(of))
		for i, at := range of {
			part[i] = awaited{batch[at], context.Background()}
		}
		answers, err := run(part)
		for i, a := range answers {
			out[of[i]] = a
		}
		return err
	}
	err := ask(taken, b.runTake)
	for _, i := range taken {
		if out[i].open {
			left = append(left, i)
			b.detours.add(batch[i].key)
		}
	}
	slices.Sort(left)
	if err == nil {
		err = ask(left, b.runReserve)
	}
	if err != nil {
		return nil, err
	}
	return out, nil
}

func (r *rig) hash(key string) map[string]string {
	r.t.Helper()
	return r.rdb.HGetAll(r.t.Context(), r.shard(key).keys(nil, key)[0]).Val()
}

func (r *rig) park(key string, seqs ...uint64) {
	r.t.Helper()
	for _, seq := range seqs {
		_, err := r.Park(r.t.Context(), pipeline.ParkRequest{Key: key, Entry: pipeline.Entry{BodyID: pipeline.BodyID{Seq: seq}, Order: seq, Cost: 1}})
		if err != nil {
			r.t.Fatal(err)
		}
	}
}

func leaseOf(t testing.TB, s *Store, key string, token int64, most int) pipeline.Lease {
	t.Helper()
	l, err := s.Lease(t.Context(), pipeline.LeaseRequest{Key: key, Token: token, Max: most, Horizon: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func seqs(l pipeline.Lease) []uint64 {
	var out []uint64
	for _, e := range l.Events {
		out = append(out, e.Seq)
	}
	return out
}

// each is a batch's answers, if there is no error among them.
func each[R any](answers []answered[R], err error) ([]R, error) {
	out := make([]R, len(answers))
	for i, a := range answers {
		out[i], err = a.r, errors.Join(err, a.err)
	}
	return out, err
}

// claimShard claims lanes of the key's shard.
func (s *Store) claimShard(key string, most int) ([]string, error) {
	sh := s.shard(key)
	return sh.bundle.claim([]*shard{sh}, most)
}
