package redisstore

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"sluice/limiter"
)

// Two keys of one history, of which one is always asked for by take first, are never told apart.
func TestTakeGrantsWhatReserveWould(t *testing.T) {
	t.Parallel()
	r := newRig(t, "10/s")
	rnd := rand.New(rand.NewPCG(4, 2))
	limits := []string{"10/s burst 20", "3/s burst 7", "7/m burst 2", "1000000/s burst 5", "12/h burst 30"}
	var rule *rule
	now, granted, promised, refused, left := int64(0), 0, 0, 0, 0
	most := int64(-1)
	for round := range 6000 {
		if round%50 == 0 { // a live change of the limit
			ls, err := limiter.ParseLimits(limits[rnd.IntN(len(limits))])
			if err != nil {
				t.Fatal(err)
			}
			longest := []time.Duration{0, time.Second, time.Minute}[rnd.IntN(3)]
			if rule, err = newRule(&limiter.Ruling{Limits: ls}, longest); err != nil {
				t.Fatal(err)
			}
		}
		now += rnd.Int64N(1 << rnd.IntN(26))
		most = rnd.Int64N(4) - 1
		if rnd.IntN(40) == 0 {
			now -= rnd.Int64N(3_000_000)
		}
		r.at(now)
		i := rnd.IntN(5)
		group := func(way string) group {
			return group{reservation: reservation{
				fmt.Sprint(way, i), rule, 1 + rnd.Int64N(3), time.Duration(rnd.IntN(2)) * 500 * time.Millisecond,
			}}
		}
		one, other := group("one"), group("other")
		one.members = make([]int, 1+rnd.IntN(3))
		other.members, other.cost, other.horizon = one.members, one.cost, one.horizon

		got, taken := r.takenWaiting(most, one)
		switch {
		case !taken:
			left++
			got = r.reservedWaiting(most, one)[0]
		case got.parked > 0:
			refused++
		case len(got.slots) > 0:
			promised++
		default:
			granted++
		}
		want := r.reservedWaiting(most, other)[0]
		if got.code != want.code || got.granted != want.granted || got.parked != want.parked || got.tokens != want.tokens ||
			got.ahead != want.ahead || got.extra != want.extra || want.parked > 0 && got.wait != want.wait ||
			!slices.Equal(got.slots, want.slots) {
			t.Fatalf("round %d, %s, t=%d, %d of cost %d: with take (%t) %+v, without %+v", round, rule.ruling.Limits, now,
				len(one.members), one.cost, taken, got, want)
		}
		h, o := r.hash(one.key), r.hash(other.key)
		if !maps.Equal(h, o) {
			t.Fatalf("round %d, %s, t=%d: with take (%t) there is\n%v, without\n%v", round, rule.ruling.Limits, now, taken, h, o)
		}
	}
	if granted < 500 || promised < 100 || refused < 100 || left < 500 {
		t.Errorf("take granted %d, promised %d, refused %d and left %d", granted, promised, refused, left)
	}
}

