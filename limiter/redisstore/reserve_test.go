package redisstore

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"sluice/limiter"
)

// After a loss of Redis' data a missing bucket holds only what can have been refilled since.
func TestMissingKeyAfterALossIsNoFreshBurst(t *testing.T) {
	r := newRig(t, "10/s burst 100")
	r.rdb.FlushAll(t.Context())
	if _, err := r.Reserve(t.Context(), "k", "", 1, 0); err != ErrEpoch {
		t.Fatalf("reserve after the loss: %v, want %v", err, ErrEpoch)
	}
	if err := r.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	if a := r.ask("k", 100, 0); a.granted != 0 {
		t.Errorf("granted %d right after the loss, want 0", a.granted)
	}
	r.at(2_000_000)
	if a := r.ask("k", 100, 0); a.granted != 10 {
		t.Errorf("granted %d two seconds after the loss, want 10: slots promised before may be used for one", a.granted)
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
				d, err := other.Reserve(t.Context(), "k", "", 1, 0)
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
			if _, err := r.Reserve(t.Context(), "k", "", 1, 0); err != nil {
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
		batch = append(batch, reservation{key: "k", rule: r.rule("k", ""), cost: 1, horizon: time.Second})
	}
	got, err := r.decide("k", batch)
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
	if d, _ := r.Reserve(t.Context(), "k", "", 1, time.Second); d.Verdict != limiter.Park || d.Reason != limiter.LaneAhead {
		t.Errorf("a newer event got %+v, want it parked behind", d)
	}
	r.at(4_000_000)
	if d, _ := r.Reserve(t.Context(), "k", "", 1, time.Second); d.Verdict != limiter.Go {
		t.Errorf("long after the parks were expected: %+v, want go", d)
	}
}

func TestLongestWaitLetsExactlyTheExcessOverflow(t *testing.T) {
	r := newRig(t, "10/s burst 20")
	args := r.rule("", "").args
	args[len(args)-1] = 30 // tokens in three seconds
	var batch []reservation
	for range 100 {
		batch = append(batch, reservation{key: "k", rule: r.rule("k", ""), cost: 1})
	}
	got, err := r.decide("k", batch)
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
	if _, err := r.Reserve(t.Context(), "k", "", 1, -1); err != nil { // opens the key
		t.Fatal(err)
	}
	r.at(3_000_000)
	for range 2 {
		if d, err := r.Reserve(t.Context(), "k", "", 1, 0); err != nil || d.Verdict != limiter.Go {
			t.Fatalf("%+v, %v, want go; the hash is %v", d, err, r.hash("k"))
		}
	}
}

func TestReservationWithoutHorizonTakesNothing(t *testing.T) {
	r := newRig(t, "10/s burst 20")
	d, err := r.Reserve(t.Context(), "k", "", 1, -1)
	if err != nil || d.Verdict != limiter.Park || d.Reason != limiter.Throttled || !d.Counted {
		t.Errorf("%+v, %v, want parked", d, err)
	}
	if _, charged := r.hash("k")["tokens"]; charged {
		t.Errorf("tokens were taken: %v", r.hash("k"))
	}
}

func TestPausedAndUnlimited(t *testing.T) {
	r := newRig(t, "0")
	if d, err := r.Reserve(t.Context(), "k", "", 1, time.Second); err != nil || d.Verdict != limiter.Park || d.Reason != limiter.Paused {
		t.Errorf("limit 0: %+v, %v, want parked as paused", d, err)
	}
	free := r.worker("free", "unlimited")
	for range 100 {
		if d, err := free.Reserve(t.Context(), "other", "", 1_000_000, 0); err != nil || d.Verdict != limiter.Go {
			t.Fatalf("unlimited: %+v, %v, want go", d, err)
		}
	}
}

func TestEveryLimiterKeyExpires(t *testing.T) {
	r := newRig(t, "10/s burst 20")
	r.now = 0
	for i := range 50 {
		if _, err := r.Reserve(t.Context(), fmt.Sprintf("k%d", i), "", 1+int64(i%20), time.Second); err != nil {
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

// However slow the calls are, a token isn't too old when it arrives; one whose reply came late is.
func TestTokenIsAsOldAsItsScript(t *testing.T) {
	r := newRig(t, "1000/s burst 10")
	r.now = 0
	for range 10 {
		if _, err := r.Reserve(t.Context(), "quick", "", 1, 0); err != nil {
			t.Fatal(err)
		}
	}
	r.server.Pause()
	time.AfterFunc(300*time.Millisecond, r.server.Resume)
	d, err := r.Reserve(t.Context(), "slow", "", 1, 0)
	if late := time.Until(d.Stale); err != nil || d.Verdict != limiter.Go || late < 0 || late > minAllowance {
		t.Errorf("after a call of 300 ms: %+v, %v, stale in %s", d, err, late)
	}
}

func TestWaitOfManyEventsAtASlowLimitIsLong(t *testing.T) {
	t.Parallel()
	a := answer{code: 1, wait: 1000, ahead: 1_000_000}
	if d := a.decide(0, 1, reply{}, 24*time.Hour, 0); d.Verdict != limiter.Overflow || d.Wait < 1000*24*time.Hour {
		t.Errorf("the event behind a million at 1/d waits %s: %v", d.Wait, d.Verdict)
	}
}
