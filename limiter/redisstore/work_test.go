package redisstore

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"sluice/pipeline"
)

// die is what a worker does that is killed: nothing more.
func (w *work) die() {
	w.fail(nil)
	w.beats.Wait()
}

func TestOneOfTwoWorkersRebuilds(t *testing.T) {
	r := newRig(t, "1/s")
	two := r.worker("two", "1/s")
	r.rdb.FlushAll(t.Context())
	b, err := two.shards[3].build(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Open(t.Context()); !errors.Is(err, errTaken) {
		t.Fatalf("beside another's build: %v, want %v", err, errTaken)
	}
	b.die()
	r.at(workLease.Microseconds() + 1)
	if err := r.Open(t.Context()); err != nil {
		t.Errorf("after the other worker died: %v", err)
	}
}

func TestKilledRebuilderIsReplacedWhenItsLeaseEnds(t *testing.T) {
	r := newRig(t, "100/s burst 100")
	const lease = 700 * time.Millisecond
	crew := r.crew(2, lease)
	r.bodies.store("k", 300)
	for _, ev := range r.bodies.events {
		ev.Header = pipeline.Header{"Sluice-Cost": {"3"}}
	}
	r.rdb.FlushAll(t.Context())
	began := time.Now()
	b, err := crew[0].shard("k").build(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for seq, ev := range r.bodies.events { // one call was sent
		if err := b.add(ev, uint64(seq+1)); err != nil {
			t.Fatal(err)
		}
	}
	b.die()
	if err := crew[1].Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took < lease || took > lease+5*time.Second {
		t.Errorf("another worker had rebuilt after %s, want soon after the lease of %s", took, lease)
	}
	if n := len(r.zset("lane", "k")); n != 300 {
		t.Errorf("%d events have a place, want 300", n)
	}
	r.checkCosts("rebuilt in part, and then as a whole")
}

// Redis' failover has forgotten a lease, or a stall let another worker take it: the other shards have nothing to do with that.
func TestWorkOnOneShardIsLostAloneAndThatOnTheOthersIsFinished(t *testing.T) {
	for _, loss := range []string{"taken", "forgotten"} {
		for _, what := range []string{"rebuild", "verify"} {
			t.Run(what+" "+loss, func(t *testing.T) {
				r := newRig(t, "100/s burst 100")
				s := r.crew(1, workLease)[0]
				for i := range 64 {
					r.bodies.store(fmt.Sprint("k", i), 1)
				}
				r.bodies.store("k0", maxKeys) // more than one call
				r.bodies.store("last", 1)
				last := len(r.bodies.events)
				if what == "rebuild" {
					r.rdb.FlushAll(t.Context())
				}
				lost := s.shard("k0")
				r.bodies.pause = func() {
					switch {
					case r.bodies.read.Load() != 32:
					case loss == "forgotten":
						r.rdb.HDel(t.Context(), lost.epochKey, "token", "holder", "until", "building")
					default:
						r.rdb.HSet(t.Context(), lost.epochKey, "token", "x", "holder", "x", "building", "x")
					}
				}
				var err error
				if what == "rebuild" {
					if err = s.Open(t.Context()); !errors.Is(err, errTaken) {
						t.Errorf("the rebuild ends with %v, want %v", err, errTaken)
					}
				} else if err = s.verify(t.Context(), uint64(last)); err != nil {
					t.Errorf("the verification ends with %v, want that the shard is left to the other", err)
				}
				for i, sh := range s.shards {
					h := r.rdb.HGetAll(t.Context(), sh.epochKey).Val()
					done := h["verified"] == fmt.Sprint(last)
					if what == "rebuild" {
						id, _, _ := sh.inEpoch()
						done = h["id"] != "" && id == h["id"]
					}
					if done != (sh != lost) {
						t.Errorf("shard %d is done: %t, lost: %t; %v", i, done, sh == lost, h)
					}
					if sh != lost && h["token"]+h["holder"]+h["until"] != "" {
						t.Errorf("shard %d is still leased: %v", i, h)
					}
				}
			})
		}
	}
}

// A worker that was stopped for longer than its lease, and goes on, writes nothing over the work of the next one.
func TestLateWritesOfAStalledWorkerAreRefused(t *testing.T) {
	r := newRig(t, "100/s burst 100")
	r.bodies.store("k", 300)
	two := r.worker("two", "100/s burst 100")
	sh := r.shard("k")
	state := func() string { return fmt.Sprint(r.rdb.HGetAll(t.Context(), sh.epochKey).Val(), r.zset("lane", "k")) }

	v, err := sh.verify(t.Context(), 300)
	if err != nil {
		t.Fatal(err)
	}
	v.events = append(v.events, stored{"k", "", storedEntry(r.bodies.events[0], 1)})
	v.die()
	two.now = start + (workLease + time.Millisecond).Microseconds()
	next, err := two.shard("k").verify(t.Context(), 300)
	if err != nil {
		t.Fatal(err)
	}
	before := state()
	if err := v.finish(); !errors.Is(err, errTaken) {
		t.Errorf("its verification ends with %v, want %v", err, errTaken)
	}
	v.leave()
	if after := state(); after != before {
		t.Errorf("before: %s\nafter: %s", before, after)
	}
	next.leave()

	r.rdb.FlushAll(t.Context())
	b, err := sh.build(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	b.die()
	b.ctx = t.Context()
	other, err := two.shard("k").build(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer other.leave()
	before = state()
	b.adopts = true
	if _, err := b.drop(); !errors.Is(err, errTaken) {
		t.Errorf("its build drops an old index: %v, want %v", err, errTaken)
	}
	if err := b.add(r.bodies.events[0], 1); err != nil {
		t.Fatal(err)
	}
	if err := b.flush(); !errors.Is(err, errTaken) {
		t.Errorf("its build goes on: %v, want %v", err, errTaken)
	}
	if err := b.finish(); !errors.Is(err, errTaken) {
		t.Errorf("its build ends: %v, want %v", err, errTaken)
	}
	b.leave()
	if after := state(); after != before {
		t.Errorf("before: %s\nafter: %s", before, after)
	}
}

// It was silent, but nobody has taken over.
func TestStalledWorkerGoesOnWhenNobodyElseHasBegun(t *testing.T) {
	r := newRig(t, "100/s burst 100")
	b, s := r.bodies, r.Store
	b.store("k", 10)
	r.rdb.FlushAll(t.Context())
	b.pause = func() { r.now += workLease.Microseconds() } // between any two calls
	if err := s.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := len(r.zset("lane", "k")); n != 10 {
		t.Errorf("%d events have a place, want 10", n)
	}
}

// Redis has failed over to a machine whose clock is an hour behind: a dead worker's lease doesn't last that much longer.
func TestLeaseByAClockThatWentBackEnds(t *testing.T) {
	r := newRig(t, "100/s burst 100")
	two := r.worker("two", "100/s burst 100")
	r.rdb.FlushAll(t.Context())
	b, err := r.shards[0].build(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	b.die()
	two.now = start - time.Hour.Microseconds()
	if err := two.Open(t.Context()); err != nil {
		t.Error(err)
	}
}

// The lane stream is deleted and made anew while its bodies are verified: how far the old one was says nothing of the new one, whose
// sequences are small again.
func TestVerificationOfADeletedStreamSaysNothingOfTheNewOne(t *testing.T) {
	r := newRig(t, "100/s burst 100")
	sh := r.shard("k")
	r.bodies.store("k", 2)
	v, err := sh.verify(t.Context(), 1000)
	if err != nil {
		t.Fatal(err)
	}
	defer v.leave()
	r.bodies.created++
	sh.lose(sh.epoch)
	if err := r.Open(t.Context()); err != nil { // by the same worker: it waits for nobody
		t.Fatal(err)
	}
	if err := v.finish(); !errors.Is(err, errTaken) {
		t.Errorf("the verification of the old stream ends with %v, want %v", err, errTaken)
	}
	if mark := r.rdb.HGet(t.Context(), sh.epochKey, "verified").Val(); mark != "" {
		t.Errorf("the new stream is verified up to %s, want not at all", mark)
	}
}

// Redis has lost the id only: whoever verifies goes on until its next call, and the rebuild doesn't wait for that.
func TestRebuildWaitsForNoVerification(t *testing.T) {
	r := newRig(t, "100/s burst 100")
	two := r.worker("two", "100/s burst 100")
	r.bodies.store("k", 2)
	v, err := r.shard("k").verify(t.Context(), 2)
	if err != nil {
		t.Fatal(err)
	}
	defer v.leave()
	r.rdb.HDel(t.Context(), r.shard("k").epochKey, "id")
	if err := two.Open(t.Context()); err != nil {
		t.Error(err)
	}
	if _, answer, err := r.shard("k").take(t.Context(), "verify", r.shard("k").epoch); err != nil || integer(answer[0]) != 2 {
		t.Errorf("verifying by the old epoch: %v, %v, want that it is another", answer, err)
	}
}

// `sluice lanes repair` waits for no worker that is about to verify for minutes.
func TestRepairGivesPlacesWhileAWorkerVerifies(t *testing.T) {
	r := newRig(t, "100/s burst 100")
	two := r.worker("two", "100/s burst 100")
	seqs := r.bodies.store("k", 5)
	r.index("k", seqs[:3]...)
	v, err := two.shard("k").verify(t.Context(), 5)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Mend(t.Context(), r.inspect().Findings); err != nil {
		t.Fatal(err)
	}
	if got := r.zset("lane", "k"); len(got) != 5 {
		t.Errorf("in the lane: %v, want all five", got)
	}
	for i, ev := range r.bodies.events {
		if err := v.add(ev, uint64(i+1)); err != nil {
			t.Fatal(err)
		}
	}
	if err := v.finish(); err != nil {
		t.Errorf("the worker's verification: %v", err)
	}
	v.leave()
	if got := r.zset("lane", "k"); len(got) != 5 {
		t.Errorf("in the lane: %v, want all five once", got)
	}
	if mark := r.rdb.HGet(t.Context(), two.shard("k").epochKey, "verified").Val(); mark != "5" {
		t.Errorf("the shard is verified up to %q, want 5", mark)
	}
}
