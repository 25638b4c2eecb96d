package redisstore

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"sluice/limiter"
)

// step asks for n at time t and wants g granted now and slots promised.
type step struct {
	t, n  int64
	g     int64
	slots []int64 // since the start, in microseconds
}

// The vectors V1 to V4, V6, V9, V12, V13, V15 and V16 were printed by a prototype and agree with a big-integer model.
func TestVectorsOfTheBucket(t *testing.T) {
	r := newRig(t, "1/s")
	day, hour := int64(86_400_000_000), int64(3_600_000_000)
	for _, v := range []struct {
		name    string
		class   limiter.Class
		horizon int64
		steps   []step
	}{
		{"V1", limiter.Class{Num: 3, Den: 1_000_000, Burst: 5}, 0, []step{
			{t: 0, n: 7, g: 5}, {t: 100_000, n: 1}, {t: 333_333, n: 1}, {t: 333_334, n: 1, g: 1},
			{t: 1_000_000, n: 5, g: 2}, {t: 11_000_000, n: 6, g: 5},
		}},
		{"V2", limiter.Class{Num: 3, Den: 1_000_000, Burst: 2}, 1_000_000, []step{
			{t: 0, n: 8, g: 2, slots: []int64{333_334, 666_667, 1_000_000}}, {t: 0, n: 1},
			{t: 400_000, n: 3, slots: []int64{1_333_334}}, {t: 2_000_000, n: 1, g: 1},
		}},
		{"V3", limiter.Class{Num: 1, Den: 1, Burst: 10}, 5, []step{
			{t: 0, n: 20, g: 10, slots: []int64{1, 2, 3, 4, 5}}, {t: 3, n: 20, slots: []int64{6, 7, 8}}, {t: 3, n: 1},
		}},
		{"V4", limiter.Class{Num: 1, Den: day, Burst: 1}, hour, []step{
			{t: 0, n: 2, g: 1}, {t: 82_799_999_999, n: 1}, {t: 82_800_000_000, n: 1, slots: []int64{day}}, {t: day, n: 1},
		}},
		{"V6", limiter.Class{Num: 1, Den: 100_000, Burst: 0}, 300_000, []step{
			{t: 0, n: 5, slots: []int64{100_000, 200_000, 300_000}}, {t: 100_000, n: 2, slots: []int64{400_000}},
		}},
		{"V9", limiter.Class{Num: 1, Den: 100_000, Burst: 3}, 0, []step{
			{t: 10_000_000, n: 3, g: 3}, {t: 9_500_000, n: 1}, {t: 10_100_000, n: 1, g: 1}, {t: 0, n: 1}, {t: 100_000, n: 1, g: 1},
		}},
		{"V16", limiter.Class{Num: 1, Den: 100_000, Burst: 50}, 0, []step{
			{t: 0, n: 80, g: 50}, {t: 1_100_000, n: 80, g: 11}, {t: 2_200_000, n: 80, g: 11},
		}},
	} {
		t.Run(v.name, func(t *testing.T) {
			r.use(v.class)
			for i, s := range v.steps {
				r.at(s.t)
				a := r.ask(v.name, s.n, v.horizon)
				if a.granted != s.g || a.scheduled != int64(len(s.slots)) {
					t.Fatalf("step %d: granted %d, scheduled %d, want %d, %d", i, a.granted, a.scheduled, s.g, len(s.slots))
				}
				for j, want := range s.slots {
					got := s.t + v.class.Wait(a.tokens, a.frac, s.g+int64(j)+1).Microseconds()
					if got != want {
						t.Errorf("step %d: slot %d at %d, want %d", i, j, got, want)
					}
				}
			}
		})
	}
}

func TestVectorV1KeepsTheFraction(t *testing.T) {
	r := newRig(t, "3/s burst 5")
	r.ask("k", 7, 0)
	r.at(333_334)
	r.ask("k", 1, 0)
	if got := r.hash("k")["frac"]; got != "2" {
		t.Errorf("frac = %s, want 2", got)
	}
}

