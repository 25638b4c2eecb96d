package redisstore

import (
	"math"
	"slices"
	"sync"
	"time"

	"sluice/limiter"
)

// shares is this worker's part of every key's limits while all workers are without Redis: the parts of all workers together
// are no more than the limits. They are buckets in memory. What Redis held isn't known, so it counts as spent, at the latest
// moment at which it can have been. A bucket begins empty, less what this worker has been promised for later. A window has brought its
// tokens, all of which are gone, and of a sliding limit all have been taken just when the last slot passes that Redis can have
// promised, to any worker: a second later.
//
// A limit with room for it is shared evenly. One whose burst is smaller than the number of workers has whole tokens for some
// only: which, the workers draw by the key's name, each on its own with the same result. A sliding limit is dealt out by its
// events, evenly spaced, so that no worker needs to know what another that came or went has spent when.
type shares struct {
	limits    limiter.Resolver
	allowance time.Duration
	self      uint64
	start     time.Time // the 0 of all times below, in nanoseconds

	mu    sync.Mutex
	among []team // who shared from when on; the last one does now
	from  int64  // nothing accrued before
	until int64  // nor after; 0: they rule
	debts map[string]int64
	keys  map[string]*share
}

// team is the live workers from a time on, by the hashes of their ids.
type team struct {
	at      int64
	workers []uint64
}

// share is one key's.
type share struct {
	ruling *limiter.Ruling
	limits []counted // of the ruling

	team  int     // which one parts is for
	parts []part  // of the limits
	empty []int64 // of each limit: when its level is 0
	first []int64 // of each limit: nothing accrues before, since it rules only lately
	spent int64   // tokens, not charged to Redis yet
}

// counted is a limit with the name that its state goes by.
type counted struct {
	limiter.Class
	name string
	lag  int64 // for how long nothing accrues once it isn't known what was spent
}

// lag is for how long what may have been spent at the last slot keeps more of a limit from accruing.
func lag(c limiter.Class) int64 {
	if c.Kind == limiter.Sliding || c.Kind == limiter.Window {
		return c.Den*1000 + int64(limiter.MaxHorizon)
	}
	return 0
}

func countedBy(limits limiter.Limits) []counted {
	all := make([]counted, 0, len(limits))
	for _, l := range limits {
		c, err := l.Class()
		if err != nil {
			c = limiter.Class{} // nothing passes
		}
		all = append(all, counted{c, l.Name(), lag(c)})
	}
	return all
}

// part is what one worker has of a limit: burst tokens at most, one each every nanoseconds. No burst: nothing.
type part struct {
	every, burst int64
}

// longest bounds the time in which a whole share accrues, so that sums of two such times are told: 73 years.
const longest = 1 << 61

// newShares begins at start. debts are the tokens that this worker has promised for later, by key.
func newShares(limits limiter.Resolver, allowance time.Duration, self string, start time.Time, debts map[string]int64) *shares {
	return &shares{
		limits: limits, allowance: allowance, self: hash(self), start: start,
		debts: debts, keys: map[string]*share{},
	}
}

// goOn lets the shares rule from now on among the workers with these ids. Nothing accrued while they didn't rule: others
// may have had it from Redis.
func (s *shares) goOn(now time.Time, workers []string) {
	s.mu.Lock()
	s.from, s.until = int64(now.Sub(s.start)), 0
	s.mu.Unlock()
	s.share(now, workers)
}

// rest ends their rule for now. From then on tokens accrue in Redis only, where they may have come back for another worker.
func (s *shares) rest(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.until = int64(now.Sub(s.start))
}

// share says which workers are live, this one among them.
func (s *shares) share(now time.Time, workers []string) {
	hashes := make([]uint64, len(workers))
	for i, id := range workers {
		hashes[i] = hash(id)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.among); n == 0 || !slices.Equal(hashes, s.among[n-1].workers) {
		s.among = append(s.among, team{int64(now.Sub(s.start)), hashes})
	}
}

