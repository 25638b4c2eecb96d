package redisstore

import (
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/redis/go-redis/v9"

	"sluice/limiter"
	"sluice/pipeline"
)

// sameShard are so many keys of one shard.
func (r *rig) sameShard(n int) (keys []string) {
	for i := 0; len(keys) < n; i++ {
		if k := string(rune('a'+i%26)) + string(rune('a'+i/26)); limiter.Shard(k) == 0 {
			keys = append(keys, k)
		}
	}
	return keys
}

func TestLaneThatCantBeReadSpoilsOnlyItself(t *testing.T) {
	for name, z := range map[string]redis.Z{
		"not a number":      {Member: "x", Score: 1},
		"a field is none":   {Member: "7,1,many,0,7,0", Score: 1},
		"too long":          {Member: "99999999999999999999", Score: 1},
		"no whole place":    {Member: "7", Score: 1.5},
		"place below 0":     {Member: "7", Score: -1},
		"the name is cut":   {Member: "7,0,1,0,1,0,%4", Score: 1},
		"behind a good one": {Member: "7,,", Score: 1002},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, "100/s burst 100")
			keys := r.sameShard(3)
			for _, k := range keys {
				r.index(k, r.bodies.store(k, 2)...)
			}
			bad := r.shard(keys[1])
			r.rdb.ZAdd(t.Context(), bad.keys(nil, keys[1])[1], z)
			before := testutil.ToFloat64(r.metrics.errors.WithLabelValues("damaged"))
			var batch []pipeline.LeaseRequest
			for _, k := range keys {
				batch = append(batch, pipeline.LeaseRequest{Key: k, Max: 10, Horizon: time.Second})
			}
			got, err := each(bad.bundle.runLease(batch))
			if err != nil {
				t.Fatal(err)
			}
			for i, want := range []int{2, 0, 2} {
				if len(got[i].Events) != want || (got[i].Token != 0) != (want > 0) {
					t.Errorf("lane %d: %+v, want %d events", i, got[i], want)
				}
			}
			if next := got[1].Next; next < time.Second {
				t.Errorf("the unreadable lane is looked at again in %s, want seconds", next)
			}
			if n := testutil.ToFloat64(r.metrics.errors.WithLabelValues("damaged")) - before; n != 1 {
				t.Errorf("counted %v damaged keys, want 1", n)
			}

			r.at(10_000_000) // whatever was leased of it has come back
			for range 4 {
				in := r.inspect()
				if len(in.Findings) == 0 {
					break
				}
				if err := r.Mend(t.Context(), in.Findings); err != nil {
					t.Fatal(err)
				}
			}
			l := leaseOf(t, r.Store, keys[1], 0, 10)
			if !slices.Equal(seqs(l), []uint64{3, 4}) {
				t.Errorf("once it is mended: leased %v, want its two events", seqs(l))
			}
		})
	}
}

func TestLeaseOfAnUnreadableLaneIsNotTaken(t *testing.T) {
	r := newRig(t, "100/s burst 100")
	r.index("k", r.bodies.store("k", 2)...)
	r.rdb.ZAdd(t.Context(), r.shard("k").keys(nil, "k")[1], redis.Z{Member: "x", Score: 1})
	leaseOf(t, r.Store, "k", 0, 10)
	if h := r.hash("k"); len(h) > 0 || len(r.zset("busy", "k")) > 0 {
		t.Errorf("leased %v, state %v; want no event and no token taken", r.zset("busy", "k"), h)
	}
	if at, ok := r.dueAt("k"); !ok || at != 5_000_000 {
		t.Errorf("due at %d, %t, want in 5 s", at, ok)
	}
}
