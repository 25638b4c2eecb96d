package redisstore

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"sluice/limiter"
)

// keyLimits are limits by key, by tier, or of all others, which tests change.
type keyLimits struct {
	t testing.TB

	mu          sync.Mutex
	all         *limiter.Ruling
	keys, tiers map[string]*limiter.Ruling
}

func (l *keyLimits) Resolve(key, tier string) *limiter.Ruling {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r := l.keys[key]; r != nil {
		return r
	}
	if r := l.tiers[tier]; r != nil {
		return r
	}
	return l.all
}

// set gives a key its limits, setTier a tier and setAll all others.
func (l *keyLimits) set(key, limits string) {
	l.put(func(r *limiter.Ruling) { l.keys[key] = r }, limits)
}
func (l *keyLimits) setTier(tier, limits string) {
	l.put(func(r *limiter.Ruling) { l.tiers[tier] = r }, limits)
}
func (l *keyLimits) setAll(limits string) { l.put(func(r *limiter.Ruling) { l.all = r }, limits) }

func (l *keyLimits) put(to func(*limiter.Ruling), text string) {
	l.t.Helper()
	limits, err := limiter.ParseLimits(text)
	if err != nil {
		l.t.Fatal(err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	to(&limiter.Ruling{Limits: limits})
}

// newLimitedRig is a rig whose store goes by limits that can be changed, and by the tiers of events.
func newLimitedRig(t testing.TB, all string) (*rig, *keyLimits) {
	t.Helper()
	l := &keyLimits{t: t, keys: map[string]*limiter.Ruling{}, tiers: map[string]*limiter.Ruling{}}
	l.setAll(all)
	r := newRig(t, "1/s")
	r.opt.Limits, r.opt.Tiers, r.rules.resolver = l, true, l
	return r, l
}

// keysOfShard are n keys that one call may ask for.
func keysOfShard(r *rig, n int) (keys []string) {
	for i := 0; len(keys) < n; i++ {
		if k := fmt.Sprint("k", i); r.shard(k) == r.shards[3] {
			keys = append(keys, k)
		}
	}
	return keys
}

// Limits of every kind, alone and together, with clock steps and changes of the limits, for many keys in a call: the
// scripts do what the model in package limiter does.
func TestScriptAgreesWithTheModelForAllLimitsOfManyKeysInACall(t *testing.T) {
	r, limits := newLimitedRig(t, "1/s")
	seed := uint64(time.Now().UnixNano())
	rnd := rand.New(rand.NewPCG(seed, 2))
	t.Logf("seed %d", seed)
	keys := keysOfShard(r, 30)
	models := map[string]*limiter.Model{}
	for _, key := range keys {
		models[key], _ = limiter.NewModel(nil)
	}
	now := int64(0)
	for i := 0; i < *randomCalls; {
		now += rnd.Int64N(1 << rnd.IntN(24))
		if rnd.IntN(40) == 0 {
			now = max(0, now-rnd.Int64N(4_000_000))
		}
		r.at(now)
		rnd.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
		for _, key := range keys[:1+rnd.IntN(8)] {
			if l := limits.keys[key]; l == nil || rnd.IntN(20) == 0 {
				limits.set(key, randomLimits(t, rnd).String())
			} else if rnd.IntN(40) == 0 {
				limits.set(key, []string{"0", "unlimited"}[rnd.IntN(2)])
			}
		}
		var groups []group
		for _, key := range keys[:1+rnd.IntN(8)] {
			rule := r.rule(key, "")
			cost := min(1+rnd.Int64N(1<<rnd.IntN(4)), rule.maxCost)
			horizon := []time.Duration{0, time.Millisecond, 300 * time.Millisecond, time.Second}[rnd.IntN(4)]
			groups = append(groups, group{reservation: reservation{key, rule, cost, horizon}, members: make([]int, 1+rnd.IntN(20))})
			i++
		}
		for j, a := range r.groups(groups) {
			g := groups[j]
			m := models[g.key]
			if err := m.SetLimits(g.rule.ruling.Limits); err != nil {
				t.Fatal(err)
			}
			want := m.Reserve(start+now, int64(len(g.members)), g.cost, g.horizon)
			var slots []int64
			for _, s := range a.slots {
				slots = append(slots, start+now+integer(s))
			}
			if a.granted != want.Granted || !slices.Equal(slots, want.Slots) {
				t.Fatalf("call %d, %s, key %s, t=%d %d of cost %d, horizon %s: got %+v, the model says %+v; the hash is %v",
					i, g.rule.ruling.Limits, g.key, now, len(g.members), g.cost, g.horizon, a, want, r.hash(g.key))
			}
		}
	}
}

func TestKeysOfDifferentLimitsGoInOneCall(t *testing.T) {
	r, limits := newLimitedRig(t, "3/h")
	keys := keysOfShard(r, 20)
	want := map[string]int{}
	for i, key := range keys {
		want[key] = 3
		switch i % 5 {
		case 1:
			limits.set(key, fmt.Sprintf("%d/h", i))
			want[key] = i
		case 2:
			limits.set(key, "0")
			want[key] = 0
		case 3:
			limits.set(key, "unlimited")
			want[key] = 20
		}
	}
	var batch []reservation
	for range 20 {
		for _, key := range keys {
			batch = append(batch, reservation{key, r.rule(key, ""), 1, 0})
		}
	}
	r.groups([]group{{reservation: reservation{keysOfShard(r, 21)[20], r.rule("", ""), 1, 0}, members: make([]int, 1)}})
	before := r.shard(keys[0]).calls
	got, err := r.decide(keys[0], batch)
	if err != nil {
		t.Fatal(err)
	}
	if n := r.shard(keys[0]).calls - before; n > 1 {
		t.Errorf("%d calls, want one", n)
	}
	count := map[string]int{}
	for i, d := range got {
		if d.Verdict == limiter.Go {
			count[batch[i].key]++
		} else if paused := d.Reason == limiter.Paused; paused != (want[batch[i].key] == 0) {
			t.Errorf("%s: %+v", batch[i].key, d)
		}
	}
	for _, key := range keys {
		if count[key] != want[key] {
			t.Errorf("%s: %d go, want %d", key, count[key], want[key])
		}
	}
}

func TestLaneGoesByTheLimitsOfItsKey(t *testing.T) {
	r, limits := newLimitedRig(t, "1/h")
	limits.set("quick", "10/s burst 5")
	limits.set("paused", "0")
	for key, want := range map[string]int{"quick": 15, "paused": 0, "other": 1} {
		for seq := range uint64(30) {
			r.park(key, seq+1)
		}
		l := leaseOf(t, r.Store, key, 0, 30)
		if len(l.Events) != want {
			t.Errorf("%s: %d leased, want %d", key, len(l.Events), want)
		}
		if want > 0 {
			if allowance := l.Events[0].Stale.Sub(l.Events[0].At); allowance != r.rule(key, "").allowance() {
				t.Errorf("%s: a slot is good for %s, want %s", key, allowance, r.rule(key, "").allowance())
			}
		}
	}
}

func TestChangesOfALimitGiveAndForgiveNothing(t *testing.T) {
	r, limits := newLimitedRig(t, "1/s")
	granted := func(limit string, at int64) int64 {
		t.Helper()
		limits.set("k", limit)
		r.at(at)
		return r.groups([]group{{reservation: reservation{"k", r.rule("k", ""), 1, 0}, members: make([]int, 1000)}})[0].granted
	}
	for _, s := range []struct {
		limit string
		at    int64
		want  int64
		why   string
	}{
		{"10/s burst 20", 0, 20, "the burst"},
		{"1000/s burst 500", 0, 0, "a higher burst gives nothing"},
		{"1000/s burst 500", 100_000, 100, "but what accrues"},
		{"10/s burst 20", 1_100_000, 10, "spent ones are spent"},
		{"0", 1_200_000, 0, "paused"},
		{"10/s burst 20", 1_200_000, 1, "no more after it"},
		{"5/m", 1_200_000, 0, "another unit gives nothing"},
		{"10/s burst 20", 1_200_000, 0, "and takes nothing"},
		{"600/m burst 60", 1_200_000, 0, "nor does the same rate by another name"},
		{"600/m burst 60", 1_300_000, 1, "but what accrues"},
		{"10/s burst 20", 1_300_000, 0, "spent by another name is spent"},
		{"36000/h burst 20, 600/m", 1_400_000, 1, "also of several"},
		{"10/s burst 20, 10/s leaky", 1_500_000, 1, "beside another kind, which had nothing yet"},
		{"10/s burst 100", 20_000_000, 100, "full"},
		{"10/s burst 3", 90_000_000, 3, "cut at once"},
		{"10/s burst 100", 90_000_000, 0, "for ever"},
	} {
		if got := granted(s.limit, s.at); got != s.want {
			t.Errorf("%s at %d us: %d go, want %d: %s", s.limit, s.at, got, s.want, s.why)
		}
	}
}

// The expiry was computed for the quicker limit: a refusal under the slower one is enough to move it.
func TestSlowerLimitKeepsTheStateLonger(t *testing.T) {
	r, limits := newLimitedRig(t, "3600/h")
	r.at(0)
	if _, err := r.Reserve(t.Context(), "k", "", 3600, 0); err != nil {
		t.Fatal(err)
	}
	limits.setAll("1/h burst 3600")
	r.groups([]group{{reservation: reservation{"k", r.rule("k", ""), 1, 0}, members: make([]int, 1)}})
	key := r.shard("k").keys(nil, "k")[0]
	if ttl, want := r.rdb.PTTL(t.Context(), key).Val(), 90*24*time.Hour; ttl < want-time.Minute {
		t.Errorf("the state is kept for %s, want %s", ttl, want) // 3,600 h are more than the longest
	}
	before := r.hash("k")
	r.groups([]group{{reservation: reservation{"k", r.rule("k", ""), 1, 0}, members: make([]int, 1)}})
	if after := r.hash("k"); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("a second refusal changed %v to %v", before, after)
	}
}

func TestRulesAreKeptByPointerAndForgottenWhenNotSeen(t *testing.T) {
	r, limits := newLimitedRig(t, "1/s")
	first := r.rule("k", "")
	for i := range 10 * maxRules {
		key := fmt.Sprint(i)
		limits.set(key, fmt.Sprintf("%d/s", i+1))
		if got, want := r.rule(key, "").maxCost, int64(i+1); got != want {
			t.Fatalf("burst %d, want %d", got, want)
		}
		if i%maxRules == 0 && r.rule("k", "") != first {
			t.Fatal("a rule that is in use was made anew")
		}
	}
	if n := len(r.rules.recent) + len(r.rules.old); n > 2*maxRules {
		t.Errorf("%d rules are kept", n)
	}
}

func TestLimitsThatCantBeKeptPauseTheirKey(t *testing.T) {
	r, limits := newLimitedRig(t, "10/s")
	limits.keys["k"] = &limiter.Ruling{Limits: limiter.Limits{{Events: 1, Period: time.Second, Burst: -1}}}
	d, err := r.Reserve(t.Context(), "k", "", 1, 0)
	if err != nil || d.Reason != limiter.Paused {
		t.Errorf("%+v, %v", d, err)
	}
	if d, err := r.Reserve(t.Context(), "other", "", 1, 0); err != nil || d.Verdict != limiter.Go {
		t.Errorf("another key: %+v, %v", d, err)
	}
}

// A debt is charged by the limits it was made under.
func TestChargeTakesByEachKeysLimits(t *testing.T) {
	r, limits := newLimitedRig(t, "10/s burst 20")
	keys := keysOfShard(r, 3)
	limits.set(keys[1], "7/s, 70/m sliding")
	var debts []debt
	for i, key := range keys {
		d := debt{key, r.rule(key, "").ruling, []int64{int64(3 + i)}}
		if i == 1 {
			d.tokens = append(d.tokens, 9)
		}
		debts = append(debts, d)
	}
	if err := r.charge(debts); err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"17", "3", "15"} {
		if h := r.hash(keys[i]); h["tokens"] != want {
			t.Errorf("%d: %v, want tokens %s", i, h, want)
		}
	}
	if h := r.hash(keys[1]); h["sliding/1m:counts"][:2] != "9," {
		t.Errorf("%v", h)
	}
}
