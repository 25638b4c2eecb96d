package redisstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"sluice/limiter"
	"sluice/pipeline"
)

// crowd is 21 keys of one shard that go through every script together. The one in the middle is the one to be damaged.
type crowd struct {
	*rig
	sh     *shard
	keys   []string
	seqs   map[string][]uint64
	leases []pipeline.Lease
	told   map[string][]string // what each script answered for a key
}

func newCrowd(t *testing.T) *crowd {
	r := newRig(t, "100/s burst 4")
	c := &crowd{rig: r, keys: r.sameShard(21), seqs: map[string][]uint64{}, told: map[string][]string{}}
	c.sh = r.shard(c.keys[0])
	for _, key := range c.keys {
		c.seqs[key] = r.bodies.store(key, 4)
		r.index(key, c.seqs[key][0])
	}
	return c
}

func (c *crowd) victim() string { return c.keys[10] }

// spoil gives one of the victim's keys another type.
func (c *crowd) spoil(which int) {
	key := c.sh.laneKeys(nil, c.victim())[which]
	c.rdb.Del(c.t.Context(), key)
	if which%2 == 0 {
		c.rdb.Set(c.t.Context(), key, "x", 0)
	} else {
		c.rdb.RPush(c.t.Context(), key, "x")
	}
}

// tell notes what a script has answered for each key, and fails if it hasn't.
func tell[T any](c *crowd, script string, answers []T, err error) {
	c.t.Helper()
	if err != nil || len(answers) != len(c.keys) {
		c.t.Fatalf("%s: %d answers, %v", script, len(answers), err)
	}
	for i, key := range c.keys {
		c.told[key] = append(c.told[key], fmt.Sprintf("%s: %+v", script, answers[i]))
	}
}

// newcomers reserves an event of each key and parks it with two more, of which the second takes the place of the first.
func (c *crowd) newcomers() {
	var asked []awaited
	for _, key := range c.keys {
		asked = append(asked, awaited{reservation{key, c.rule(key, ""), 1, time.Second}, c.t.Context()})
	}
	answers, err := c.sh.bundle.runReserve(asked)
	decisions := make([]string, len(answers))
	for i, a := range answers {
		decisions[i] = fmt.Sprint(a.Decision.Reason, a.Decision.Verdict, a.Decision.Ahead)
	}
	tell(c, "reserve", decisions, err)
	for n := 1; n < 4; n++ {
		var batch []pipeline.ParkRequest
		for _, key := range c.keys {
			e := pipeline.Entry{BodyID: pipeline.BodyID{Seq: c.seqs[key][n]}, Order: 1000 + c.seqs[key][n], Cost: 2}
			if n > 1 {
				e.Collapse = "position"
			}
			batch = append(batch, pipeline.ParkRequest{Key: key, Entry: e, Counted: n == 1})
		}
		infos, err := each(c.sh.bundle.runPark(batch))
		var drops []dropped
		for i := range infos {
			e := infos[i].Collapsed
			infos[i].Collapsed = nil
			if e == nil && n == 3 {
				e = &pipeline.Entry{BodyID: pipeline.BodyID{Seq: 1}, Cost: 1, Collapse: "position", Collapsed: true}
			}
			if e != nil {
				drops = append(drops, dropped{c.keys[i], *e})
			}
		}
		tell(c, "park", infos, err)
		if n == 3 {
			was, err := c.sh.runForget(drops)
			tell(c, "forget", was, err)
		}
	}
}

// lease leases, or leases on.
func (c *crowd) lease() {
	var batch []pipeline.LeaseRequest
	for i, key := range c.keys {
		l := pipeline.LeaseRequest{Key: key, Max: 10, Horizon: time.Second}
		if c.leases != nil {
			l.Token = c.leases[i].Token
		}
		batch = append(batch, l)
	}
	leases, err := each(c.sh.bundle.runLease(batch))
	answers := make([]string, len(leases))
	for i, l := range leases {
		answers[i] = fmt.Sprint(l.Token, l.LaneInfo, told(l))
	}
	tell(c, "lease", answers, err)
	c.leases = leases
}

// settle settles the first leased event of each key, and lets the others go back.
func (c *crowd) settle() {
	var batch []pipeline.SettleRequest
	for i, key := range c.keys {
		r := pipeline.SettleRequest{Key: key, Token: c.leases[i].Token, Release: true}
		for n, e := range c.leases[i].Events {
			s := done(e)
			if n > 0 {
				s.Fate, s.Now, s.After = pipeline.Back, e.Entry, 50*time.Millisecond
				s.Now.Attempt++
			}
			r.Events = append(r.Events, s)
		}
		batch = append(batch, r)
	}
	answers, err := c.sh.bundle.runSettle(batch)
	tell(c, "settle", answers, err)
}

