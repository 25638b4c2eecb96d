package redisstore

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"sluice/pipeline"
)

// removal notes which bodies are deleted.
type removal struct {
	mu   sync.Mutex
	gone map[uint64]int
	fail uint64 // the sequence of the body that can't be deleted
}

var errKeeps = errors.New("it can't be deleted")

func (r *removal) remove(_ context.Context, e pipeline.Entry) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e.Seq == r.fail {
		return errKeeps
	}
	if r.gone == nil {
		r.gone = map[uint64]int{}
	}
	r.gone[e.Seq]++
	return nil
}

func TestPurgeDeletesAllThatWaitsOfAKeyAndNothingElse(t *testing.T) {
	r := newRig(t, "1/h burst 1")
	for seq := uint64(1); seq <= 2*purgeBatch+7; seq++ {
		r.park("k", seq)
	}
	r.park("other", 9001)
	_, _ = r.Park(t.Context(), pipeline.ParkRequest{
		Key: "k", Entry: pipeline.Entry{BodyID: pipeline.BodyID{Seq: 9000}, Order: 5, Cost: 1, Attempt: 2}, Sleep: time.Minute, After: time.Hour, Failure: "status 503",
	})
	_, _ = r.Park(t.Context(), pipeline.ParkRequest{Key: "k", Entry: pipeline.Entry{BodyID: pipeline.BodyID{Seq: 9002}, Order: 6, Cost: 5}})
	if r.hash("k")["extra"] != "4" {
		t.Errorf("before it %v", r.hash("k"))
	}
	var bodies removal
	n, err := r.Purge(t.Context(), "k", bodies.remove)
	if want := int64(2*purgeBatch + 9); err != nil || n != want || int64(len(bodies.gone)) != want {
		t.Errorf("%d purged, %d bodies, %v, want %d", n, len(bodies.gone), err, want)
	}
	for seq, times := range bodies.gone {
		if times != 1 || seq == 9001 {
			t.Errorf("body %d was deleted %d times", seq, times)
		}
	}
	st := r.standing("k", "")
	if st.Waiting+st.Leased != 0 || st.Due >= 0 || st.Overdue >= 0 || st.Holder != "" || st.Fails != 1 || st.Limits[0].Tokens != 1 {
		t.Errorf("after it %+v, want no events, no lease, tokens and failures as before", st)
	}
	if extra := r.hash("k")["extra"]; extra != "" {
		t.Errorf("events that are gone are noted to cost %s", extra)
	}
	if st := r.standing("other", ""); st.Waiting != 1 {
		t.Errorf("of another key %d events wait, want 1", st.Waiting)
	}
	if n, err := r.Purge(t.Context(), "k", bodies.remove); n != 0 || err != nil {
		t.Errorf("once more: %d, %v", n, err)
	}
}

func TestPurgeKeepsThePlaceOfWhatItCannotDelete(t *testing.T) {
	r := newRig(t, "10/s")
	r.park("k", 1, 2, 3)
	bodies := removal{fail: 2}
	if n, err := r.Purge(t.Context(), "k", bodies.remove); n != 2 || !errors.Is(err, errKeeps) {
		t.Errorf("%d purged, %v, want 2 and the error of the third", n, err)
	}
	if st := r.standing("k", ""); st.Waiting != 1 || st.First.Seq != 2 || st.Holder != "" {
		t.Errorf("after it %+v, want event 2 in the lane and no lease", st)
	}
}

