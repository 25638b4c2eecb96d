package pipeline

import (
	"errors"
	"fmt"
	"testing"
	"time"
)

// What the sink can't send says nothing of the destination, which may be as far away as before.
func TestEventThatCantBeSentIsDeadLetteredAndIsNoAnswer(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, r *rig) {
		o := newWayward(r)
		inner := r.sink.answer
		r.sink.answer = func(key string, ev *Event) answer {
			if key == "bad" {
				return answer{err: Undeliverable(BadKey, errors.New("the address can't take it"))}
			}
			return inner(key, ev)
		}
		stop := r.start(exactly)
		o.away.Store(true)
		for i := range awayKeys {
			o.publish(fmt.Sprint("key", i), 1)
		}
		pass(2 * time.Millisecond)
		o.publish("bad", 1)
		pass(5 * time.Second)
		if _, away := r.workers[0].DestinationAway(); !away {
			t.Error("an event that was never sent counts as an answer of the destination")
		}
		o.away.Store(false)
		pass(longestProbe)
		if n := r.count("buried bad_key"); n != 1 {
			t.Errorf("%d dead letters of the reason bad_key, want 1", n)
		}
		r.wantRest(t)
		r.wantLogged(t, "the destination is away for several keys in a row; their events stay in the source", "the destination answers again")
		_ = stop()
	})
}
