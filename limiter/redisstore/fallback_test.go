package redisstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sluice/limiter"
	"sluice/pipeline"
)

// outage is a fallback of worker w0 over a stand-in.
type outage struct {
	*Fallback
	*standIn
	t      *testing.T
	source string // "", paused
	said   *strings.Builder
	counts map[Policy]int
}

func inOutage(t *testing.T, policy Policy, grace time.Duration, fn func(*outage)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &standIn{turned: make(chan struct{}, 1), workers: 2}
		o := &outage{standIn: s, t: t, said: &strings.Builder{}, counts: map[Policy]int{}}
		o.Fallback = newFallback(s, FallbackOptions{
			Policy: policy, Grace: grace, Fleet: s,
			Pause: func() { o.source = "paused" }, Resume: func() { o.source = "" },
		}, fixed(t, "10/s burst 10"), "w0", slog.New(slog.NewTextHandler(o.said, nil)), func(p Policy) { o.counts[p]++ })
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			o.Run(ctx)
		}()
		pass(time.Second)
		fn(o)
		stop()
		<-ended
	})
}

// reserve asks for a token and says what came of it.
func (o *outage) reserve(key string, horizon time.Duration) string {
	d, err := o.Fallback.Reserve(o.t.Context(), key, "", 1, horizon)
	_, away := errors.AsType[*pipeline.Away](err)
	switch {
	case errors.Is(err, pipeline.ErrElsewhere):
		return "elsewhere"
	case away:
		return "away"
	case err != nil:
		return err.Error()
	}
	return map[limiter.Verdict]string{limiter.Go: "go", limiter.Hold: "hold", limiter.Park: "park"}[d.Verdict]
}

func (o *outage) wants(key, want string) {
	o.t.Helper()
	if got := o.reserve(key, 0); got != want {
		o.t.Errorf("%s: %s, want %s", key, got, want)
	}
}

func (o *outage) wantTook(want string) {
	o.t.Helper()
	synctest.Wait()
	if got := o.took(); got != want {
		o.t.Errorf("done: %s\nwant: %s", got, want)
	}
}

func TestSharesRuleWhileAllWorkersAreWithoutRedis(t *testing.T) {
	inOutage(t, Local, 0, func(o *outage) {
		o.wants("k", "go")
		o.lose(true)
		o.wants("k", "away") // the other may still see it
		o.others(2, 1)
		o.wants("k", "park") // the share begins empty
		pass(200 * time.Millisecond)
		o.wants("k", "go") // 5/s
		o.wants("k", "park")
		o.others(0, 0) // nothing is heard
		o.wants("k", "away")
		o.others(2, 1)
		pass(200 * time.Millisecond)
		o.wants("k", "go")
		o.others(1, 0) // alone now
		pass(100 * time.Millisecond)
		o.wants("k", "go")
		if o.counts[Local] != 5 || o.counts[Open] != 0 {
			t.Errorf("decisions counted: %v, want 5", o.counts)
		}
		if d, err := o.Fallback.Reserve(t.Context(), "k", "", 11, 0); err != nil || d.Verdict != limiter.Never {
			t.Errorf("more than the burst: %+v, %v", d, err)
		}
	})
}

func TestPromisesOfBeforeTheOutageAreTakenFromTheShare(t *testing.T) {
	inOutage(t, Local, 0, func(o *outage) {
		for range 3 {
			o.reserve("k", time.Second)
		}
		o.others(2, 1)
		o.lose(true)
		pass(600 * time.Millisecond) // 5/s: three tokens
		o.wants("other", "go")
		o.wants("k", "park")
		pass(200 * time.Millisecond)
		o.wants("k", "go")
	})
}

func TestClosedHoldsAllBackAndOpenLetsAllPass(t *testing.T) {
	t.Run("closed", func(t *testing.T) {
		inOutage(t, Closed, 0, func(o *outage) {
			o.others(2, 1)
			o.lose(true)
			pass(time.Hour)
			o.wants("k", "away")
			if _, err := o.Fallback.Park(t.Context(), pipeline.ParkRequest{Key: "k"}); err == nil {
				t.Error("an event was parked without index")
			}
			o.lose(false)
			pass(time.Second)
			o.wants("k", "go")
			o.wantTook("tell true, tell false, reserve k")
		})
	})
	t.Run("open", func(t *testing.T) {
		inOutage(t, Open, time.Minute, func(o *outage) {
			o.lose(true)
			for range 100 {
				o.wants("k", "go")
			}
			if got := o.reserve("k", -1); got != "park" {
				t.Errorf("of a key with as many pushes in flight as it may: %s", got)
			}
			if o.counts[Open] != 101 {
				t.Errorf("decisions counted: %v", o.counts)
			}
			pass(time.Minute) // the grace is over
			o.wants("k", "elsewhere")
			o.others(2, 1)
			o.wants("k", "away")
		})
	})
}

func TestWorkerAloneWithoutRedisPausesUntilItSeesIt(t *testing.T) {
	inOutage(t, Local, 0, func(o *outage) {
		o.lose(true)
		pass(time.Second)
		o.wants("k", "away")
		pass(time.Second)
		o.wants("k", "elsewhere")
		if _, err := o.Fallback.Park(t.Context(), pipeline.ParkRequest{Key: "k"}); !errors.Is(err, pipeline.ErrElsewhere) {
			t.Errorf("parking: %v", err)
		}
		if o.source != "paused" {
			t.Error("it goes on to pull")
		}
		o.others(2, 1) // now the other is without it, too
		pass(200 * time.Millisecond)
		o.wants("k", "go")
		if o.source != "" {
			t.Error("it doesn't pull although nobody else can")
		}
		o.others(2, 0)
		pass(2 * time.Second)
		o.wants("k", "elsewhere")
		o.lose(false)
		pass(time.Second)
		o.wants("k", "go")
		if o.source != "" {
			t.Error("it doesn't pull although it sees Redis")
		}
	})
}