func TestPurgeWaitsForTheWorkerThatHoldsTheLane(t *testing.T) {
	r := newRig(t, "100/s burst 100")
	two := r.worker("two", "100/s burst 100")
	r.park("k", 1, 2, 3, 4)
	held := leaseOf(t, two, "k", 0, 2)
	if len(held.Events) != 2 {
		t.Fatalf("leased %v", seqs(held))
	}
	var bodies removal
	purged := make(chan int64, 1)
	go func() {
		n, err := r.Purge(t.Context(), "k", bodies.remove)
		if err != nil {
			t.Error(err)
		}
		purged <- n
	}()
	for r.hash("k")["closedUntil"] == "" { // until it has asked
		time.Sleep(time.Millisecond)
	}
	if more := leaseOf(t, two, "k", held.Token, 10); more.Token != held.Token || len(more.Events) != 0 {
		t.Errorf("the worker gets %v more, want none", seqs(more))
	}
	select {
	case n := <-purged:
		t.Fatalf("%d events were purged while a worker held the lane", n)
	default:
	}
	back := held.Events[1].Entry
	_, err := settle(t, two, pipeline.SettleRequest{Key: "k", Token: held.Token, Release: true, Events: []pipeline.Settlement{
		done(held.Events[0]), {Was: back, Now: back, Fate: pipeline.Back},
	}})
	if err != nil {
		t.Fatal(err)
	}
	if n := <-purged; n != 3 || bodies.gone[1] != 0 {
		t.Errorf("%d events purged, want the 3 that the worker didn't push: %v", n, bodies.gone)
	}
	if st := r.standing("k", ""); st.Closed > time.Second || st.Fails != 0 {
		t.Errorf("after it %+v, want the key open again within a second", st)
	}
}

func TestResetKeyIsAsNewAndKeepsItsLane(t *testing.T) {
	r := newRig(t, "2/h burst 20, 50/d sliding")
	if a := r.ask("k", 20, 0); a.granted != 20 {
		t.Fatalf("%+v", a)
	}
	r.parkIn("pro", "k", 1, 2)
	_, _ = r.Park(t.Context(), pipeline.ParkRequest{Key: "k", Tier: "pro", Entry: pipeline.Entry{BodyID: pipeline.BodyID{Seq: 4}, Order: 4, Cost: 3}})
	_, _ = r.Park(t.Context(), pipeline.ParkRequest{
		Key: "k", Entry: pipeline.Entry{BodyID: pipeline.BodyID{Seq: 3}, Order: 3, Cost: 1, Attempt: 1}, Sleep: time.Hour, Failure: "status 503",
	})
	if was, err := r.Reset(t.Context(), "k"); !was || err != nil {
		t.Errorf("%t, %v", was, err)
	}
	st := r.standing("k", "")
	if st.Wait != 0 || st.Limits[0].Tokens != 20 || st.Limits[1].Tokens != 50 || st.Closed != 0 || st.Fails != 0 || st.Failure != "" || st.Waiting != 4 || r.hash("k")["extra"] != "2" ||
		st.Overdue != 0 {
		t.Errorf("after it %+v, want full limits, no failure, all four events due", st)
	}
	l := leaseOf(t, r.Store, "k", 0, 10)
	if len(l.Events) != 4 {
		t.Errorf("then %v are leased", seqs(l))
	}
	if _, err := r.Reset(t.Context(), "k"); err != nil {
		t.Error(err)
	}
	if st := r.standing("k", ""); st.Holder != "one" || st.Leased != 4 {
		t.Errorf("the lease of a live worker is gone: %+v", st)
	}
	if was, err := r.Reset(t.Context(), "nobody"); was || err != nil {
		t.Errorf("of a key that nothing is known of: %t, %v", was, err)
	}
}

func TestResetMendsADamagedKey(t *testing.T) {
	for name, spoil := range map[string]func(r *rig, key string){
		"a field":   func(r *rig, key string) { r.rdb.HSet(r.t.Context(), key, "tokens", "many", "until", "soon") },
		"the state": func(r *rig, key string) { r.rdb.Del(r.t.Context(), key); r.rdb.Set(r.t.Context(), key, "x", 0) },
	} {
		r := newRig(t, "1/h burst 5")
		r.park("k", 1)
		spoil(r, r.shard("k").keys(nil, "k")[0])
		if st := r.standing("k", ""); !st.Damaged {
			t.Errorf("%s: %+v", name, st)
		}
		if was, err := r.Reset(t.Context(), "k"); !was || err != nil {
			t.Errorf("%s: %t, %v", name, was, err)
		}
		if st := r.standing("k", ""); st.Damaged || st.Waiting != 1 || st.Limits[0].Tokens != 5 {
			t.Errorf("%s: after it %+v", name, st)
		}
	}
}
