package integration

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"sluice/limiter"
	"sluice/limiter/redisstore"
)

// While a worker parks, pushes and settles, only what is really wrong is found, and mending it disturbs nobody.
func TestIndexIsInspectedAndMendedUnderAWorker(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lanes, _ := w.inside("100/s burst 1", time.Hour)
	for i := range 5 {
		w.publish(fmt.Sprint("k", i), 250, 0)
	}
	limits, err := limiter.ParseLimits("100/s burst 1")
	if err != nil {
		t.Fatal(err)
	}
	rdb := w.redis.Client()
	store, err := redisstore.New(rdb, redisstore.Options{
		Name: "sluice", Worker: "other", Limits: limiter.Fixed(limits), Bodies: lanes, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	lane := "lane:{" + limiter.Tag(limiter.Shard("k0")) + "}:k0"
	lost := rdb.ZRange(t.Context(), lane, -1, -1).Val()
	for deadline := time.Now().Add(10 * time.Second); len(lost) == 0; lost = rdb.ZRange(t.Context(), lane, -1, -1).Val() {
		if time.Now().After(deadline) {
			t.Fatal("none of 250 events at once waits in its lane")
		}
		time.Sleep(time.Millisecond)
	}
	rdb.ZRem(t.Context(), lane, lost[0])
	rdb.ZAdd(t.Context(), lane, redis.Z{Member: "9000000000000000", Score: 999999})
	in, err := store.Inspect(t.Context(), 500*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	if len(in.Findings) != 2 || in.Findings[0].Kind != redisstore.NoPlace || in.Findings[1].Kind != redisstore.NoBody {
		t.Errorf("found %+v, want the two that are wrong", in.Findings)
	}
	if err := store.Mend(t.Context(), in.Findings); err != nil {
		t.Fatal(err)
	}
	if in, err = store.Inspect(t.Context(), 500*time.Millisecond); err != nil || len(in.Findings) > 0 {
		t.Errorf("after mending: %+v, %v", in.Findings, err)
	}
	t.Logf("%d stored events and %d places were compared", in.Bodies, in.Places)
	w.receiver.WaitForDelivered(1250, 10*time.Second)
	w.atRest(0)
	w.bounded(100, 1)
	if d := w.duplicates(); d != 0 {
		t.Errorf("%d duplicates", d)
	}
}