func TestVectorV9FreezesAndRebasesTheClock(t *testing.T) {
	r := newRig(t, "10/s burst 3")
	r.at(10_000_000)
	r.ask("k", 3, 0)
	r.at(9_500_000)
	if a := r.ask("k", 1, 0); a.tokens != -5 {
		t.Errorf("usable tokens half a second before the last update: %d, want -5", a.tokens)
	}
	if got, want := r.hash("k")["updatedAt"], fmt.Sprint(start+10_000_000); got != want {
		t.Errorf("updatedAt = %s, want it kept at %s", got, want)
	}
	r.at(0)
	r.ask("k", 1, 0)
	if got, want := r.hash("k")["updatedAt"], fmt.Sprint(start); got != want {
		t.Errorf("updatedAt = %s, want it rebased to %s", got, want)
	}
}

func TestVectorV12DamagedKeySpoilsOnlyItself(t *testing.T) {
	r := newRig(t, "10/s burst 5")
	sh := r.shards[0]
	var names []string // three keys of one shard
	for i := 0; len(names) < 3; i++ {
		if k := fmt.Sprintf("k%d", i); r.shard(k) == sh {
			names = append(names, k)
		}
	}
	for _, damage := range []func(key string){
		func(key string) { r.rdb.Set(t.Context(), key, "x", 0) },
		func(key string) {
			r.rdb.Del(t.Context(), key)
			r.rdb.HSet(t.Context(), key, "tokens", "12.5", "frac", "0", "den", "1", "updatedAt", "5")
		},
		func(key string) {
			r.rdb.Del(t.Context(), key)
			r.rdb.HSet(t.Context(), key, "tokens", "3")
		},
	} {
		for _, k := range names {
			r.rdb.Del(t.Context(), sh.keys(nil, k)[0])
		}
		damage(sh.keys(nil, names[1])[0])
		var batch []reservation
		for _, k := range names {
			batch = append(batch, reservation{key: k, cost: 1})
		}
		got, err := sh.runReserve(batch)
		if err != nil {
			t.Fatal(err)
		}
		want := []limiter.Verdict{limiter.Go, limiter.Park, limiter.Go}
		for i, d := range got {
			if d.Verdict != want[i] {
				t.Errorf("key %d: %+v, want verdict %d", i, d, want[i])
			}
		}
		if got[1].Reason != limiter.Damaged {
			t.Errorf("reason %q, want %q", got[1].Reason, limiter.Damaged)
		}
	}
}

func TestVectorV13MissingKeyIsAFullBucket(t *testing.T) {
	r := newRig(t, "10/s burst 4")
	r.ask("k", 4, 0)
	r.rdb.Del(t.Context(), r.shard("k").keys(nil, "k")[0])
	if a := r.ask("k", 9, 0); a.granted != 4 {
		t.Errorf("granted %d of a missing key, want the burst, 4", a.granted)
	}
}

func TestVectorV15PollingLosesNoFraction(t *testing.T) {
	r := newRig(t, "3/s burst 5")
	total := int64(0)
	for at := int64(0); at <= 9_000_000; at += 150_000 {
		r.at(at)
		total += r.ask("k", 10, 0).granted
	}
	if total != 32 {
		t.Errorf("granted %d in 9 s, want 32 = 5 + 3 x 9", total)
	}
}

// After a loss of Redis' data a missing bucket holds only what can have been refilled since.
func TestMissingKeyAfterALossIsNoFreshBurst(t *testing.T) {
	r := newRig(t, "10/s burst 100")
	r.rdb.FlushAll(t.Context())
	if _, err := r.Reserve(t.Context(), "k", 1, 0); err != ErrEpoch {
		t.Fatalf("reserve after the loss: %v, want %v", err, ErrEpoch)
	}
	if err := r.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	if a := r.ask("k", 100, 0); a.granted != 0 {
		t.Errorf("granted %d right after the loss, want 0", a.granted)
	}
	r.at(2_000_000)
	if a := r.ask("k", 100, 0); a.granted != 20 {
		t.Errorf("granted %d two seconds after the loss, want 20", a.granted)
	}
}

var randomCalls = flag.Int("random-calls", 4000, "calls of the comparison with the big-integer model")

