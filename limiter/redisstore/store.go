package redisstore

import (
	"context"
	_ "embed"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"github.com/sony/gobreaker/v2"

	"sluice/limiter"
)

const (
	maxKeys  = 256 // of one call: 1 ms of Redis at most, so that a call never stops others for long
	maxLanes = 64  // of one call: 2 ms of Redis at most

	callTimeout    = time.Second
	clockTolerance = time.Second // a clock that goes back further is taken as the new time
	expiryMargin   = time.Minute
	leaseTime      = 5 * time.Second
	lead           = 250 * time.Millisecond // how long before its slot a lane is looked at: to claim and lease it and read a body takes three calls

	minAllowance = 20 * time.Millisecond // see Decision.Stale
)

// ErrEpoch says that Redis doesn't hold the state this worker knows: it was lost or is being rebuilt. Nothing was written;
// the call may be repeated.
var ErrEpoch = errors.New("the state in Redis is being rebuilt")

var (
	//go:embed base.lua
	baseLua string
	//go:embed common.lua
	commonLua string
	//go:embed waiting.lua
	waitingLua string
	//go:embed take.lua
	takeLua string
	//go:embed reserve.lua
	reserveLua string
	//go:embed park.lua
	parkLua string
	//go:embed claim.lua
	claimLua string
	//go:embed lease.lua
	leaseLua string
	//go:embed settle.lua
	settleLua string
	//go:embed epoch.lua
	epochLua string
	//go:embed verify.lua
	verifyLua string
	//go:embed charge.lua
	chargeLua string
	//go:embed forget.lua
	forgetLua string
	//go:embed holds.lua
	holdsLua string
	//go:embed rearm.lua
	rearmLua string
	//go:embed measure.lua
	measureLua string
	//go:embed mend.lua
	mendLua string
	//go:embed levels.lua
	levelsLua string
	//go:embed explain.lua
	explainLua string
	//go:embed purge.lua
	purgeLua string
	//go:embed reset.lua
	resetLua string
)

func script(body string) *redis.Script { return redis.NewScript(baseLua + commonLua + body) }

// laneScript is a script that moves events of lanes.
func laneScript(body string) *redis.Script { return script(waitingLua + body) }

var (
	takeScript    = redis.NewScript(baseLua + takeLua)
	reserveScript = script(reserveLua)
	parkScript    = laneScript(parkLua)
	claimScript   = redis.NewScript(baseLua + claimLua)
	leaseScript   = laneScript(leaseLua)
	settleScript  = laneScript(settleLua)
	epochScript   = laneScript(epochLua)
	verifyScript  = laneScript(verifyLua)
	chargeScript  = script(chargeLua)
	forgetScript  = laneScript(forgetLua)
	holdsScript   = laneScript(holdsLua)
	rearmScript   = script(rearmLua)
	measureScript = laneScript(measureLua)
	mendScript    = laneScript(mendLua)
	levelsScript  = laneScript(levelsLua)
	explainScript = laneScript(explainLua)
	purgeScript   = laneScript(purgeLua)
	resetScript   = script(resetLua)
)

// Options of a [Store].
type Options struct {
	Name          string // of the pipeline; keys of all but "sluice" start with it
	Worker        string // unique among the live workers
	Limits        limiter.Resolver
	Tiers         bool          // the tiers that events name count
	MaxWait       time.Duration // the longest expected wait of an event in its lane; 0: any
	KeyMaxWaiting int64         // the most events of a key that wait; 0: any

	// KeyConcurrency is how many events of a key may be leased at a time, over all workers; 0: any number.
	KeyConcurrency int

	Bodies    Bodies
	VerifyAge time.Duration // how old a stored event is when its place in the index is verified; 0: 10 s
	Log       *slog.Logger
	Registry  prometheus.Registerer
}

