package stream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// The floor of a consumer is the place in its stream up to which all was acknowledged. It is kept outside the consumer, in the KV bucket
// sluice_state, so that a consumer that was deleted, or that NATS removed since no worker ran, is made again from there: without it all
// that the stream still has would be pushed once more.

// StateBucket is the KV bucket of what a pipeline has to remember of others' objects: sluice_state.
func (n Names) StateBucket() string { return n.name + "_state" }

func (n Names) stateStream() string { return "KV_" + n.StateBucket() }

const (
	floorLag   = time.Minute      // after how long a floor that doesn't move is stored again, should the bucket have lost it
	floorRetry = 10 * time.Second // after how long it is tried again, should there be no bucket
)

// floorKey is where the floor of the consumer lies in the bucket.
func floorKey(cfg Config) string {
	return "floor." + kvToken(cfg.Stream) + "." + kvToken(cfg.consumer())
}

// storedFloor is a value of the bucket.
type storedFloor struct {
	Stream int64     `json:"stream_created"` // Unix nanoseconds: another stream of that name counts anew
	Floor  uint64    `json:"floor"`
	At     time.Time `json:"at"` // by the clock of NATS
}

// readFloor is the floor that was stored last; a zero one if none is.
func readFloor(ctx context.Context, js jetstream.JetStream, cfg Config) (storedFloor, error) {
	var f storedFloor
	bucket := cfg.names().StateBucket()
	kv, err := js.KeyValue(ctx, bucket)
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		return f, nil
	}
	doing := "reading KV bucket " + bucket
	if err != nil {
		return f, explain(js.Conn(), doing, err)
	}
	entry, err := kv.Get(ctx, floorKey(cfg))
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return f, nil
	}
	if err != nil {
		return f, explain(js.Conn(), doing, err)
	}
	if err := json.Unmarshal(entry.Value(), &f); err != nil {
		return storedFloor{}, &Fault{fmt.Sprintf("KV bucket %s has no floor at %s: delete that key; the consumer then begins with the first event",
			bucket, floorKey(cfg)), err}
	}
	return f, nil
}

// floorKeeper stores the floor as it moves. It may be used by several goroutines.
type floorKeeper struct {
	js  jetstream.JetStream
	cfg Config

	mu     sync.Mutex
	seen   storedFloor
	stored storedFloor
	kv     jetstream.KeyValue
	failed time.Time // when it could last not be stored
}

// saw takes in what the server has told of the consumer of a stream.
func (k *floorKeeper) saw(floor uint64, info *jetstream.ConsumerInfo, stream int64) {
	at := info.TimeStamp
	if at.IsZero() {
		at = time.Now()
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.seen = storedFloor{Stream: stream, Floor: floor, At: at.UTC()}
}

// last is the floor seen last.
func (k *floorKeeper) last() storedFloor {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.seen
}

// store stores the floor if it has moved. An error is not told: the next call tries again, and `sluice check` says what is missing.
func (k *floorKeeper) store(ctx context.Context) {
	k.mu.Lock()
	seen, stored, kv, failed := k.seen, k.stored, k.kv, k.failed
	k.mu.Unlock()
	if seen.Floor == 0 || seen.Floor == stored.Floor && seen.Stream == stored.Stream && seen.At.Sub(stored.At) < floorLag ||
		time.Since(failed) < floorRetry {
		return
	}
	kv, err := k.put(ctx, kv, seen)
	k.mu.Lock()
	defer k.mu.Unlock()
	if err != nil {
		k.kv, k.failed = nil, time.Now() // it may have been made anew
		return
	}
	k.kv, k.stored = kv, seen
}

// put stores a floor in the bucket, which it opens if need be.
func (k *floorKeeper) put(ctx context.Context, kv jetstream.KeyValue, f storedFloor) (jetstream.KeyValue, error) {
	value, err := json.Marshal(f)
	if err != nil {
		return nil, err
	}
	if kv == nil {
		if kv, err = k.js.KeyValue(ctx, k.cfg.names().StateBucket()); err != nil {
			return nil, err
		}
	}
	_, err = kv.Put(ctx, floorKey(k.cfg), value)
	return kv, err
}

// makeConsumer makes a consumer that isn't there and says where it begins. It goes on after the floor of the one before, as far as known
// is one, or the bucket has one, of this very stream. A work queue needs none: what was acknowledged is no longer in it, and NATS
// permits no other beginning.
func makeConsumer(ctx context.Context, js jetstream.JetStream, cfg Config, known storedFloor) (begins string, err error) {
	stream, err := js.Stream(ctx, cfg.Stream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return "", sourceMissing(cfg, err)
	}
	if err != nil {
		return "", explain(js.Conn(), "looking for stream "+cfg.Stream, err)
	}
	info := stream.CachedInfo()
	floor := known
	if stored, err := readFloor(ctx, js, cfg); err != nil {
		return "", err
	} else if floor.Stream != created(info) || stored.Stream == floor.Stream && stored.Floor > floor.Floor {
		floor = stored
	}
	switch {
	case info.Config.Retention == jetstream.WorkQueuePolicy:
		floor = storedFloor{}
		begins = "with what is left in the work queue"
	case floor.Floor == 0 || floor.Stream != created(info) || putBack(ctx, js, cfg, stream, floor):
		floor = storedFloor{}
		begins = fmt.Sprintf("with the first of %d events", info.State.Msgs)
	default:
		begins = fmt.Sprintf("after event %d, up to which all was acknowledged at %s", floor.Floor, floor.At.Format(time.RFC3339))
	}
	return begins, createConsumer(ctx, js, cfg, floor.Floor)
}

// putBack says whether a stream seems to have been put back from a copy that is older than a floor: what stands there now, and before it, are
// other events then.
func putBack(ctx context.Context, js jetstream.JetStream, cfg Config, stream jetstream.Stream, floor storedFloor) bool {
	if floor.Floor > stream.CachedInfo().State.LastSeq {
		return true
	}
	last, err := getEvent(ctx, js.Conn(), cfg, stream, floor.Floor, "")
	return err == nil && last.time.After(floor.At)
}

// ensureState creates or compares the KV bucket of the state. It may be missing: then a consumer that is lost begins anew.
func ensureState(ctx context.Context, js jetstream.JetStream, cfg Config) (Action, error) {
	n := cfg.names()
	return ensureBucket(ctx, js, cfg, bucket{
		name: n.StateBucket(), about: "What it remembers of others' streams", holds: "the consumer's floor", history: 1, maxValue: 1 << 10,
		without: "should consumer " + cfg.consumer() + " be deleted, all that stream " + cfg.Stream + " holds is pushed again",
	})
}
