package pipeline

import (
	"time"

	"sluice/limiter"
)

// Outcome is how an event ended: the closed set of the label of sluice_events_settled_total.
type Outcome string

// The final outcomes.
const (
	Delivered    Outcome = "delivered"
	DeadLettered Outcome = "dead_lettered"
	Dropped      Outcome = "dropped"
	Expired      Outcome = "expired"
	Collapsed    Outcome = "collapsed" // a newer event of its name waited
)

// Outcomes lists all outcomes.
var Outcomes = []Outcome{Delivered, DeadLettered, Dropped, Expired, Collapsed}

// Path is the way a delivered event took: the closed set of the label of sluice_event_latency_seconds.
type Path string

// The paths.
const (
	Direct Path = "direct"
	Held   Path = "held"
	Lane   Path = "lane"
)

// Paths lists all paths.
var Paths = []Path{Direct, Held, Lane}

// Observer counts what happens. Methods are called from many goroutines and must be quick.
type Observer interface {
	Received(redelivered bool)
	Decided(ev *Event, dec limiter.Decision) // what was said to a delivery that has a key
	Throttled(reason limiter.Reason)
	Parked()
	Settled(outcome Outcome)
	Buried(reason DeadReason)                        // a dead letter is stored
	Pushed(ev *Event, err error, took time.Duration) // one attempt ended
	Latency(path Path, d time.Duration)              // from stored in the source to delivered
	LaneWait(d time.Duration)                        // from stored in the source to the first push out of the lane
	InFlight(delta int)
	HeldNow(delta int)
	Late()
	Leased(granted bool)
}