// Store is the shared state. All methods may be called at the same time.
type Store struct {
	rdb     once
	opt     Options
	rules   rules
	prefix  string
	shards  [limiter.Shards]*shard
	bundles []*bundle
	alone   bool          // a [Limiter]: no lanes, and nobody opens the state
	lost    chan struct{} // a shard's epoch is not known
	fresh   bool          // this worker made the first mark and hasn't opened the state since; used by Open only
	metrics *metrics
	trouble atomic.Pointer[error]            // the last call's, if Redis can't be worked with
	breaker *gobreaker.CircuitBreaker[[]any] // of all shards, but those of a [Limiter] in a Cluster
	turned  chan struct{}                    // the breaker's state changed; holds one
	tries   atomic.Int64
	opening sync.Mutex // one Open at a time

	refusals refusals

	workLease time.Duration // tests shorten it

	created  atomic.Int64 // creation time of the lane stream that the state was opened for
	followed atomic.Int64 // that of the stream for which it was last to be opened anew

	promisesPassed atomic.Bool // see passed

	toldDamaged atomic.Int64 // Unix second

	wall wall

	now int64 // microseconds that the scripts take for Redis' clock, in tests; 0: its own
}

// shard is one hash tag's part of the state.
type shard struct {
	*Store
	number   int
	tag      string
	epochKey string
	dueKey   string

	bundle  *bundle
	forget  *batcher[dropped, bool]
	holds   *batcher[placed, bool]
	breaker *gobreaker.CircuitBreaker[[]any]

	mu    sync.Mutex
	clock clock
	epoch string    // id; "": not known
	lanes int64     // creation time of the lane stream that the epoch's entries have their bodies in
	calls int64     // highest count of calls seen; see seen
	look  time.Time // when the next key of the shard is due, as far as this worker knows

	beginning beginning   // of a [Limiter]
	suspect   atomic.Bool // writes were lost: the index is to be verified from the start
}

// New returns a store over rdb, a *redis.Client or *redis.ClusterClient. [Store.Start] has to open it first. Another client,
// limits of all keys without others that can't be kept, and a registry that has such metrics already are an error.
func New(rdb redis.UniversalClient, opt Options) (*Store, error) {
	client, err := onceOf(rdb)
	if err != nil {
		return nil, err
	}
	if _, err := newRule(opt.Limits.Resolve("", ""), opt.MaxWait); err != nil {
		return nil, err
	}
	s := &Store{
		rdb: client, opt: opt,
		rules:     rules{resolver: opt.Limits, maxWait: opt.MaxWait, log: opt.Log},
		lost:      make(chan struct{}, 1),
		workLease: workLease,
		turned:    make(chan struct{}, 1),
	}
	s.breaker = newBreaker(s.turned)
	if s.metrics, err = newMetrics(opt.Registry, s.worst, s.ahead); err != nil {
		return nil, err
	}
	if opt.Name != "sluice" {
		s.prefix = opt.Name + ":"
	}
	for i := range s.shards {
		s.shards[i] = s.newShard(i)
	}
	s.bundleShards()
	return s, nil
}

func (s *Store) newShard(i int) *shard {
	tag := "{" + limiter.Tag(i) + "}"
	sh := &shard{Store: s, number: i, tag: tag, epochKey: s.prefix + "epoch:" + tag, dueKey: s.prefix + "due:" + tag, breaker: s.breaker}
	sh.forget = &batcher[dropped, bool]{most: maxKeys, run: sh.runForget}
	sh.holds = &batcher[placed, bool]{most: maxKeys, run: sh.runHolds}
	return sh
}

func (s *Store) shard(key string) *shard { return s.shards[limiter.Shard(key)] }

// Trouble is why Redis can't be worked with, as of the last call; nil: it can. Its text holds no secret.
func (s *Store) Trouble() error {
	if err := s.trouble.Load(); err != nil {
		return *err
	}
	return nil
}

// note keeps what a call says of Redis.
func (s *Store) note(err error) {
	if failing(err) {
		s.trouble.Store(&err)
	} else {
		s.trouble.Store(nil)
	}
}

// keys appends the four keys of one event's key in the order that all scripts expect.
func (sh *shard) keys(to []string, key string) []string {
	return sh.keysOf(to, limiter.EncodeKey(key))
}

