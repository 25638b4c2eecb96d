package pipeline

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"sluice/limiter"
)

// Event is one event on its way from the source to the sink.
type Event struct {
	ID       string // the same on every attempt; printable ASCII
	Key      string // who is limited: any bytes, 1 to limiter.MaxKey
	Subject  string // the subject the producer published to
	Header   Header // the producer's headers, under their own names
	Data     []byte
	Time     time.Time // when the source stored it
	Source   SourceID
	Tier     string    // the one it names, if that counts; "": none
	Cost     int64     // tokens it takes, at least 1
	Expires  time.Time // when it loses its meaning; zero: never
	Collapse string    // the name of which only the newest waits, see CollapseOf; "": it has none
	Attempt  int       // pushes started so far
	First    time.Time // when the first push started; zero before
	Body     Body      // of an event that was read from where it is stored
	Place    uint64    // where in the source it stands among others of its key; 0: where its own sequence says
}

// Order is the event's place in the source, by which the events of a lane leave. One that comes from elsewhere, a dead letter that was put
// back into its lane, has the place that it would have got when it was put there.
func (ev *Event) Order() uint64 {
	if ev.Place > 0 {
		return ev.Place
	}
	return ev.Source.Seq
}

// Header holds an event's headers. Lookup ignores case; stored names keep the producer's spelling.
type Header map[string][]string

// Get returns the first value of the header name in any spelling, or "". With several spellings it is that of the name as it
// is asked for, else of the first in byte order.
func (h Header) Get(name string) string {
	if v, ok := h[name]; ok && len(v) > 0 {
		return v[0]
	}
	spelling, value := "", ""
	for k, v := range h {
		if len(v) > 0 && strings.EqualFold(k, name) && (spelling == "" || k < spelling) {
			spelling, value = k, v[0]
		}
	}
	return value
}

// only returns the one value of the header name in any spelling, or "". Different values are an error: which of them counts
// would depend on the reader.
func (h Header) only(name string) (string, error) {
	value, found := "", false
	for k, values := range h {
		if len(values) == 0 || !strings.EqualFold(k, name) {
			continue
		}
		for _, v := range values {
			if found && v != value {
				return "", fmt.Errorf("the header %.80s is there with different values", name)
			}
			value, found = v, true
		}
	}
	return value, nil
}

// has says whether there is a header name in any spelling, with whatever value.
func (h Header) has(name string) bool {
	for k := range h {
		if strings.EqualFold(k, name) {
			return true
		}
	}
	return false
}

// SourceID is the identity of an event in the source: what stays the same however often it is delivered or stored again.
type SourceID struct {
	Stream  string
	Created int64 // creation time of the stream, Unix nanoseconds: a re-created stream counts from 1 again
	Seq     uint64
}

// String is the value of the Sluice-Source header: <stream>:<created>:<seq>.
func (s SourceID) String() string {
	return s.Stream + ":" + strconv.FormatInt(s.Created, 10) + ":" + strconv.FormatUint(s.Seq, 10)
}

// ParseSourceID reads what [SourceID.String] wrote.
func ParseSourceID(s string) (SourceID, error) {
	parts := strings.Split(s, ":")
	if len(parts) == 3 && parts[0] != "" {
		created, err1 := strconv.ParseInt(parts[1], 10, 64)
		seq, err2 := strconv.ParseUint(parts[2], 10, 64)
		if err1 == nil && err2 == nil {
			return SourceID{Stream: parts[0], Created: created, Seq: seq}, nil
		}
	}
	return SourceID{}, fmt.Errorf("%q is not <stream>:<created>:<seq>", s)
}

// Source hands out the events of the producers' stream.
type Source interface {
	// Next blocks until there is an event, or ctx ends. Any other error is final: the source is gone, and the worker ends
	// with it. The caller settles every delivery with exactly one of Ack or HandBack.
	Next(ctx context.Context) (Delivery, error)
	// Settled says that no event of the source with a place up to upTo is still on its way: of all workers' deliveries, each
	// is acked. Of the places up to most those behind last were never used, so that an event that has one is of another
	// source. A new source in the old one's place begins anew.
	Settled(ctx context.Context, most uint64) (upTo, last uint64, err error)
	// Ease says that this worker can hardly work for now: what has come and wasn't handed out goes back at once, and from
	// then on only what Next is called for is taken from others. Ease(false) ends that.
	Ease(on bool)
}

