package redisstore

import (
	"math/rand/v2"
	"testing"
	"time"

	"sluice/integration/testenv"
)

// leaseSlots leases up to most events of k with a notice and settles them at once; it answers the slots as times.
func (r *rig) leaseSlots(key string, most int64, notice time.Duration) (at []time.Time) {
	r.t.Helper()
	sh := r.shard(key)
	args, place := r.ruled(key)
	args = append(args, 0, lead.Microseconds(), "me", leaseTime.Microseconds(), 0,
		1, key, place, "", 0, most, time.Second.Microseconds(), notice.Microseconds(), "", 0)
	rep, err := sh.run(leaseScript, sh.laneKeys([]string{sh.epochKey, sh.dueKey}, key), args)
	if err != nil {
		r.t.Fatal(err)
	}
	v := rep.values[0].([]any)[6:]
	for i := 2; i < len(v); i += 3 {
		slot := integer(v[i])
		if slot < notice.Microseconds() {
			r.t.Errorf("a slot in %d us, with a notice of %s", slot, notice)
		}
		at = append(at, time.UnixMicro(r.now+slot))
	}
	if err := r.rdb.Del(r.t.Context(), sh.keys(nil, key)[2]).Err(); err != nil {
		r.t.Fatal(err)
	}
	return at
}

func TestNoticeKeepsTheBoundWhateverTheLimit(t *testing.T) {
	t.Parallel()
	for limit, b := range map[string]struct{ rate, burst int }{
		"100/s burst 20": {100, 20}, "100/s burst 1": {100, 1}, "100/s burst 20, 1000/m burst 500": {100, 20},
		"100/s leaky": {100, 1},
	} {
		t.Run(limit, func(t *testing.T) {
			t.Parallel()
			random := rand.New(rand.NewPCG(uint64(b.burst), 0))
			r := newRig(t, limit)
			for seq := range uint64(1500) {
				r.park("k", seq+1)
			}
			var pushes []time.Time
			for t := int64(0); len(pushes) < 1000; t += random.Int64N(1 << (4 + random.Int64N(16))) {
				r.at(t)
				pushes = append(pushes, r.leaseSlots("k", 1+random.Int64N(30), time.Duration(random.IntN(100_000))*time.Microsecond)...)
			}
			if excess := testenv.BoundExcess(pushes, float64(b.rate), b.burst, time.Microsecond); excess > 0 {
				t.Errorf("%g pushes beyond the limit", excess)
			}
		})
	}
}

func TestNoticeCostsABacklogNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t, "100/s burst 20")
	for seq := range uint64(1500) {
		r.park("k", seq+1)
	}
	var pushes []time.Time
	for t := int64(0); len(pushes) < 1000; t += 50_000 {
		r.at(t)
		pushes = append(pushes, r.leaseSlots("k", 16, 100*time.Millisecond)...)
	}
	if took := pushes[len(pushes)-1].Sub(pushes[0]); took > 9810*time.Millisecond {
		t.Errorf("%d pushes took %s, want %s", len(pushes), took, 9800*time.Millisecond)
	}
}