// hashKey is the first of keys.
func (sh *shard) hashKey(key string) string {
	return sh.prefix + "ratelimit:" + sh.tag + ":" + limiter.EncodeKey(key)
}

// keysOf is keys for an encoded key.
func (sh *shard) keysOf(to []string, token string) []string {
	e := sh.tag + ":" + token
	return append(to, sh.prefix+"ratelimit:"+e, sh.prefix+"lane:"+e, sh.prefix+"busy:"+e, sh.prefix+"retry:"+e)
}

// laneKeys appends the five keys of one event's key that scripts of lanes expect.
func (sh *shard) laneKeys(to []string, key string) []string {
	return sh.laneKeysOf(to, limiter.EncodeKey(key))
}

// laneKeysOf is laneKeys for an encoded key.
func (sh *shard) laneKeysOf(to []string, token string) []string {
	return append(sh.keysOf(to, token), sh.prefix+"collapse:"+sh.tag+":"+token)
}

// reply is a script's answer with when it ran, by this process' clock.
type reply struct {
	values []any
	ran    time.Time
	lanes  int64 // of a call for one shard: in which lane stream the bodies of its entries are
}

// run calls a script in the shard's epoch. The values exclude the first three (status, now, calls).
func (sh *shard) run(sc *redis.Script, keys []string, args []any) (reply, error) {
	id, lanes, calls := sh.inEpoch()
	r := reply{lanes: lanes}
	if id == "" {
		return reply{}, ErrEpoch
	}
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	sent := time.Now()
	values, err := sh.call(ctx, sc, 1, keys, append([]any{id, sh.now}, args...))
	received := time.Now()
	if err != nil {
		return r, err
	}
	if status := integer(values[0]); status == 1 {
		sh.lose(id)
		return r, ErrEpoch
	}
	sh.seen(id, calls, integer(values[2]))
	r.ran = sh.ran(&sh.clock, sent, received, integer(values[1]))
	r.values = values[3:]
	return r, nil
}

// lose forgets the epoch id and lets Run open the shard anew.
func (sh *shard) lose(id string) {
	sh.mu.Lock()
	if sh.epoch == id {
		sh.epoch = ""
	}
	sh.mu.Unlock()
	select {
	case sh.lost <- struct{}{}:
	default:
	}
}

// inEpoch is the id of the shard's epoch, "" if it isn't known, the creation time of the lane stream that its entries have their bodies
// in, and the highest count of calls that was seen in it.
func (sh *shard) inEpoch() (id string, lanes, calls int64) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	return sh.epoch, sh.lanes, sh.calls
}

// seen looks at the count of a call that was made in an epoch, when so many calls were known. It ran after those, so that its count
// is above theirs, however it overtook others; else their writes are lost. Of a loss between this worker's calls that others' calls
// have made up for by then, those tell who saw them first. 0: nothing was written.
func (sh *shard) seen(id string, before, n int64) {
	if n == 0 {
		return
	}
	sh.mu.Lock()
	defer sh.mu.Unlock()
	switch {
	case sh.epoch != id:
	case n > before:
		sh.calls = max(sh.calls, n)
	case before <= sh.calls: // else that is known already
		sh.opt.Log.Error("Redis has lost writes; up to one burst per key may have passed beyond the limit",
			"shard", sh.tag, "calls", n, "seen", before)
		sh.metrics.errors.WithLabelValues("lost_writes").Inc()
		sh.calls = n
		sh.suspect.Store(true)
	}
}

// due notes that a key of the shard is to be looked at in d.
func (sh *shard) due(d time.Duration) {
	if d < 0 {
		return
	}
	at := time.Now().Add(d)
	sh.mu.Lock()
	if sh.look.IsZero() || at.Before(sh.look) {
		sh.look = at
	}
	sh.mu.Unlock()
}

func integer(v any) int64 {
	n, _ := v.(int64)
	return n
}

func micros(n int64) time.Duration { return time.Duration(n) * time.Microsecond }