func TestScriptAgreesWithTheBigIntegerModel(t *testing.T) {
	r := newRig(t, "1/s")
	seed := uint64(time.Now().UnixNano())
	rnd := rand.New(rand.NewPCG(seed, 1))
	t.Logf("seed %d", seed)
	models := map[string]*model{}
	classes := randomClasses(rnd, 40)
	now := int64(0)
	for i := range *randomCalls {
		key := fmt.Sprintf("k%d", rnd.IntN(30))
		m := models[key]
		if m == nil {
			m = &model{class: classes[rnd.IntN(len(classes))]}
			models[key] = m
		}
		if rnd.IntN(50) == 0 {
			m.class = classes[rnd.IntN(len(classes))]
		}
		now += randomGap(rnd, m.class)
		if rnd.IntN(40) == 0 {
			now -= rnd.Int64N(4_000_000)
		}
		now = max(now, 0)
		n := 1 + rnd.Int64N(max(1, min(2*m.class.Burst, 50)))
		horizon := []int64{0, 1000, 300_000, 1_000_000}[rnd.IntN(4)]
		r.use(m.class)
		r.at(now)
		got := r.ask(key, n, horizon)
		g, s, tokens, frac := m.reserve(start+now, n, horizon)
		if got.granted != g || got.scheduled != s || got.tokens != tokens || got.frac != frac {
			t.Fatalf("call %d, %+v, t=%d n=%d horizon=%d: got %+v, the model says %d %d %d %d",
				i, m.class, now, n, horizon, got, g, s, tokens, frac)
		}
	}
}

// Eight clients ask for one key at once, on Redis' own clock: never more than burst + rate x time, and with a backlog
// exactly that.
func TestConcurrentClientsNeverExceedTheLimitAndWasteNothing(t *testing.T) {
	r := newRig(t, "1000/s burst 50")
	r.now = 0
	stop := time.Now().Add(time.Second)
	begin := time.Now()
	var wg sync.WaitGroup
	var mu sync.Mutex
	total := 0
	for range 8 {
		other := r.worker("w", "1000/s burst 50")
		other.now, other.opt.KeyMaxWaiting = 0, 1
		other.lost = nil
		wg.Go(func() {
			for time.Now().Before(stop) {
				d, err := other.Reserve(t.Context(), "k", 1, 0)
				if err != nil {
					t.Error(err)
					return
				}
				if d.Verdict == limiter.Go {
					mu.Lock()
					total++
					mu.Unlock()
				}
				if d.Counted { // take the park back, so that nothing waits ahead
					r.rdb.HDel(t.Context(), r.shard("k").keys(nil, "k")[0], "opened", "opening")
				}
			}
		})
	}
	wg.Wait()
	took := time.Since(begin)
	most := 50 + int(took.Seconds()*1000) + 1
	if total > most || total < most*8/10 {
		t.Errorf("granted %d in %s, want at most %d and nearly that", total, took, most)
	}
}