// look runs what only looks, and what charges and verifies.
func (c *crowd) look() {
	var subjects []Subject
	var debts []debt
	var events []stored
	for _, key := range c.keys {
		subjects = append(subjects, Subject{Key: key})
		debts = append(debts, debt{key: key, ruling: c.rule(key, "").ruling, tokens: []int64{1}})
		for _, ev := range c.bodies.events {
			if ev.Key == key && ev.Source.Seq == 1000+c.seqs[key][3] {
				events = append(events, stored{key, "", storedEntry(ev, c.seqs[key][3])})
			}
		}
	}
	levels, err := c.Levels(c.t.Context(), subjects)
	tell(c, "levels", levels, err)
	able, err := c.sh.measure(c.keys, make([]string, len(c.keys)), 0)
	if err != nil {
		c.t.Fatal(err)
	}
	tell(c, "measure", able[4].([]any), nil)
	v := &verification{work: &work{shard: c.sh, ctx: c.t.Context()}}
	if _, _, err := v.call(events, false, asBefore, true); err != nil {
		c.t.Fatal("verify:", err)
	}
	if err := c.charge(debts); err != nil {
		c.t.Fatal("charge:", err)
	}
	levels, err = c.Levels(c.t.Context(), subjects)
	tell(c, "levels after verify and charge", levels, err)
	if _, err := c.Standing(c.t.Context(), c.victim(), ""); err != nil {
		c.t.Fatal("explain:", err)
	}
}

// life goes through all scripts; spoil is called at the moment given.
func (c *crowd) life(spoil func(), moment string) {
	at := func(now string) {
		if now == moment {
			spoil()
		}
	}
	at("before all")
	c.newcomers()
	at("while it waits")
	c.lease()
	at("while it is leased")
	c.lease()
	c.settle()
	c.at(200_000)
	at("while some went back")
	c.look()
	c.leases = nil
	c.lease()
	c.rdb.HDel(c.t.Context(), c.sh.epochKey, "id")
	if err := c.Open(c.t.Context()); err != nil {
		c.t.Fatal("rebuild:", err)
	}
	c.look()
}

var keyNames = []string{"ratelimit", "lane", "busy", "retry", "collapse"}

func TestKeyOfAnotherTypeSpoilsOnlyItselfInEveryScript(t *testing.T) {
	want := newCrowd(t)
	want.life(nil, "")
	for _, moment := range []string{"before all", "while it waits", "while it is leased", "while some went back"} {
		for which, name := range keyNames {
			t.Run(moment+"/"+name, func(t *testing.T) {
				c := newCrowd(t)
				c.life(func() { c.spoil(which) }, moment)
				for _, key := range c.keys {
					if key != c.victim() && !slices.Equal(c.told[key], want.told[key]) {
						t.Errorf("%s was told\n%q, without the damaged key it was\n%q", key, c.told[key], want.told[key])
						break
					}
				}
				if testutil.ToFloat64(c.metrics.errors.WithLabelValues("damaged")) == 0 {
					t.Error("no damaged key was counted")
				}
				c.mended(t)
			})
		}
	}
}

// mended repairs the index and sees that every stored event has one place.
func (c *crowd) mended(t *testing.T) {
	c.at(20_000_000)
	var in Inspection
	for range 4 {
		if in = c.inspect(); len(in.Findings) == 0 {
			break
		}
		if err := c.Mend(t.Context(), in.Findings); err != nil {
			t.Fatal(err)
		}
	}
	if len(in.Findings) > 0 || in.Places != in.Bodies || in.Bodies != len(c.bodies.events) {
		t.Errorf("once it is mended: %d bodies, %d places, found %+v", in.Bodies, in.Places, in.Findings)
	}
}

// A worker that holds a lane, parks into it and looks at it again does so seconds apart once it is damaged.
func TestDamagedLaneIsLookedAtSecondsLater(t *testing.T) {
	for which, name := range keyNames {
		t.Run(name, func(t *testing.T) {
			c := newCrowd(t)
			c.newcomers()
			c.spoil(which)
			key := c.victim()
			seq := c.bodies.store(key, 1)[0]
			info, err := c.Park(t.Context(), pipeline.ParkRequest{Key: key, Entry: pipeline.Entry{BodyID: pipeline.BodyID{Seq: seq}, Order: 1000 + seq, Cost: 1, Collapse: "position"}})
			if err != nil || info.Next < time.Second || info.Waiting < 1 {
				t.Errorf("parking says %+v, %v; want others that wait, and a look in a second or more", info, err)
			}
			l, err := c.Lease(t.Context(), pipeline.LeaseRequest{Key: key, Max: 10, Horizon: time.Second})
			if err != nil || len(l.Events) > 0 || l.Token != 0 || l.Next < time.Second {
				t.Errorf("leased %+v, %v; want nothing, and a look seconds later", l, err)
			}
			if at, ok := c.dueAt(key); !ok || at < 1_000_000 {
				t.Errorf("due at %d us, %t", at, ok)
			}
			if _, err := c.Purge(t.Context(), key, func(context.Context, pipeline.Entry) error { return errors.New("can't be deleted") }); err == nil {
				t.Error("a damaged lane can be purged")
			}
			c.mended(t)
		})
	}
}

// The bodies of a lane that can't be indexed don't keep the others' index from being built.
func TestLaneOfAnotherTypeDoesNotStopARebuild(t *testing.T) {
	c := newCrowd(t)
	c.spoil(1)
	c.rdb.Del(t.Context(), c.sh.epochKey)
	if err := c.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, key := range c.keys {
		if n := len(c.zset("lane", key)); key != c.victim() && n != 4 {
			t.Errorf("%s: %d in its lane, want all 4", key, n)
		}
	}
	if _, err := c.rdb.ZScore(t.Context(), c.sh.dueKey, limiter.EncodeKey(c.victim())).Result(); err != nil {
		t.Errorf("the damaged lane isn't due, so that nobody would tell of it: %v", err)
	}
	c.mended(t)
}
