package redisstore

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"sync"
	"testing"
	"time"

	"sluice/integration/testenv"
	"sluice/limiter"
	"sluice/pipeline"
)

// What package limiter's property tests say of the model holds for the scripts, which agree with it; here is what only they,
// or only a Redis, can break. P7 and so on are the properties' names there.

// keysOf are n keys of one shard.
func keysOf(sh *shard, n int) (keys []string) {
	for i := 0; len(keys) < n; i++ {
		if key := fmt.Sprint("key", i); sh.shard(key) == sh {
			keys = append(keys, key)
		}
	}
	return keys
}

// P7: what one key is told doesn't depend on the others in its call, nor on their order.
func TestOrderOfTheKeysInACallChangesNothing(t *testing.T) {
	t.Parallel()
	const limits = "50/s burst 10, 30/s sliding"
	r := newRig(t, limits)
	rnd := rand.New(rand.NewPCG(7, 7))
	keys := keysOf(r.shards[3], 40)
	var stores []*Store
	for _, name := range []string{"one", "other"} { // the same keys under another name
		s := r.worker(name, limits)
		s.opt.Name = name
		s.prefix = name + ":"
		for i := range s.shards {
			s.shards[i] = s.newShard(i)
		}
		s.bundleShards()
		if err := s.Open(t.Context()); err != nil {
			t.Fatal(err)
		}
		stores = append(stores, s)
	}
	for round := range int64(30) {
		batch := make([]reservation, len(keys))
		for i, key := range keys {
			batch[i] = reservation{key, stores[0].rule(key, ""), 1 + rnd.Int64N(4), time.Duration(rnd.Int64N(3)-1) * 200 * time.Millisecond}
		}
		shuffled := rnd.Perm(len(keys))
		other := make([]reservation, len(keys))
		for i, to := range shuffled {
			other[to] = batch[i]
			other[to].rule = stores[1].rule(keys[i], "")
		}
		var answers [2][]limiter.Decision
		for i, b := range [][]reservation{batch, other} {
			stores[i].now = start + round*100_000
			got, err := stores[i].decide(keys[0], b)
			if err != nil {
				t.Fatal(err)
			}
			answers[i] = got
		}
		for i, to := range shuffled {
			a, b := answers[0][i], answers[1][to]
			a.At, a.Stale, b.At, b.Stale = time.Time{}, time.Time{}, time.Time{}, time.Time{} // by this process' clock
			if !reflect.DeepEqual(a, b) {
				t.Fatalf("round %d, %+v: %+v in one order, %+v in another", round, batch[i], a, b)
			}
		}
	}
}

// P9, and a bug of Redis' own: keys of fast limits expired at once, and those of slow ones before they were full again.
func TestKeyIsKeptUntilItIsFull(t *testing.T) {
	t.Parallel()
	r := newRig(t, "1/s")
	for _, text := range []string{
		"1000000/s", "1000000/s burst 1", "10/s burst 20", "3/s burst 1", "1/h burst 48", "100/d", "1/m leaky", "1000/h window",
		"5/m sliding", "1000/d sliding", "10/s, 1/h burst 3", "10/s, 100/d sliding",
	} {
		limits, err := limiter.ParseLimits(text)
		if err != nil {
			t.Fatal(err)
		}
		model, err := limiter.NewModel(limits)
		if err != nil {
			t.Fatal(err)
		}
		only, err := newRule(&limiter.Ruling{Limits: limits}, 0)
		if err != nil {
			t.Fatal(err)
		}
		only.ruling = r.rule("", "").ruling
		r.setRule(only)
		at := int64(0)
		for i := range int64(4) {
			r.at(at)
			model.Reserve(start+at, 1+i, 1, time.Second)
			r.ask(text, 1+i, time.Second.Microseconds())
			left := time.Duration(model.FullAt(start+at)-start-at) * time.Microsecond
			if ttl := r.rdb.PTTL(t.Context(), r.shard(text).keys(nil, text)[0]).Val(); ttl < max(left, time.Second) {
				t.Errorf("%s, call %d: expires in %s, is full in %s", text, i, ttl, left)
			}
			at += 300_000
		}
	}
}