func TestReserveCollectsCallsOfOneShard(t *testing.T) {
	r := newRig(t, "1000/s burst 1000")
	r.now = 0
	before := calls(t, r)
	var wg sync.WaitGroup
	for range 500 {
		wg.Go(func() {
			if _, err := r.Reserve(t.Context(), "k", 1, 0); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := calls(t, r) - before; n > 250 {
		t.Errorf("%d script calls for 500 reservations made at once", n)
	}
	if got := r.hash("k")["tokens"]; got != "500" && !strings.HasPrefix(got, "5") {
		t.Errorf("tokens = %s, want about 500: every reservation is charged once", got)
	}
}

func calls(t *testing.T, r *rig) int64 {
	n, err := r.rdb.HGet(t.Context(), r.shard("k").epochKey, "n").Int64()
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestBookedSlotsAreHeldAndTheRestParked(t *testing.T) {
	r := newRig(t, "10/s burst 2")
	var batch []reservation
	for range 15 {
		batch = append(batch, reservation{key: "k", cost: 1, horizon: time.Second})
	}
	got, err := r.shard("k").runReserve(batch)
	if err != nil {
		t.Fatal(err)
	}
	count := map[limiter.Verdict]int{}
	for _, d := range got {
		count[d.Verdict]++
	}
	if count[limiter.Go] != 2 || count[limiter.Hold] != 10 || count[limiter.Park] != 3 {
		t.Errorf("go, hold, park = %v, want 2, 10, 3", count)
	}
	if d := got[14]; d.Wait != 1300*time.Millisecond {
		t.Errorf("the last event's wait is %s, want 1.3s", d.Wait)
	}
	// Newer events must not pass those that are on their way into the lane.
	r.at(1_500_000)
	if d, _ := r.Reserve(t.Context(), "k", 1, time.Second); d.Verdict != limiter.Park || d.Reason != limiter.LaneAhead {
		t.Errorf("a newer event got %+v, want it parked behind", d)
	}
	r.at(4_000_000)
	if d, _ := r.Reserve(t.Context(), "k", 1, time.Second); d.Verdict != limiter.Go {
		t.Errorf("long after the parks were expected: %+v, want go", d)
	}
}

func TestLongestWaitLetsExactlyTheExcessOverflow(t *testing.T) {
	r := newRig(t, "10/s burst 20")
	r.maxCost = r.class.Tokens(3 * time.Second)
	var batch []reservation
	for range 100 {
		batch = append(batch, reservation{key: "k", cost: 1})
	}
	got, err := r.shard("k").runReserve(batch)
	if err != nil {
		t.Fatal(err)
	}
	count := map[limiter.Verdict]int{}
	for _, d := range got {
		count[d.Verdict]++
	}
	if count[limiter.Go] != 20 || count[limiter.Park] != 30 || count[limiter.Overflow] != 50 {
		t.Errorf("go, park, overflow = %v, want 20, 30, 50", count)
	}
}

// A key's hash may hold its lane's fields before its first token is taken.
func TestFirstTokenOfAKeyWhoseLaneCameFirst(t *testing.T) {
	r := newRig(t, "10/s burst 20")
	if _, err := r.Reserve(t.Context(), "k", 1, -1); err != nil { // opens the key
		t.Fatal(err)
	}
	r.at(3_000_000)
	for range 2 {
		if d, err := r.Reserve(t.Context(), "k", 1, 0); err != nil || d.Verdict != limiter.Go {
			t.Fatalf("%+v, %v, want go; the hash is %v", d, err, r.hash("k"))
		}
	}
}

func TestReservationWithoutHorizonTakesNothing(t *testing.T) {
	r := newRig(t, "10/s burst 20")
	d, err := r.Reserve(t.Context(), "k", 1, -1)
	if err != nil || d.Verdict != limiter.Park || d.Reason != limiter.Throttled || !d.Counted {
		t.Errorf("%+v, %v, want parked", d, err)
	}
	if _, charged := r.hash("k")["tokens"]; charged {
		t.Errorf("tokens were taken: %v", r.hash("k"))
	}
}

func TestPausedAndUnlimited(t *testing.T) {
	r := newRig(t, "0")
	if d, err := r.Reserve(t.Context(), "k", 1, time.Second); err != nil || d.Verdict != limiter.Park || d.Reason != limiter.Paused {
		t.Errorf("limit 0: %+v, %v, want parked as paused", d, err)
	}
	free := r.worker("free", "unlimited")
	for range 100 {
		if d, err := free.Reserve(t.Context(), "other", 1_000_000, 0); err != nil || d.Verdict != limiter.Go {
			t.Fatalf("unlimited: %+v, %v, want go", d, err)
		}
	}
}

func TestEveryLimiterKeyExpires(t *testing.T) {
	r := newRig(t, "10/s burst 20")
	r.now = 0
	for i := range 50 {
		if _, err := r.Reserve(t.Context(), fmt.Sprintf("k%d", i), 1+int64(i%20), time.Second); err != nil {
			t.Fatal(err)
		}
	}
	keys := r.rdb.Keys(t.Context(), "ratelimit:*").Val()
	if len(keys) != 50 {
		t.Fatalf("%d keys, want 50", len(keys))
	}
	for _, k := range keys {
		if ttl := r.rdb.TTL(t.Context(), k).Val(); ttl <= 0 || ttl > 2*time.Minute {
			t.Errorf("%s expires in %s", k, ttl)
		}
	}
}

// However slow the calls are, a token isn't too old when it arrives.
func TestSlowCallsLoosenTheAllowance(t *testing.T) {
	r := newRig(t, "1000/s burst 10")
	if got := r.allowance(); got != minAllowance {
		t.Errorf("allowance %s at quick calls, want %s", got, minAllowance)
	}
	for range 64 {
		r.calls.add(300 * time.Millisecond)
	}
	if got := r.allowance(); got != 600*time.Millisecond {
		t.Errorf("allowance %s at calls of 300 ms, want 600 ms", got)
	}
}
