package pipeline

import (
	"math/rand/v2"
	"time"
)

// Retry says how long and how often an event is tried.
type Retry struct {
	For  time.Duration // since the first attempt
	Max  int           // attempts; 0: any number
	Base time.Duration // the first delay is drawn from 0 to Base
	Cap  time.Duration // the longest delay
}

// MaxRetryAfter bounds what a receiver can ask for.
const MaxRetryAfter = 24 * time.Hour

// fate is what to do with an event after an attempt.
type fate struct {
	outcome Outcome       // set when this was the last attempt
	reason  DeadReason    // of a dead letter
	after   time.Duration // > 0: until the event's next attempt, which others of its key needn't wait for; else it keeps its place
	rest    time.Duration // > 0: nothing of the whole key goes for so long, even if this was the event's last attempt
}

// judge decides from the attempt's error how the event goes on. fails is how often in a row the key's receiver was away before this
// attempt. A receiver that says nothing may be away, or unable to take this event: the event waits by its own attempts, the key by fails, so
// that another event of the key finds out which. The same event's next failure says nothing new: the key needn't wait for that. draw is uniform
// in [0, 1).
func (r Retry) judge(ev *Event, err error, fails int, now time.Time, draw float64) fate {
	if err == nil {
		return fate{outcome: Delivered}
	}
	m := markOf(err)
	if m.dead != "" {
		return fate{outcome: DeadLettered, reason: m.dead}
	}
	f := fate{after: r.delay(ev.Attempt, draw)}
	if m.retryAfter > 0 {
		// The end is spread, only later, so that a fleet doesn't come back in one moment.
		asked := min(m.retryAfter, MaxRetryAfter)
		f.after = max(f.after, asked+time.Duration(draw*float64(min(asked/10, time.Second))))
	}
	switch {
	case m.silent && ev.Attempt > 1:
	case m.silent:
		f.rest = r.delay(fails+1, draw)
	case m.away:
		f.after, f.rest = 0, f.after
	}
	if r.Max > 0 && ev.Attempt >= r.Max || now.Sub(ev.First) >= r.For {
		f.outcome, f.reason = DeadLettered, Exhausted
	}
	return f
}

// delay is exponential backoff with full jitter: a fraction draw of base * 2^(attempt-1), at most cap.
func (r Retry) delay(attempt int, draw float64) time.Duration {
	d := r.Base
	for i := 1; i < attempt && d < r.Cap; i++ {
		d += min(d, r.Cap-d) // never past the cap, nor past what an integer holds
	}
	return max(time.Millisecond, time.Duration(draw*float64(min(d, r.Cap))))
}

func draw() float64 { return rand.Float64() }