// Delivery is an event with the right to settle it in the source. Until it is settled the source keeps it from others,
// however long that takes.
type Delivery interface {
	// Event is the event without a key (the page derives it). It may be changed by its holder.
	Event() *Event
	// Redelivered says that the event was delivered before, so that it may be in its lane, or pushed, already.
	Redelivered() bool
	// Ack says that the event needs the source no more: pushed, stored in its lane, dead-lettered or dropped.
	Ack()
	// HandBack gives the event back at once, to be delivered again.
	HandBack()
}

// ErrGone says that a lane holds no such body any more: the event was settled.
var ErrGone = errors.New("the event is no longer in its lane")

// ErrFull says that what events are to be stored in has no room, and that nothing was stored. There is room again once events
// have left, or somebody has enlarged it; the text says what.
var ErrFull = errors.New("full")

// ErrTooLarge says that an event can't be stored, whatever is tried.
var ErrTooLarge = errors.New("the event doesn't fit into a stored message")

// BodyID names a stored body. Its sequence alone doesn't: in a stream that was deleted and created anew that may be
// another event's.
type BodyID struct {
	Created int64  // when the stream was created, Unix nanoseconds
	Seq     uint64 // in it
}

// Body is a stored body that was read, which is what can be deleted.
type Body struct {
	BodyID
	Part uint64 // the sequence of its other message; 0: it is one
}

// Lanes keeps the bodies of waiting events.
type Lanes interface {
	// Append stores ev and returns its name once it is safe. The same event (by Source) stored again within a minute
	// gives the first name. On an error other than [ErrFull] and [ErrTooLarge] it may be stored; append again.
	Append(ctx context.Context, ev *Event) (BodyID, error)
	// Read returns the event that Append stored, with its Body, or [ErrGone].
	Read(ctx context.Context, key string, id BodyID) (*Event, error)
	// Delete removes the Body of an event that was read. One that is gone already is no error.
	Delete(ctx context.Context, body Body) error
}

// DeadLetters keeps the events that can't be delivered.
type DeadLetters interface {
	// Bury stores ev with its reason, once per event and reason, and returns when that is safe. cause is what the
	// operator reads; it holds no secrets.
	Bury(ctx context.Context, ev *Event, reason DeadReason, cause error) error
}

// Sink pushes events to the receiver.
type Sink interface {
	// Name is the value of the metrics' label sink.
	Name() string
	// Push delivers one attempt. ev.Attempt counts from 1 and ev is not changed. nil is delivered; how else the event goes
	// on is said by [Permanent], [Unavailable] and [RetryAfter]; any other error is retried. The error's text goes into
	// logs and dead letters: no secrets, no URL with its user or query.
	Push(ctx context.Context, ev *Event) error
}

// Limiter says when an event may go.
type Limiter interface {
	// Reserve asks for cost tokens of key for an event in a tier ("": none), at a slot at most horizon ahead; a horizon below
	// 0 takes none and asks only where the event waits. An error says nothing about whether tokens were taken; asking again may waste some, never exceed the
	// limit.
	Reserve(ctx context.Context, key, tier string, cost int64, horizon time.Duration) (limiter.Decision, error)
}

// Entry is a waiting event as the lane index knows it: all but its body.
type Entry struct {
	BodyID         // of the body in the lanes. An Index knows by itself which stream's bodies its entries are of
	Order   uint64 // place in the source; events of a lane leave in this order
	Attempt int
	Cost    int64
	First   time.Time // when the first push started; zero before. Kept to the millisecond
	Expires time.Time // when the event loses its meaning; zero: never. Kept to the millisecond

	Collapse  string // the event's name, of which only the newest waits; "": it has none
	Collapsed bool   // a newer one of its name was there: this one is to be dropped
}

// LaneInfo is what is known of a lane after a call.
type LaneInfo struct {
	Waiting int64         // events that wait
	Next    time.Duration // from now: when the lane should be looked at next; < 0: no need
	Extra   int64         // after a park: what those that wait cost beyond one token each
	Each    time.Duration // after a park: what a token adds to the wait of those behind it; 0: nothing, or it isn't known

	// Collapsed is, after a park, the event that is to be dropped since a newer one of its name waits: the one parked, or the
	// newest before it. Its place is kept until Forget, or until a lease hands it out.
	Collapsed *Entry
}