func TestReturnChargesThenWaitsForOthersThenIndexesBeforeRedisRules(t *testing.T) {
	inOutage(t, Local, 0, func(o *outage) {
		o.others(2, 1)
		o.lose(true)
		pass(400 * time.Millisecond)
		o.wants("k", "go")
		for i := range 3 {
			r := pipeline.ParkRequest{Key: fmt.Sprint("p", i), After: time.Duration(i) * time.Minute}
			info, err := o.Fallback.Park(t.Context(), r)
			if err != nil || info.Waiting != 1 || info.Next != -1 {
				t.Errorf("parked: %+v, %v", info, err)
			}
		}
		if keys, next, err := o.Fallback.Claim(t.Context(), 9); len(keys) > 0 || next <= 0 || err != nil {
			t.Errorf("claimed %v, %v, %v while Redis is away", keys, next, err)
		}
		if _, err := o.Fallback.Lease(t.Context(), pipeline.LeaseRequest{}); err == nil {
			t.Error("leased while Redis is away")
		}
		if _, err := o.Fallback.Settle(t.Context(), pipeline.SettleRequest{}); err == nil {
			t.Error("settled while Redis is away")
		}
		if o.promisesOver() {
			t.Error("what Redis had promised is over at once")
		}
		pass(90 * time.Second)
		if !o.promisesOver() {
			t.Error("what Redis had promised is never over")
		}
		o.wants("k", "go")
		o.wantTook("tell true")
		asked := make(chan string)
		o.lose(false)
		go func() { // as the page does
			for {
				if got := o.reserve("new", 0); got != "away" {
					asked <- got
					return
				}
				time.Sleep(time.Millisecond)
			}
		}()
		pass(200 * time.Millisecond)
		o.wantTook("charge [{k [1]}], tell false") // of two tokens that were spent, one has come back since
		o.others(2, 0)
		if got := <-asked; got != "go" {
			t.Errorf("after the return: %s", got)
		}
		if o.promisesOver() {
			t.Error("what Redis promises is over")
		}
		o.wantTook("index [p0 0s p1 0s p2 29.74s], reserve new")
		if said := o.said.String(); strings.Count(said, "\n") != 2 || !strings.Contains(said, "Redis is back") ||
			!strings.Contains(said, "charged=2") || !strings.Contains(said, "parked=3") {
			t.Errorf("said:\n%s", said)
		}
	})
}

func TestOthersThatStayAwayAreNotWaitedForLong(t *testing.T) {
	inOutage(t, Local, 0, func(o *outage) {
		o.others(2, 1)
		o.lose(true)
		o.lose(false)
		pass(returnPatience + 2*decideEvery)
		o.wants("k", "go")
	})
}

func TestOutageThatGoesOnDuringTheReturnLosesNothing(t *testing.T) {
	for _, call := range []string{"open", "charge", "index"} {
		t.Run(call, func(t *testing.T) {
			inOutage(t, Local, 0, func(o *outage) {
				o.others(1, 0)
				o.lose(true)
				pass(time.Second)
				o.wants("k", "go")
				if _, err := o.Fallback.Park(t.Context(), pipeline.ParkRequest{Key: "p"}); err != nil {
					t.Fatal(err)
				}
				o.took()
				o.failing(call)
				o.lose(false)
				pass(time.Second)
				if got := o.took(); strings.Contains(got, call) || o.present() {
					t.Errorf("back although a call failed: %s", got)
				}
				o.lose(true)
				o.failing("")
				pass(time.Second)
				o.wants("k", "go")
				o.lose(false)
				pass(time.Second)
				if got := o.took(); strings.Count(got, "index [p 0s]") != 1 || !strings.Contains(got, "charge [{k [1]}]") {
					t.Errorf("done: %s", got)
				}
				o.wants("k", "go")
			})
		})
	}
}

func TestParkedEventsAreBounded(t *testing.T) {
	inOutage(t, Open, 0, func(o *outage) {
		o.most = 2
		o.lose(true)
		for i := range 4 {
			if _, err := o.Fallback.Park(t.Context(), pipeline.ParkRequest{Key: "p"}); (err == nil) != (i < 2) {
				t.Errorf("event %d: %v, want two remembered", i, err)
			}
		}
	})
}

func TestCallsThatFailBeforeTheBreakerOpensWaitForIt(t *testing.T) {
	inOutage(t, Local, 0, func(o *outage) {
		o.standIn.mu.Lock()
		o.standIn.away = true
		o.standIn.mu.Unlock()
		_, err := o.Fallback.Reserve(t.Context(), "k", "", 1, 0)
		a, ok := errors.AsType[*pipeline.Away](err)
		if !ok {
			t.Fatalf("got %v", err)
		}
		select {
		case <-a.Changed:
			t.Error("told at once")
		default:
		}
		o.lose(true)
		select {
		case <-a.Changed:
		default:
			t.Error("not told that the breaker has opened")
		}
	})
}
