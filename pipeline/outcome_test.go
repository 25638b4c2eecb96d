package pipeline

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestOutcomeOfAnAttempt(t *testing.T) {
	t.Parallel()
	plain := errors.New("status 500")
	away := Unavailable(errors.New("connection refused"))
	asked := func(d time.Duration) error { return RetryAfter(errors.New("status 429"), d) }
	rejected := fate{outcome: DeadLettered, reason: Rejected}
	exhausted := func(after time.Duration, sleep bool) fate {
		return fate{outcome: DeadLettered, reason: Exhausted, after: after, sleep: sleep}
	}
	retry := Retry{For: time.Hour, Max: 5, Base: time.Second, Cap: time.Minute}
	tests := map[string]struct {
		err     error
		attempt int
		age     time.Duration
		draw    float64
		want    fate
	}{
		"delivered":                       {nil, 1, 0, 0.5, fate{outcome: Delivered}},
		"delivered at the last":           {nil, 5, 2 * time.Hour, 0.5, fate{outcome: Delivered}},
		"refused for good":                {Permanent(plain), 1, 0, 0.5, rejected},
		"refused for good, wrapped":       {fmt.Errorf("webhook: %w", Permanent(plain)), 1, 0, 0.5, rejected},
		"fails alone":                     {plain, 1, 0, 0.5, fate{after: 500 * time.Millisecond}},
		"fails alone again":               {plain, 3, 0, 0.5, fate{after: 2 * time.Second}},
		"away":                            {away, 2, 0, 0.5, fate{after: time.Second, sleep: true}},
		"last attempt":                    {plain, 5, 0, 0.5, exhausted(8*time.Second, false)},
		"too old":                         {plain, 1, time.Hour, 0.5, exhausted(500*time.Millisecond, false)},
		"just not too old":                {plain, 1, time.Hour - 1, 0.5, fate{after: 500 * time.Millisecond}},
		"last attempt, away":              {away, 5, 0, 0.5, exhausted(8*time.Second, true)},
		"asked for longer":                {asked(10 * time.Second), 1, 0, 0, fate{after: 10 * time.Second, sleep: true}},
		"asked for longer, spread":        {asked(10 * time.Second), 1, 0, 0.5, fate{after: 10500 * time.Millisecond, sleep: true}},
		"asked for little, spread little": {asked(time.Second), 1, 0, 0.5, fate{after: 1050 * time.Millisecond, sleep: true}},
		"asked for less than the backoff": {asked(time.Second), 4, 0, 0.5, fate{after: 4 * time.Second, sleep: true}},
		"asked for a year":                {asked(365 * 24 * time.Hour), 1, 0, 0, fate{after: 24 * time.Hour, sleep: true}},
		"asked for nothing":               {asked(0), 1, 0, 0.5, fate{after: 500 * time.Millisecond, sleep: true}},
		"asked for the past":              {asked(-time.Hour), 1, 0, 0.5, fate{after: 500 * time.Millisecond, sleep: true}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			now := time.Now()
			ev := &Event{Attempt: tt.attempt, First: now.Add(-tt.age)}
			if got := retry.judge(ev, tt.err, now, tt.draw); got != tt.want {
				t.Errorf("attempt %d, %s old, %v: %+v, want %+v", tt.attempt, tt.age, tt.err, got, tt.want)
			}
		})
	}
}

func TestDelayIsDrawnFromZeroToADoublingBound(t *testing.T) {
	t.Parallel()
	r := Retry{Base: time.Second, Cap: time.Minute}
	for _, tt := range []struct {
		attempt int
		bound   time.Duration
	}{
		{1, time.Second}, {2, 2 * time.Second}, {6, 32 * time.Second}, {7, time.Minute}, {100, time.Minute}, {1e6, time.Minute},
	} {
		for draw, want := range map[float64]time.Duration{0: time.Millisecond, 0.25: tt.bound / 4, 0.5: tt.bound / 2} {
			if got := r.delay(tt.attempt, draw); got != want {
				t.Errorf("delay(%d, %v) = %s, want %s", tt.attempt, draw, got, want)
			}
		}
	}
	if got := (Retry{Base: time.Hour, Cap: time.Minute}).delay(1, 0.5); got != 30*time.Second {
		t.Errorf("a base above the cap: %s, want 30s", got)
	}
}

func FuzzJudgeNeverMakesAnEventWaitForAnOddTime(f *testing.F) {
	f.Add(1, int64(time.Second), int64(time.Hour), int64(0), 0.5, true)
	f.Add(1_000_000, int64(time.Second), int64(1<<62), int64(1<<62), 0.999, false)
	f.Add(70, int64(3), int64(1<<63-1), int64(-1), 0.9, false)
	f.Fuzz(func(t *testing.T, attempt int, base, most, asked int64, draw float64, away bool) {
		if attempt < 1 || attempt > 1e6 || base < 1 || most < base || !(draw >= 0 && draw < 1) {
			t.Skip()
		}
		err := errors.New("status 500")
		switch {
		case asked != 0:
			err = RetryAfter(err, time.Duration(asked))
		case away:
			err = Unavailable(err)
		}
		r := Retry{For: time.Hour, Base: time.Duration(base), Cap: time.Duration(most)}
		now := time.Now()
		got := r.judge(&Event{Attempt: attempt, First: now}, err, now, draw)
		floor := max(time.Millisecond, min(time.Duration(asked), MaxRetryAfter))
		if got.outcome != "" || got.after < floor || got.after > max(r.Cap, MaxRetryAfter+time.Second) {
			t.Errorf("%+v after attempt %d: %+v, want a wait from %s to the cap", r, attempt, got, floor)
		}
		if least := time.Duration(draw * float64(min(base, most))); got.after < least {
			t.Errorf("%+v after attempt %d: %s, want at least %s of the first delay", r, attempt, got.after, least)
		}
		if got.sleep != (away || asked != 0) {
			t.Errorf("the key sleeps: %t, want %t", got.sleep, away)
		}
	})
}

func TestFailureIsKeptInShort(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, r *rig) {
		for _, c := range []struct{ before, says, want string }{
			{"of an event of the source", "status 500", "status 500"},
			{"of an event of its lane", "a\x1b[31m\nb\xff" + strings.Repeat("x", 111) + "éé", "a [31m b " + strings.Repeat("x", 111)},
		} {
			r.sink.answer = func(string, *Event) answer { return answer{err: errors.New(c.says)} }
			stop := r.start()
			r.publish("a", 1)
			pass(5 * time.Second)
			if err := stop(); err != nil {
				t.Error(err)
			}
			if got := r.index.of("a").failure; got != c.want {
				t.Errorf("%s: %q is kept as %q, want %q", c.before, c.says, got, c.want)
			}
		}
	})
}
