package redisstore

import (
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"sluice/integration/testenv"
	"sluice/pipeline"
)

// What an event costs that waits alone in its lane: of Redis' own time, for each of its steps.
//
//	go test ./limiter/redisstore -run '^$' -bench Lanes
func BenchmarkLanes(b *testing.B) {
	for _, size := range []int{1, 8, 32} {
		b.Run(fmt.Sprintf("batch=%d", size), func(b *testing.B) {
			c := newLaneCosts(b, size)
			for range b.N {
				c.round()
			}
			for name, d := range c.spent {
				b.ReportMetric(float64(d.Nanoseconds())/1e3/float64(b.N*perRound), name+"-us")
			}
			b.ReportMetric(0, "ns/op") // of a round: says nothing beside the others
		})
	}
}

// perRound is how many events go through each step before the next: Redis tells its time coarsely.
const perRound = 1024

// laneCosts sends events of keys of one bundle through their lanes, so many in a call.
type laneCosts struct {
	*rig
	bundle *bundle
	keys   []string // of all users
	size   int
	time   int64
	seq    uint64
	spent  map[string]time.Duration // by step
}

func newLaneCosts(b *testing.B, size int) *laneCosts {
	r := &rig{t: b, server: testenv.Redis(b), bodies: &bodies{created: 7}}
	r.rdb = r.server.Client()
	r.Store = r.worker("one", "1/s burst 1")
	c := &laneCosts{rig: r, bundle: r.bundles[0], size: size, spent: map[string]time.Duration{}}
	for i := 0; len(c.keys) < 20*perRound; i++ {
		if name := "user" + strconv.Itoa(i); r.shard(name).bundle == c.bundle {
			c.keys = append(c.keys, name)
		}
	}
	return c
}

// later lets time pass.
func (c *laneCosts) later(d time.Duration) {
	c.time += d.Microseconds()
	c.at(c.time)
}

// step does something for all calls of a round and notes what it took.
func (c *laneCosts) step(name string, calls int, do func(call int) error) {
	c.t.Helper()
	before := redisTime(c.t, c.rdb)
	for i := range calls {
		if err := do(i); err != nil {
			c.t.Fatal(name, err)
		}
	}
	c.spent[name] += redisTime(c.t, c.rdb) - before
}

// round takes a token of each of some keys, is refused another, parks an event, and leases and settles it when its slot comes.
func (c *laneCosts) round() {
	c.later(10 * time.Second)
	calls := slices.Collect(slices.Chunk(c.keys[:perRound], c.size))
	c.keys = append(c.keys[perRound:], c.keys[:perRound]...)
	reserve := func(i int) error {
		var batch []reservation
		for _, key := range calls[i] {
			batch = append(batch, reservation{key, c.rule(key, ""), 1, 0})
		}
		_, err := c.bundle.decide(batch)
		return err
	}
	c.step("take", len(calls), reserve)
	c.step("refuse", len(calls), reserve)
	c.step("park", len(calls), func(i int) error {
		var batch []pipeline.ParkRequest
		for _, key := range calls[i] {
			c.seq++
			batch = append(batch, pipeline.ParkRequest{Key: key, Counted: true, Entry: pipeline.Entry{BodyID: pipeline.BodyID{Seq: c.seq}, Order: c.seq, Cost: 1}})
		}
		_, err := each(c.bundle.runPark(batch))
		return err
	})
	c.later(950 * time.Millisecond)
	c.step("claim", len(calls), func(int) error {
		_, err := c.bundle.claim(c.bundle.members, max(1, c.size/len(c.bundle.members)))
		return err
	})
	leases := make([][]pipeline.Lease, len(calls))
	c.step("lease", len(calls), func(i int) (err error) {
		leases[i], err = each(c.bundle.runLease(leaseRequests(calls[i])))
		return err
	})
	c.step("settle", len(calls), func(i int) error {
		var batch []pipeline.SettleRequest
		for j, l := range leases[i] {
			batch = append(batch, pipeline.SettleRequest{
				Key: calls[i][j], Token: l.Token, Release: true, Healthy: true, Events: []pipeline.Settlement{done(l.Events[0])},
			})
		}
		_, err := each(c.bundle.runSettle(batch))
		return err
	})
}