// P10: a call that is made again, since its answer was lost, changes nothing more.
func TestRepeatedParkAndSettleChangeNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t, "10/s burst 10")
	state := func() string {
		all := fmt.Sprint(r.hash("k"))
		for _, name := range []string{"lane", "busy", "retry"} {
			set := name + ":" + r.shard("k").tag + ":k"
			all += fmt.Sprint(" ", name, r.rdb.ZRangeWithScores(t.Context(), set, 0, -1).Val())
		}
		due, _ := r.dueAt("k")
		return fmt.Sprint(all, due)
	}
	twice := func(what string, call func()) {
		t.Helper()
		call()
		once := state()
		r.now += 100_000
		call()
		if again := state(); again != once {
			t.Errorf("%s again:\n%s, was\n%s", what, again, once)
		}
	}
	twice("park", func() { r.park("k", 1, 2, 3) })
	l := leaseOf(t, r.Store, "k", 0, 2)
	later := l.Events[1].Entry
	later.Attempt = 1
	twice("settle", func() {
		_, err := r.Settle(t.Context(), pipeline.SettleRequest{Key: "k", Token: l.Token, Events: []pipeline.Settlement{
			done(l.Events[0]), {Was: l.Events[1].Entry, Now: later, Fate: pipeline.Back, After: time.Second},
		}})
		if err != nil {
			t.Fatal(err)
		}
	})
}

// P15: pushes that start at their tokens' times, late by whatever this machine is, keep the bound with that lateness.
func TestPushesAtTheirTimesKeepTheBound(t *testing.T) {
	t.Parallel()
	const rate, burst = 200, 5
	rdb := testenv.Redis(t).Client()
	var (
		mu     sync.Mutex
		times  []time.Time
		latest time.Duration
		all    sync.WaitGroup
	)
	end := time.Now().Add(time.Second)
	for range 4 {
		l := shared(t, rdb, "200/s burst 5")
		all.Go(func() {
			for time.Now().Before(end) {
				d, err := l.Reserve(t.Context(), "k", 1, 100*time.Millisecond)
				if err != nil {
					t.Error(err)
					return
				}
				if d.Verdict == limiter.Park {
					time.Sleep(d.Wait)
					continue
				}
				time.Sleep(time.Until(d.At))
				now := time.Now()
				mu.Lock()
				times, latest = append(times, now), max(latest, now.Sub(d.At))
				mu.Unlock()
			}
		})
	}
	all.Wait()
	if x := testenv.BoundExcess(times, rate, burst, latest+time.Millisecond); x > 0 {
		t.Errorf("%.2f pushes more than the limit allows at a lateness of %s", x, latest)
	}
	if len(times) < rate*8/10 {
		t.Errorf("%d pushes within a second, want %d", len(times), rate)
	}
}

// A14: slots of events that were given up stayed taken, and the next event waited behind them for half a minute.
func TestAbandonedSlotsDelayOthersByAHorizonAtMost(t *testing.T) {
	t.Parallel()
	r := newRig(t, "1/15s burst 1")
	if a := r.ask("slow", 4, 1_000_000); a.granted != 1 || len(a.slots) != 0 {
		t.Errorf("%+v, want no slot in 15 s", a)
	}
	r.use(limiter.Class{Num: 1, Den: 100_000, Burst: 1})
	if a := r.ask("k", 100, 1_000_000); len(a.slots) != 10 {
		t.Fatalf("%d slots, want those of a second", len(a.slots))
	}
	r.at(1_100_000) // nobody came
	if a := r.ask("k", 1, 0); a.granted != 1 {
		t.Errorf("%+v a token's time after the last slot, want one", a)
	}
}

// A18: pushes that were tried again took no tokens.
func TestRetryTakesATokenOfItsKey(t *testing.T) {
	t.Parallel()
	r := newRig(t, "1/h burst 3")
	r.park("k", 1)
	for i := range 4 {
		r.at(int64(i) * 10_000_000)
		l := leaseOf(t, r.Store, "k", 0, 10)
		if i == 3 {
			if len(l.Events) > 0 {
				t.Errorf("a fourth attempt with three tokens: %+v", l)
			}
			return
		}
		if len(l.Events) != 1 || r.hash("k")["bucket/1h:tokens"] != fmt.Sprint(2-i) {
			t.Fatalf("attempt %d: leased %+v, the hash is %v", i+1, l, r.hash("k"))
		}
		again := l.Events[0].Entry
		again.Attempt++
		_, err := r.Settle(t.Context(), pipeline.SettleRequest{Key: "k", Token: l.Token, Release: true, Healthy: true,
			Events: []pipeline.Settlement{{Was: l.Events[0].Entry, Now: again, Fate: pipeline.Back, After: time.Second}}})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// B2: each start of a node handed out a free bucket.
func TestRestartedWorkersAddNoTokens(t *testing.T) {
	t.Parallel()
	r := newRig(t, "10/h burst 10")
	if a := r.ask("k", 20, 0); a.granted != 10 {
		t.Fatalf("%+v at first, want 10", a)
	}
	for i := range 10 {
		s := r.worker(fmt.Sprint("again", i), "10/h burst 10")
		if d, err := s.Reserve(t.Context(), "k", "", 1, 0); err != nil || d.Verdict == limiter.Go {
			t.Errorf("start %d: %+v, %v", i, d, err)
		}
	}
}
