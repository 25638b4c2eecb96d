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
	away, silent := Unavailable(errors.New("connection refused")), Unanswered(errors.New("connection reset"))
	asked := func(d time.Duration) error { return RetryAfter(errors.New("status 429"), d) }
	rejected := fate{outcome: DeadLettered, reason: Rejected}
	exhausted := func(after, rest time.Duration) fate {
		return fate{outcome: DeadLettered, reason: Exhausted, after: after, rest: rest}
	}
	retry := Retry{For: time.Hour, Max: 5, Base: time.Second, Cap: time.Minute}
	const ms = time.Millisecond
	tests := map[string]struct {
		err     error
		attempt int
		fails   int // of the key's receiver, in a row
		age     time.Duration
		draw    float64
		want    fate
	}{
		"delivered":                       {nil, 1, 0, 0, 0.5, fate{outcome: Delivered}},
		"delivered at the last":           {nil, 5, 0, 2 * time.Hour, 0.5, fate{outcome: Delivered}},
		"refused for good":                {Permanent(plain), 1, 0, 0, 0.5, rejected},
		"refused for good, wrapped":       {fmt.Errorf("webhook: %w", Permanent(plain)), 1, 0, 0, 0.5, rejected},
		"can't be sent":                   {Undeliverable(BadKey, plain), 1, 0, 0, 0.5, fate{outcome: DeadLettered, reason: BadKey}},
		"fails alone":                     {plain, 1, 0, 0, 0.5, fate{after: 500 * ms}},
		"fails alone again":               {plain, 3, 9, 0, 0.5, fate{after: 2 * time.Second}},
		"away":                            {away, 2, 9, 0, 0.5, fate{rest: time.Second}},
		"no answer":                       {silent, 1, 0, 0, 0.5, fate{after: 500 * ms, rest: 500 * ms}},
		"no answer, tried before":         {silent, 3, 2, 0, 0.5, fate{after: 2 * time.Second}},
		"no answer, others tried before":  {silent, 1, 2, 0, 0.5, fate{after: 500 * ms, rest: 2 * time.Second}},
		"last attempt":                    {plain, 5, 0, 0, 0.5, exhausted(8*time.Second, 0)},
		"too old":                         {plain, 1, 0, time.Hour, 0.5, exhausted(500*ms, 0)},
		"just not too old":                {plain, 1, 0, time.Hour - 1, 0.5, fate{after: 500 * ms}},
		"last attempt, away":              {away, 5, 0, 0, 0.5, exhausted(0, 8*time.Second)},
		"last attempt, no answer":         {silent, 5, 0, 0, 0.5, exhausted(8*time.Second, 0)},
		"asked for longer":                {asked(10 * time.Second), 1, 0, 0, 0, fate{rest: 10 * time.Second}},
		"asked for longer, spread":        {asked(10 * time.Second), 1, 0, 0, 0.5, fate{rest: 10500 * ms}},
		"asked for little, spread little": {asked(time.Second), 1, 0, 0, 0.5, fate{rest: 1050 * ms}},
		"asked for less than the backoff": {asked(time.Second), 4, 0, 0, 0.5, fate{rest: 4 * time.Second}},
		"asked for a year":                {asked(365 * 24 * time.Hour), 1, 0, 0, 0, fate{rest: 24 * time.Hour}},
		"asked for nothing":               {asked(0), 1, 0, 0, 0.5, fate{rest: 500 * ms}},
		"asked for the past":              {asked(-time.Hour), 1, 0, 0, 0.5, fate{rest: 500 * ms}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			now := time.Now()
			ev := &Event{Attempt: tt.attempt, First: now.Add(-tt.age)}
			if got := retry.judge(ev, tt.err, tt.fails, now, tt.draw); got != tt.want {
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
		got := r.judge(&Event{Attempt: attempt, First: now}, err, 0, now, draw)
		wait := got.after + got.rest // one of them
		floor := max(time.Millisecond, min(time.Duration(asked), MaxRetryAfter))
		if got.outcome != "" || wait < floor || wait > max(r.Cap, MaxRetryAfter+time.Second) {
			t.Errorf("%+v after attempt %d: %+v, want a wait from %s to the cap", r, attempt, got, floor)
		}
		if least := time.Duration(draw * float64(min(base, most))); wait < least {
			t.Errorf("%+v after attempt %d: %s, want at least %s of the first delay", r, attempt, wait, least)
		}
		if (got.rest > 0) != (away || asked != 0) || got.rest > 0 && got.after > 0 {
			t.Errorf("the event waits %s and the key %s, want the key's: %t", got.after, got.rest, away || asked != 0)
		}
		quiet := r.judge(&Event{Attempt: 1, First: now}, Unanswered(err), attempt-1, now, draw)
		if quiet.rest < time.Millisecond || quiet.rest > r.Cap || quiet.after < time.Millisecond || quiet.after > max(time.Millisecond, time.Duration(min(base, most))) {
			t.Errorf("%+v after a first attempt without an answer, others before: %d: %+v", r, attempt-1, quiet)
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