// reserve is Limiter's Reserve within the shares.
func (s *shares) reserve(key, tier string, cost int64, horizon time.Duration) limiter.Decision {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := int64(time.Since(s.start))
	k := s.of(key, s.limits.Resolve(key, tier), now)
	at := now
	for i, p := range k.parts {
		if cost > p.burst {
			return s.remaining(k, now, limiter.Decision{Verdict: limiter.Park, Reason: limiter.Throttled})
		}
		at = max(at, max(s.since(k, i), now-p.burst*p.every)+cost*p.every)
	}
	if horizon < 0 || at > now+int64(min(horizon, limiter.MaxHorizon)) {
		d := limiter.Decision{Verdict: limiter.Park, Reason: limiter.Throttled, Wait: time.Duration(at - now)}
		return s.remaining(k, now, d)
	}
	for i, p := range k.parts {
		k.empty[i] = max(s.since(k, i), at-p.burst*p.every) + cost*p.every
	}
	k.spent += cost
	d := limiter.Decision{Verdict: limiter.Go, At: s.start.Add(time.Duration(at))}
	if at > now {
		d.Verdict, d.Reason = limiter.Hold, limiter.Throttled
	}
	d.Stale = d.At.Add(s.allowance)
	return s.remaining(k, now, d)
}

// opens is when the limit number i of k begins to accrue.
func (s *shares) opens(k *share, i int) int64 { return max(k.first[i], s.from+k.limits[i].lag) }

// since is since when what it holds has accrued.
func (s *shares) since(k *share, i int) int64 { return max(k.empty[i], s.opens(k, i)) }

// level is for how long what it holds at a time has accrued; negative: a debt, which is paid while nothing accrues, too.
func (s *shares) level(k *share, i int, at int64) int64 {
	return at - max(k.empty[i], s.from, min(at, s.opens(k, i)))
}

// remaining adds to d what the part with the fewest tokens has left of them.
func (s *shares) remaining(k *share, now int64, d limiter.Decision) limiter.Decision {
	for i, p := range k.parts {
		left := int64(0)
		if p.burst > 0 {
			left = max(0, (now-max(s.since(k, i), now-p.burst*p.every))/p.every)
		}
		if i == 0 || left < d.Remaining {
			d.Remaining, d.Scarcest = left, i
		}
	}
	return d
}

// of is the share of key, under a ruling that counts, among the workers of now.
func (s *shares) of(key string, ruling *limiter.Ruling, now int64) *share {
	k := s.keys[key]
	if k == nil {
		s.forgetSome(now)
		k = &share{ruling: ruling, limits: countedBy(ruling.Limits)}
		k.parts, k.empty, k.first = s.parts(key, k.limits, 0), make([]int64, len(k.limits)), make([]int64, len(k.limits))
		for i, p := range k.parts {
			k.empty[i] = s.from + min(s.debts[key], longest/max(1, p.every))*p.every
		}
		delete(s.debts, key)
		s.keys[key] = k
	}
	s.catchUp(key, k)
	if k.ruling != ruling {
		s.follow(key, k, ruling, now)
	}
	return k
}

// follow lets another ruling rule a share. Each limit goes on with the level of its name; one with a new name begins as all did.
func (s *shares) follow(key string, k *share, ruling *limiter.Ruling, now int64) {
	was := *k
	k.ruling, k.limits = ruling, countedBy(ruling.Limits)
	k.parts, k.empty, k.first = s.parts(key, k.limits, k.team), make([]int64, len(k.limits)), make([]int64, len(k.limits))
	for i, l := range k.limits {
		k.empty[i], k.first[i] = now, now+l.lag
		if j := slices.IndexFunc(was.limits, func(c counted) bool { return c.name == l.name }); j >= 0 {
			k.empty[i], k.first[i] = now-rescale(s.level(&was, j, now), was.parts[j], k.parts[i]), was.first[j]
		}
	}
}

// catchUp makes a share that of the workers of now. What a worker that is gone has spent isn't known: a greater part of a sliding
// limit begins as all did.
func (s *shares) catchUp(key string, k *share) {
	for k.team < len(s.among)-1 {
		k.team++
		at, parts := max(s.among[k.team].at, s.from), s.parts(key, k.limits, k.team)
		for i, p := range parts {
			if c, was := k.limits[i], k.parts[i]; c.Kind == limiter.Sliding && p.burst > 0 && (was.burst == 0 || p.every < was.every) {
				k.first[i] = max(k.first[i], at+c.lag)
			}
			k.empty[i] = at - rescale(s.level(k, i, at), k.parts[i], p)
		}
		k.parts = parts
	}
}

