package redisstore

import (
	"fmt"
	"testing"

	"sluice/limiter"
)

// step asks for n at time t and wants g granted now and slots promised.
type step struct {
	t, n  int64
	g     int64
	slots []int64 // since the start, in microseconds
}

// Most of the vectors V1 to V16 were printed by a prototype and agree with a big-integer model.
func TestVectorsOfTheLimits(t *testing.T) {
	r := newRig(t, "1/s")
	day := int64(86_400_000_000)
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
		{"V4", limiter.Class{Num: 1, Den: day, Burst: 1}, 1_000_000, []step{
			{t: 0, n: 2, g: 1}, {t: 86_398_999_999, n: 1}, {t: 86_399_000_000, n: 1, slots: []int64{day}}, {t: day, n: 1},
		}},
		{"V5", limiter.Class{Num: 1, Den: 100_000, Burst: 1, Kind: limiter.Leaky}, 500_000, []step{
			{t: 0, n: 10, g: 1, slots: []int64{100_000, 200_000, 300_000, 400_000, 500_000}}, {t: 50_000, n: 1},
			{t: 100_000, n: 2, slots: []int64{600_000}}, {t: 2_000_000, n: 3, g: 1, slots: []int64{2_100_000, 2_200_000}},
		}},
		{"V7", limiter.Class{Num: 10, Den: 1_000_000, Burst: 10, Kind: limiter.Window}, 0, []step{
			{t: 0, n: 4, g: 4}, {t: 700_000, n: 8, g: 6}, {t: 999_999, n: 1}, {t: 1_000_000, n: 12, g: 10}, {t: 2_600_000, n: 3, g: 3},
		}},
		{"V8", limiter.Class{Num: 2, Den: 400_000, Burst: 5, Kind: limiter.Window}, 1_000_000, []step{
			{t: 0, n: 9, g: 5, slots: []int64{400_000, 400_000, 800_000, 800_000}},
			{t: 200_000, n: 4, slots: []int64{1_200_000, 1_200_000}}, {t: 600_000, n: 1, slots: []int64{1_600_000}},
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
				if a.granted != s.g || len(a.slots) != len(s.slots) {
					t.Fatalf("step %d: granted %d, scheduled %d, want %d, %d", i, a.granted, len(a.slots), s.g, len(s.slots))
				}
				for j, want := range s.slots {
					if got := s.t + integer(a.slots[j]); got != want {
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

func TestVectorV7KeepsTheWindowsInPlace(t *testing.T) {
	r := newRig(t, "10/s window")
	r.ask("k", 4, 0)
	r.at(2_600_000)
	r.ask("k", 3, 0)
	if got, want := r.hash("k")["window/1s:updatedAt"], fmt.Sprint(start+2_000_000); got != want {
		t.Errorf("the window began at %s, want %s", got, want)
	}
}

func TestVectorV10LimitsChangeWithoutGifts(t *testing.T) {
	r := newRig(t, "10/s burst 10")
	r.ask("k", 3, 0)
	for i, s := range []struct {
		t             int64
		limit         limiter.Class
		n             int64
		before, grant int64
	}{
		{50_000, limiter.Class{Num: 3, Den: 1_000_000, Burst: 4}, 1, 4, 1},
		{50_000, limiter.Class{Num: 3, Den: 1_000_000, Burst: 20}, 9, 3, 3},
		{400_000, limiter.Class{Num: 3, Den: 1_000_000, Burst: 20}, 9, 1, 1},
	} {
		r.at(s.t)
		r.use(s.limit)
		if a := r.ask("k", s.n, 0); a.tokens != s.before || a.granted != s.grant {
			t.Errorf("step %d: %d before, %d granted, want %d, %d", i, a.tokens, a.granted, s.before, s.grant)
		}
	}
}

// The usual code sets the last refill to now and so never refills.
func TestVectorV14WindowRefillsHoweverOftenItIsAsked(t *testing.T) {
	r := newRig(t, "10/s window")
	total := int64(0)
	for at := int64(0); at < 60_000_000; at += 100_000 {
		r.at(at)
		total += r.ask("k", 1, 0).granted
	}
	if total != 600 {
		t.Errorf("granted %d of 600, want all", total)
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
			batch = append(batch, reservation{key: k, rule: r.rule(k, ""), cost: 1})
		}
		got, err := r.decide(names[0], batch)
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