func TestTakeLeavesWhatItDoesNotKnowAndChangesNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t, "10/s burst 20")
	hash := func(key string, fields ...any) {
		r.rdb.HSet(t.Context(), r.shard(key).hashKey(key), fields...)
	}
	level := []any{"tokens", "15", "frac", "0", "den", "100000", "updatedAt", fmt.Sprint(start)}
	for key, prepare := range map[string]func(key string){
		"waits":      func(key string) { r.park(key, 7) },
		"a b.c%d/ü:": func(key string) { r.park(key, 8) },
		"opened":     func(key string) { hash(key, append(level, "opened", fmt.Sprint(start+1))...) },
		"cooling":    func(key string) { hash(key, append(level, "closedUntil", fmt.Sprint(start+1))...) },
		"odd-time":   func(key string) { hash(key, append(level, "closedUntil", "soon")...) },
		"indebted": func(key string) {
			hash(key, "tokens", "-11", "frac", "0", "den", "100000", "updatedAt", fmt.Sprint(start))
		},
		"empty": func(key string) {
			hash(key, "tokens", "0", "frac", "89999", "den", "100000", "updatedAt", fmt.Sprint(start))
		},
		"other-rate": func(key string) { hash(key, "tokens", "9", "frac", "0", "den", "7", "updatedAt", fmt.Sprint(start)) },
		"partial":    func(key string) { hash(key, "tokens", "9") },
		"later":      func(key string) { hash(key, append(level, "updatedAt", fmt.Sprint(start+1))...) },
		"no-number":  func(key string) { hash(key, append(level, "tokens", "nan")...) },
		"no-hash":    func(key string) { r.rdb.Set(t.Context(), r.shard(key).hashKey(key), "x", 0) },
	} {
		prepare(key)
		stored := func() any {
			if key == "no-hash" {
				return r.rdb.Get(t.Context(), r.shard(key).hashKey(key)).Val()
			}
			return fmt.Sprint(r.hash(key))
		}
		was := stored()
		if a, ok := r.taken(group{reservation: reservation{key, r.rule(key, ""), 1, time.Millisecond}, members: make([]int, 1)}); ok {
			t.Errorf("%s: take answers %+v", key, a)
		}
		if is := stored(); is != was {
			t.Errorf("%s: take has changed\n%v to\n%v", key, was, is)
		}
	}
	// What is over doesn't matter any more.
	hash("was-away", append(level, "opened", fmt.Sprint(start), "closedUntil", fmt.Sprint(start))...)
	if a, ok := r.taken(group{reservation: reservation{"was-away", r.rule("was-away", ""), 1, 0}, members: make([]int, 1)}); !ok || a.tokens != 15 {
		t.Errorf("after its receiver came back a key has for take %+v, want 15 tokens", a)
	}
}

func TestEventsThatTakeLeavesOpenKeepTheirOrder(t *testing.T) {
	t.Parallel()
	r := newRig(t, "10/s burst 2")
	b := r.shard("k").bundle
	rule := r.rule("k", "")
	calls := make([]*call[awaited, reserved], 6)
	for i := range calls {
		q := awaited{reservation{"k", rule, 1, time.Second}, t.Context()}
		calls[i] = &call[awaited, reserved]{ctx: q.ctx, q: q, done: make(chan struct{})}
	}
	calls[1].q.cost = 2 // another cost than those beside it: take would tell them apart
	b.take.add(calls...)
	var last time.Time
	for i, c := range calls {
		<-c.done
		if c.err != nil {
			t.Fatal(c.err)
		}
		if c.r.Verdict != limiter.Go && c.r.Verdict != limiter.Hold {
			t.Errorf("event %d: %+v", i, c.r)
		}
		if i != 1 && c.r.At.Before(last) {
			t.Errorf("event %d goes at %s, before the one ahead of it", i, c.r.At)
		}
		if i != 1 {
			last = c.r.At
		}
	}
	if !b.detours.has("k") {
		t.Error("the key's next events ask take again")
	}
}

func TestKeyAtItsLimitAsksReserveAtOnceForASecond(t *testing.T) {
	t.Parallel()
	r := newRig(t, "1/h burst 1")
	ask := func() limiter.Decision {
		d, err := r.Reserve(t.Context(), "k", "", 1, 0)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	b := r.shard("k").bundle
	if d := ask(); d.Verdict != limiter.Go || b.detours.has("k") {
		t.Errorf("the first event: %+v, and the next one goes round take: %t", d, b.detours.has("k"))
	}
	if d := ask(); d.Verdict != limiter.Park || b.detours.has("k") {
		t.Errorf("the first event without a token: %+v, and the next one goes round take: %t", d, b.detours.has("k"))
	}
	if d := ask(); d.Verdict != limiter.Park || d.Ahead != 1 || !b.detours.has("k") {
		t.Errorf("one behind it: %+v, and the next one goes round take: %t", d, b.detours.has("k"))
	}
	b.detours.of("k").Store(int64(time.Since(processStart)))
	if b.detours.has("k") {
		t.Error("the way round take has no end")
	}
}