// ParkRequest puts one event into its lane.
type ParkRequest struct {
	Key     string
	Tier    string // of the event; its lane goes by the limits of the newest one's
	Entry   Entry
	Counted bool          // the Decision's: a reservation told the index to expect this event
	After   time.Duration // > 0: the event's own earliest next attempt, from now
	Sleep   time.Duration // > 0: the receiver seems to be away: nothing of the key goes before, from now
	Failure string        // what its attempt failed with, in short; "": none did
}

// Leased is one event that a lease gives the right to push.
type Leased struct {
	Entry
	At      time.Time // its slot, by this process' monotonic clock
	Stale   time.Time // when its tokens are too old to be used
	Useless bool      // its time is over, or it is Collapsed: it has no slot and is to be dropped
	Costly  bool      // it costs more than its lane's limit ever holds: it has no slot and is to be dead-lettered
}

// LeaseRequest asks for the next events of a lane.
type LeaseRequest struct {
	Key     string
	Tier    string // as the last lease of the lane said; "" at first
	Token   int64  // of the lease held; 0: a new one
	Max     int    // at most so many events; 0 only renews
	Horizon time.Duration
	Notice  time.Duration // no slot is sooner than this: the bodies have to be read first

	// Ordered says that only events up to the place UpTo in the source, and the one at Stray, may go.
	Ordered     bool
	UpTo, Stray uint64
}

// Lease is the right to push some events of a lane, exclusive until it runs out.
type Lease struct {
	Token  int64  // 0: not granted (held by another worker, cooling, paused, empty, barred)
	Tier   string // that the lane goes by; hand it on to the next calls for the lane
	Events []Leased
	Until  time.Time // when it runs out unless it is renewed, by this process' monotonic clock
	Barred uint64    // the place of the next event, which lies behind UpTo; 0: none does
	Fails  int       // how many pushes in a row found the receiver away; while it isn't 0 a lease holds one event at most
	LaneInfo
}

// Fate is what became of a leased event.
type Fate uint8

const (
	// Done: it needs the lane no more.
	Done Fate = iota
	// Back: it waits again, with Attempt and First as in the entry.
	Back
)

// Settlement says what became of one leased event.
type Settlement struct {
	Was   Entry // as leased
	Now   Entry // as it goes back; ignored for Done
	Fate  Fate
	After time.Duration // Back: its own earliest next attempt, from now; 0: as its lane goes
}

// SettleRequest settles events of one lease.
type SettleRequest struct {
	Key     string
	Tier    string // as the lease said
	Token   int64
	Events  []Settlement
	Release bool          // the lease ends; whatever is still leased under it goes back
	Healthy bool          // the receiver answered well: the lane is no longer probing
	Sleep   time.Duration // > 0: the receiver is away: nothing of the key goes before, from now
	Failure string        // what an attempt failed with, in short, whose event goes back; "": none did
}

// ErrFenced says that a lease ran out and another worker holds the lane: nothing was changed.
var ErrFenced = errors.New("the lease has passed to another worker")

// Index keeps the order, the times and the leases of all lanes, shared by all workers. Every call may be repeated after
// an error.
type Index interface {
	// Park adds an event whose body is stored.
	Park(ctx context.Context, r ParkRequest) (LaneInfo, error)
	// Claim takes up to max keys whose lanes are due, or a few if max is less than that, and says when to look again at the latest.
	Claim(ctx context.Context, max int) (keys []string, next time.Duration, err error)
	// Lease takes or renews a lease and books the slots of its next events.
	Lease(ctx context.Context, r LeaseRequest) (Lease, error)
	// Settle ends leased events, and the lease if asked. ErrFenced: another worker goes on with them.
	Settle(ctx context.Context, r SettleRequest) (LaneInfo, error)
	// Now is the time on the clock that all workers share. What an event's age or its Sluice-Expires decides goes by it: a
	// worker's own clock may be wrong.
	Now() time.Time
	// Holds says whether the event that stands there in the source ([Event.Order]) may be in the key's lane already, waiting or leased.
	// No is sure.
	Holds(ctx context.Context, key string, order uint64) (bool, error)
	// Forget takes an event that Park said is to be dropped, and whose body is deleted, out of the lane. It answers false
	// if the event isn't there any more, or is leased.
	Forget(ctx context.Context, key string, e Entry) (was bool, err error)
}

// Gossip tells other workers what they would otherwise learn too late.
type Gossip interface {
	// Cooling says that nothing of key may be pushed for d. It is a hint: it may be lost.
	Cooling(key string, d time.Duration)
}
