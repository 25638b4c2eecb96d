package metrics

import (
	"cmp"
	"hash/maphash"
	"math"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	hotParts   = 64
	hotPerPart = 16

	// hotHalfLife is the time in which what happened comes to weigh half: rates are those of about the last half minute.
	hotHalfLife = 10 * time.Second

	// hotMoment later something weighs 0.07 % more, which isn't worth computing.
	hotMoment = 10 * time.Millisecond

	// hotLeast is the rate per second from which on a key counts as busy.
	hotLeast = 0.005
)

// HotKeys finds the busiest keys of an endless number in constant memory: it keeps hotParts x hotPerPart of them, and a
// new one takes the place of the least busy together with its weight (the space-saving algorithm). A key with a hundredth
// of what happens, or more, is never missed. Times weigh by forward decay: later ones more, instead of earlier ones less.
type HotKeys struct {
	seed  maphash.Seed
	start time.Time
	part  [hotParts]hotPart
}

// hotPart holds the keys of one hash. Every event looks here twice, from a cache that has seen much else since: a few arrays
// cost less than a map.
type hotPart struct {
	mu     sync.Mutex
	since  time.Time           // when something weighed 1
	asked  time.Time           // when weigh last computed
	now    float64             // what something weighed then
	hash   [hotPerPart]uint64  // of each place's key
	weight [hotPerPart]float64 // of each place; too much by the place's over, at most
	kept   [hotPerPart]hotCounts
}

type hotCounts struct {
	key                         []byte // the place's own; nothing is allocated for another key
	tier                        string // of its newest event
	over                        float64
	received, throttled, pushed float64 // since the key took its place, weighed
}

// HotKey is a busy key with its rates per second.
type HotKey struct {
	Key       string
	Tier      string  // that its newest event named; "": none
	Received  float64 // deliveries from the source
	Throttled float64 // of these, how many had to wait in the lane, or were refused
	Pushed    float64 // attempts
}

// NewHotKeys knows no keys yet.
func NewHotKeys() *HotKeys {
	h := &HotKeys{seed: maphash.MakeSeed(), start: time.Now()}
	for i := range h.part {
		h.part[i].since = h.start
	}
	return h
}

func (h *HotKeys) received(key, tier string, throttled bool, now time.Time) {
	p, i, weight := h.count(key, now)
	defer p.mu.Unlock()
	c := &p.kept[i]
	if c.tier != tier {
		c.tier = strings.Clone(tier) // it may be a piece of something large
	}
	c.received += weight
	if throttled {
		c.throttled += weight
	}
}

func (h *HotKeys) pushed(key string, now time.Time) {
	p, i, weight := h.count(key, now)
	p.kept[i].pushed += weight
	p.mu.Unlock()
}

// count notes that something happened to a key. It returns the key's part, locked, the key's place there, and what that weighs.
func (h *HotKeys) count(key string, now time.Time) (p *hotPart, i int, weight float64) {
	hash := maphash.String(h.seed, key)
	p = &h.part[hash%hotParts]
	p.mu.Lock()
	weight = p.weigh(now)
	i = p.place(hash, key)
	p.weight[i] += weight
	return p, i, weight
}

// weigh is what something that happens now weighs. Before that grows out of bounds everything is weighed anew.
func (p *hotPart) weigh(now time.Time) float64 {
	if now.Sub(p.asked) < hotMoment {
		return p.now
	}
	p.asked = now
	halves := float64(now.Sub(p.since)) / float64(hotHalfLife)
	if halves < 512 {
		p.now = math.Exp2(halves)
		return p.now
	}
	lighter := math.Exp2(-halves)
	for i := range p.kept {
		c := &p.kept[i]
		p.weight[i] *= lighter
		c.over, c.received, c.throttled, c.pushed = c.over*lighter, c.received*lighter, c.throttled*lighter, c.pushed*lighter
	}
	p.since, p.now = now, 1
	return 1
}

// place is where key is kept from now on. A place that was never taken weighs nothing.
func (p *hotPart) place(hash uint64, key string) int {
	for i, h := range p.hash {
		if h == hash && string(p.kept[i].key) == key {
			return i
		}
	}
	least := 0
	for i, w := range p.weight {
		if w < p.weight[least] {
			least = i
		}
	}
	p.hash[least] = hash
	p.kept[least] = hotCounts{key: append(p.kept[least].key[:0], key...), over: p.weight[least]}
	return least
}

// Busiest are up to n keys, the busiest first. Those that are told apart from idle ones by luck only are left out: if all
// are equally busy, that are all.
func (h *HotKeys) Busiest(n int) []HotKey { return h.busiest(n, time.Now()) }

func (h *HotKeys) busiest(n int, now time.Time) []HotKey {
	// What a steady rate of 1 per second weighs in all, by now.
	steady := hotHalfLife.Seconds() / math.Ln2 * -math.Expm1(-math.Ln2*max(now.Sub(h.start), time.Second).Seconds()/hotHalfLife.Seconds())
	var busy []HotKey
	for i := range h.part {
		busy = h.part[i].appendBusy(busy, now, steady)
	}
	slices.SortFunc(busy, func(a, b HotKey) int {
		return cmp.Or(cmp.Compare(b.Received+b.Pushed, a.Received+a.Pushed), cmp.Compare(a.Key, b.Key))
	})
	return busy[:min(n, len(busy))]
}

func (p *hotPart) appendBusy(to []HotKey, now time.Time, steady float64) []HotKey {
	p.mu.Lock()
	defer p.mu.Unlock()
	rate := 1 / (p.weigh(now) * steady)
	for i := range p.kept {
		c := &p.kept[i]
		if c.over > p.weight[i]/2 || (c.received+c.pushed)*rate < hotLeast {
			continue
		}
		to = append(to, HotKey{Key: string(c.key), Tier: c.tier, Received: c.received * rate, Throttled: c.throttled * rate, Pushed: c.pushed * rate})
	}
	return to
}
