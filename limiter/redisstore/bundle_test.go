package redisstore

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"sluice/pipeline"
)

// lanesOf parks an event of one key of each shard of the first bundle.
func lanesOf(t *testing.T, r *rig) (b *bundle, keys []string) {
	t.Helper()
	b = r.bundles[0]
	var batch []pipeline.ParkRequest
	for i, sh := range b.members {
		key := keysOf(sh, 1)[0]
		keys = append(keys, key)
		seq := uint64(i + 1)
		batch = append(batch, pipeline.ParkRequest{Key: key, Entry: pipeline.Entry{BodyID: pipeline.BodyID{Seq: seq}, Order: seq, Cost: 1}})
	}
	infos, err := each(b.runPark(batch))
	if err != nil {
		t.Fatal(err)
	}
	for i, info := range infos {
		if info.Waiting != 1 {
			t.Fatalf("%s: %+v, want one waiting", keys[i], info)
		}
	}
	return b, keys
}

// calls is how many scripts Redis has run.
func (r *rig) calls() (n int) {
	for line := range strings.Lines(r.rdb.Info(r.t.Context(), "commandstats").Val()) {
		for _, command := range []string{"eval", "evalsha"} {
			var calls, failed int
			at := strings.Index(line, "failed_calls=")
			if _, err := fmt.Sscanf(line, "cmdstat_"+command+":calls=%d,", &calls); err != nil || at < 0 {
				continue
			}
			_, _ = fmt.Sscanf(line[at:], "failed_calls=%d", &failed)
			n += calls - failed
		}
	}
	return n
}

func leaseRequests(keys []string) (batch []pipeline.LeaseRequest) {
	for _, key := range keys {
		batch = append(batch, pipeline.LeaseRequest{Key: key, Max: 10, Horizon: time.Second})
	}
	return batch
}

func TestLanesOfSeveralShardsTravelTogether(t *testing.T) {
	t.Parallel()
	r := newRig(t, "10/s burst 20")
	before := r.calls()
	b, keys := lanesOf(t, r)
	r.at(1_000_000)
	claimed, err := b.claim(b.members, 10)
	if err != nil || !slices.Equal(claimed, keys) {
		t.Fatalf("claimed %q, %v, want %q", claimed, err, keys)
	}
	leases, err := each(b.runLease(leaseRequests(keys)))
	if err != nil {
		t.Fatal(err)
	}
	var batch []pipeline.SettleRequest
	for i, l := range leases {
		if got := seqs(l); !slices.Equal(got, []uint64{uint64(i + 1)}) {
			t.Errorf("%s: leased %v", keys[i], got)
		}
		batch = append(batch, pipeline.SettleRequest{Key: keys[i], Token: l.Token, Release: true, Events: []pipeline.Settlement{done(l.Events[0])}})
	}
	batch[1].Token++ // of another lease
	answers, err := b.runSettle(batch)
	if err != nil {
		t.Fatal(err)
	}
	for i, a := range answers {
		if got := errors.Is(a.err, pipeline.ErrFenced); got != (i == 1) {
			t.Errorf("%s: %+v", keys[i], a)
		}
		waits := r.rdb.ZCard(t.Context(), r.shard(keys[i]).dueKey).Val()
		if want := int64(0); i == 1 && waits != 1 || i != 1 && waits != want {
			t.Errorf("%s: %d lanes of its shard are due", keys[i], waits)
		}
	}
	if n := r.calls() - before; n != 4 {
		t.Errorf("parking, claiming, leasing and settling in %d shards took %d calls, want 4", len(keys), n)
	}
}

func TestShardWhoseEpochIsUnknownDoesNotHoldUpTheOthersOfItsBundle(t *testing.T) {
	t.Parallel()
	r := newRig(t, "10/s burst 20")
	b, keys := lanesOf(t, r)
	r.at(1_000_000)
	lost := b.members[2]
	lost.lose(lost.epoch)
	claimed, err := b.claim(b.members, 10)
	if want := slices.Delete(slices.Clone(keys), 2, 3); !errors.Is(err, ErrEpoch) || !slices.Equal(claimed, want) {
		t.Errorf("claimed %q, %v, want %q and that one shard isn't known", claimed, err, want)
	}
	leases, err := b.runLease(leaseRequests(keys))
	if err != nil {
		t.Fatal(err)
	}
	for i, a := range leases {
		if i == 2 && !errors.Is(a.err, ErrEpoch) || i != 2 && (a.err != nil || len(a.r.Events) != 1) {
			t.Errorf("%s: %+v", keys[i], a)
		}
	}
}

func TestCallInAnotherEpochOfOneShardWritesToNone(t *testing.T) {
	t.Parallel()
	r := newRig(t, "10/s burst 20")
	b, keys := lanesOf(t, r)
	r.at(1_000_000)
	other := b.members[2]
	r.rdb.HSet(t.Context(), other.epochKey, "id", "another")
	stored := func() (all []string) {
		for _, key := range r.rdb.Keys(t.Context(), "*").Val() {
			all = append(all, key+" "+r.rdb.Dump(t.Context(), key).Val())
		}
		slices.Sort(all)
		return all
	}
	before := stored()
	if _, err := b.claim(b.members, 10); !errors.Is(err, ErrEpoch) {
		t.Errorf("claim: %v", err)
	}
	other.epoch = "one that has passed"
	if _, err := b.runLease(leaseRequests(keys)); !errors.Is(err, ErrEpoch) {
		t.Errorf("lease: %v", err)
	}
	if after := stored(); !slices.Equal(before, after) {
		t.Errorf("before:\n%q\nafter:\n%q", before, after)
	}
	for _, sh := range b.members {
		if (sh.epoch == "") != (sh == other) {
			t.Errorf("shard %s: epoch %q", sh.tag, sh.epoch)
		}
	}
	leases, err := b.runLease(leaseRequests(keys)) // the call made again
	for i, a := range leases {
		if i != 2 && (a.err != nil || len(a.r.Events) != 1) {
			t.Errorf("%s: %+v, %v", keys[i], a, err)
		}
	}
}
