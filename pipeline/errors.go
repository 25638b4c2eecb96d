package pipeline

import (
	"errors"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// pushError marks an error of a sink with how the event goes on.
type pushError struct {
	err        error
	dead       DeadReason    // no further attempt can mend it; "": one can
	unsent     bool          // nothing went to the receiver, nor did anything come from it
	away       bool          // the receiver, not this event, is the trouble
	silent     bool          // it didn't say so: the event may be the trouble all the same
	retryAfter time.Duration // at least so long
}

func (e *pushError) Error() string { return e.err.Error() }
func (e *pushError) Unwrap() error { return e.err }

// Permanent marks an error that no further attempt can mend: the event is dead-lettered.
func Permanent(err error) error { return &pushError{err: err, dead: Rejected} }

// Undeliverable marks an error of an event that can't be sent at all: it is dead-lettered for reason, and nothing follows from
// it for the receiver.
func Undeliverable(reason DeadReason, err error) error {
	return &pushError{err: err, dead: reason, unsent: true}
}

// Unavailable marks an error that concerns the receiver rather than the event, as its answer says (429, 503), or since nothing could be
// sent: the whole key waits before the next attempt, which is this event's.
func Unavailable(err error) error { return &pushError{err: err, away: true} }

// Unanswered marks an error of a push that got no answer: the receiver is away, or it, or something on the way to it, can't take this
// event. The whole key waits, and then another of its events is tried before this one.
func Unanswered(err error) error { return &pushError{err: err, away: true, silent: true} }

// RetryAfter marks an error whose receiver asked for a pause of d: nothing of the key goes before.
func RetryAfter(err error, d time.Duration) error {
	return &pushError{err: err, away: true, retryAfter: d}
}

func markOf(err error) pushError {
	if e, ok := errors.AsType[*pushError](err); ok {
		return *e
	}
	return pushError{err: err}
}

// maxBrief is how many bytes of what a push failed with are kept with its key.
const maxBrief = 120

// brief is a sink's error for those who ask why a key waits: the start of its text, on one line.
func brief(err error) string {
	text := strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, err.Error())
	if len(text) <= maxBrief {
		return text
	}
	end := maxBrief
	for !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end]
}

// DeadReason is why an event was dead-lettered: the closed set of a dead letter's subject and metric label.
type DeadReason string

// The reasons. Each names what the operator has to look at.
const (
	NoKey     DeadReason = "no_key"     // SLUICE_KEY found nothing in the event
	BadKey    DeadReason = "bad_key"    // the key is longer than limiter.MaxKey, the receiver may read another one, or the sink's address can't take it
	BadHeader DeadReason = "bad_header" // a Sluice- header of the producer can't be read
	Cost      DeadReason = "cost"       // costs more tokens than the bucket ever holds
	MaxWait   DeadReason = "max_wait"   // would have waited longer than SLUICE_MAX_WAIT
	KeyFull   DeadReason = "key_full"   // SLUICE_KEY_MAX_WAITING events of its key wait already
	Rejected  DeadReason = "rejected"   // the receiver refused it for good
	Exhausted DeadReason = "exhausted"  // SLUICE_RETRY_FOR or SLUICE_RETRY_MAX is used up
	TooLarge  DeadReason = "too_large"  // can't be stored in a lane
	LanesFull DeadReason = "lanes_full" // had to wait, and SLUICE_LANES_MAX_BYTES are used up
)

// DeadReasons lists all reasons.
var DeadReasons = []DeadReason{NoKey, BadKey, BadHeader, Cost, MaxWait, KeyFull, Rejected, Exhausted, TooLarge, LanesFull}
