package redisstore

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"sluice/pipeline"
)

// commands are those that Redis has run for do, by name, without the call of the script itself.
func (r *rig) commands(do func()) string {
	r.t.Helper()
	if err := r.rdb.ConfigResetStat(r.t.Context()).Err(); err != nil {
		r.t.Fatal(err)
	}
	do()
	calls := map[string]string{}
	for line := range strings.Lines(r.rdb.Info(r.t.Context(), "commandstats").Val()) {
		name, rest, ok := strings.Cut(strings.TrimPrefix(line, "cmdstat_"), ":calls=")
		if n, _, more := strings.Cut(rest, ","); ok && more && !strings.Contains(name, "|") && name != "evalsha" {
			calls[name] = n
		}
	}
	var text []string
	for _, name := range slices.Sorted(maps.Keys(calls)) {
		text = append(text, name+" "+calls[name])
	}
	return strings.Join(text, ", ")
}

// Of each call one HMGET and the HINCRBY are of the epoch.
func TestLaneStepsTakeFewCommands(t *testing.T) {
	t.Parallel()
	r := newRig(t, "1/s burst 1")
	r.park("k", 1)
	r.settleAll(leaseOf(t, r.Store, "k", 0, 10)) // loads the scripts, and leaves a hash that lasts
	for _, c := range []struct {
		name                string
		waiting             int
		park, lease, settle string
	}{
		{
			"alone", 0,
			"exists 1, hincrby 1, hmget 2, zadd 2",
			"exists 1, hincrby 1, hmget 2, hset 1, zadd 2, zrange 1, zrem 1",
			"exists 1, hdel 1, hincrby 1, hmget 2, zrem 2",
		},
		{
			"behind others", 30,
			"exists 1, hincrby 1, hmget 2, zadd 2, zcard 1",
			"exists 1, hincrby 1, hmget 2, hset 1, zadd 2, zcard 1, zrange 1, zrem 1",
			"exists 1, hdel 1, hincrby 1, hmget 2, zadd 1, zcard 1, zrem 1",
		},
	} {
		for i := range c.waiting {
			r.park("k", uint64(10+i))
		}
		r.at(r.now - start + 10_000_000)
		var l pipeline.Lease
		steps := map[string]string{
			"park": r.commands(func() { r.park("k", 9) }),
			"lease": r.commands(func() {
				var err error
				l, err = r.Lease(t.Context(), pipeline.LeaseRequest{Key: "k", Max: 10})
				if err != nil || len(l.Events) != 1 {
					t.Fatalf("%s: leased %+v, %v", c.name, l, err)
				}
			}),
			"settle": r.commands(func() {
				req := pipeline.SettleRequest{Key: "k", Token: l.Token, Release: true, Healthy: true, Events: []pipeline.Settlement{done(l.Events[0])}}
				if _, err := r.Settle(t.Context(), req); err != nil {
					t.Fatal(err)
				}
			}),
		}
		if want := map[string]string{"park": c.park, "lease": c.lease, "settle": c.settle}; !maps.Equal(steps, want) {
			t.Errorf("an event %s takes\n%v, want\n%v", c.name, steps, want)
		}
	}
}

// lease reads no more of a lane than finds slots, and on while what it reads takes none.
func TestLeaseReadsOnBehindEventsThatTakeNoTokens(t *testing.T) {
	t.Parallel()
	r := newRig(t, "1/s burst 1")
	want := []uint64{}
	for seq := uint64(1); seq <= 44; seq++ {
		e := pipeline.Entry{BodyID: pipeline.BodyID{Seq: seq}, Order: seq, Cost: 1}
		if seq != 20 && seq < 41 {
			e.Expires = time.UnixMilli(start/1000 - 1)
		}
		if _, err := r.Park(t.Context(), pipeline.ParkRequest{Key: "k", Entry: e}); err != nil {
			t.Fatal(err)
		}
		if seq <= 41 {
			want = append(want, seq)
		}
	}
	l := leaseOf(t, r.Store, "k", 0, 100)
	useless := 0
	for _, e := range l.Events {
		if e.Useless {
			useless++
		}
	}
	if got := seqs(l); !slices.Equal(got, want) || useless != 39 || l.Waiting != 3 {
		t.Errorf("leased %v, of which %d are useless, and %d wait; want 20 and 41 beside 39 useless ones, and 3 that wait", got, useless, l.Waiting)
	}
	if got := len(r.zset("busy", "k")); got != 41 {
		t.Errorf("%d are leased, want 41", got)
	}
}

// A lane goes on until its damaged event is among those that could go.
func TestUnreadableEventStopsALaneWhenItIsNear(t *testing.T) {
	t.Parallel()
	r := newRig(t, "1/s burst 1")
	r.park("k", 1, 2, 3, 4, 5)
	r.rdb.ZAdd(t.Context(), "lane:"+r.shard("k").tag+":k", redis.Z{Member: "junk", Score: 6})
	l := leaseOf(t, r.Store, "k", 0, 10)
	got := seqs(l)
	r.at(2_000_000)
	l = leaseOf(t, r.Store, "k", l.Token, 10)
	if got = append(got, seqs(l)...); !slices.Equal(got, []uint64{1, 2, 3, 4}) || l.Waiting != 2 {
		t.Errorf("leased %v and %d wait, want the first four and 2", got, l.Waiting)
	}
	r.at(4_000_000)
	if l = leaseOf(t, r.Store, "k", l.Token, 10); len(l.Events) > 0 || l.Token != 0 {
		t.Errorf("leased %v right before an event that can't be read", seqs(l))
	}
}
