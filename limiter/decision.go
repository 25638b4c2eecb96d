package limiter

import "time"

// Verdict is what a limiter says to an event that asks for its tokens.
type Verdict uint8

const (
	// Go: the tokens are taken; push now.
	Go Verdict = iota
	// Hold: the tokens are promised for a slot within the horizon; push at [Decision.At].
	Hold
	// Park: nothing was taken; the event waits in its key's lane.
	Park
	// Overflow: nothing was taken, and the event would wait longer than the longest wait allowed.
	Overflow
	// Never: nothing was taken, and never will be: the event costs more than the bucket can ever hold.
	Never
)

// Reason says why an event could not go at once.
type Reason string

// The reasons of a [Decision]. They are the closed set of the label of sluice_events_throttled_total.
const (
	Throttled Reason = "throttled"    // the bucket is empty
	LaneAhead Reason = "lane"         // older events of the key wait in its lane
	Cooling   Reason = "cooling"      // the receiver asked for a pause, or failed
	Paused    Reason = "paused"       // the limit is 0
	Damaged   Reason = "damaged"      // the key's state in Redis is not readable
	KeyCap    Reason = "key_inflight" // the key has as many pushes in flight as one worker allows it
	Redeliver Reason = "redelivered"  // the source delivered it before; only the lane can tell whether it is there already
	Busy      Reason = "late"         // its token grew stale twice before a push could start
)

// Reasons lists all reasons.
var Reasons = []Reason{Throttled, LaneAhead, Cooling, Paused, Damaged, KeyCap, Redeliver, Busy}

// Decision is the answer to one reservation. It is plain data: nothing needs to be given back.
type Decision struct {
	Verdict Verdict
	Reason  Reason // empty for Go

	// At is when the token is there, by this process' monotonic clock; never earlier than by Redis' clock.
	At time.Time
	// Stale is when the token has become too old to be used: a push that starts later would break the bound.
	Stale time.Time

	// Wait is how long the event is expected to wait in its lane (Park, Overflow); without lanes, how long until it could go
	// if nothing else of its key goes before: who asks again after exactly so long finds its tokens. 0 of a refusal: that
	// can't be said, as while the limit is 0.
	Wait time.Duration
	// Ahead is the number of events of the key that waited before this one (Park, Overflow).
	Ahead int64
	// AheadCost is the number of tokens that these take.
	AheadCost int64
	// Counted says that the key's state expects a park for this event; hand it on to the lane index.
	Counted bool

	// Remaining is the number of whole tokens that the limit with the fewest has left, once this event has taken its own: so
	// much could go at once. math.MaxInt64 if nothing is counted. Whether it is known is said by [Decision.Left].
	Remaining int64
	// Scarcest is the place of that limit in the key's Limits.
	Scarcest int
}

// Left is Remaining where that is known: not of an event that can never go, nor of one that waits for something else than
// tokens.
func (d Decision) Left() (tokens int64, known bool) {
	switch d.Reason {
	case "", Throttled, KeyCap, Paused:
		return d.Remaining, d.Verdict != Never
	}
	return 0, false
}