// rescale turns the time in which a level accrued under one part into that under another; negative: of a debt.
func rescale(level int64, was, is part) int64 {
	if was.every == 0 {
		return min(level, 0) // there was nothing
	}
	tokens := min(float64(level)/float64(was.every), float64(was.burst))
	return int64(math.Floor(tokens * float64(is.every)))
}

// forgetSome looks at a few keys and forgets those that are as good as never seen.
func (s *shares) forgetSome(now int64) {
	looks := 0
	for key, k := range s.keys { // begins anywhere
		full := true
		for i, p := range k.parts {
			span := max(p.burst*p.every, k.limits[i].lag) // for so long what was spent counts
			full = full && s.since(k, i)+span <= now
		}
		if full {
			delete(s.keys, key)
		}
		if looks++; looks == 2 {
			return
		}
	}
}

// parts are this worker's, in a team, of the limits of key.
func (s *shares) parts(key string, limits []counted, team int) []part {
	workers := s.among[team].workers
	rank, of := int64(0), hash(key)
	mine := draw(of, s.self)
	for _, w := range workers {
		if w != s.self && draw(of, w) > mine {
			rank++
		}
	}
	n := int64(max(1, len(workers)))
	deal := func(tokens int64) int64 { // one more for some, so that all are dealt out
		if rank < tokens%n {
			return tokens/n + 1
		}
		return tokens / n
	}
	parts := make([]part, len(limits))
	for i, c := range limits {
		var every float64
		burst := deal(c.Burst)
		if c.Kind == limiter.Sliding {
			every = float64(c.Den) * 1000 / float64(burst)
			burst = min(burst, 1)
		} else {
			every = float64(c.Den) * 1000 / float64(c.Num) * float64(min(n, c.Burst))
		}
		if burst > 0 {
			parts[i].every = int64(math.Ceil(min(every, longest)))
			parts[i].burst = min(burst, longest/parts[i].every)
		}
	}
	return parts
}

// debt is what a key owes to Redis, in the order of the ruling's limits.
type debt struct {
	key    string
	ruling *limiter.Ruling
	tokens []int64
}

// owed answers what has to be taken from Redis, so that the buckets there hold no more than those here. A bucket that has
// refilled meanwhile may hold its whole burst: what this worker's share lacked of its part when it ceased to rule is missing
// there, too, unless less was spent at all. A window that nothing is owed to is told all the same, so that its next end is late
// enough.
func (s *shares) owed() (debts []debt, spent int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := int64(time.Since(s.start))
	if s.until > 0 {
		now = s.until
	}
	for key, k := range s.keys {
		s.catchUp(key, k)
		if k.spent == 0 {
			continue
		}
		spent += k.spent
		d, window := debt{key: key, ruling: k.ruling, tokens: make([]int64, len(k.limits))}, false
		for i, c := range k.limits {
			d.tokens[i] = k.spent
			if p := k.parts[i]; c.Kind != limiter.Sliding && p.burst > 0 {
				level := wholes(s.level(k, i, now), p.every)
				d.tokens[i] = min(k.spent, max(0, p.burst-level))
			}
			window = window || c.Kind == limiter.Window
		}
		if window || slices.Max(d.tokens) > 0 {
			debts = append(debts, d)
		}
	}
	return debts, spent
}

// paid says that what was owed has been taken.
func (s *shares) paid() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range s.keys {
		k.spent = 0
	}
}

// wholes is a/b, rounded down.
func wholes(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

// hash is FNV-1a, which is the same in all processes.
func hash(s string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	return h
}

// draw is a worker's lot for a key: the highest has the first.
func draw(key, worker uint64) uint64 {
	x := key ^ worker*0x9e3779b97f4a7c15
	x = (x ^ x>>33) * 0xff51afd7ed558ccd
	x = (x ^ x>>33) * 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}
