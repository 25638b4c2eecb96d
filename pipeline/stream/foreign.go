package stream

import (
	"time"

	"sluice/pipeline"
)

// Skipped counts the messages of the source that nobody meant as events, by kind. They are not handed out.
type Skipped struct {
	Markers   uint64 // NATS or a KV client says by one that something was deleted
	Schedules uint64 // NATS is to publish the message later; the event is what it publishes then
}

// foreign is what a message of the source is that is no event.
type foreign uint8

const (
	noneForeign foreign = iota
	markerForeign
	scheduleForeign
)

// foreignOf tells messages of NATS' own and of its clients from events. schedules says that the stream takes schedules: elsewhere the
// header means nothing to the server.
func foreignOf(h pipeline.Header, data []byte, schedules bool) foreign {
	switch op := h.Get("KV-Operation"); {
	case schedules && has(h, "Nats-Schedule"):
		return scheduleForeign
	case len(data) == 0 && (has(h, "Nats-Marker-Reason") || op == "DEL" || op == "PURGE"):
		return markerForeign
	}
	return noneForeign
}

// has looks for a header as the server does, which knows its own in one spelling only.
func has(h pipeline.Header, name string) bool {
	_, ok := h[name]
	return ok
}

// scheduleAgain is for how long a schedule that must not be settled is put off.
const scheduleAgain = time.Hour

// skip settles a message that is no event. A schedule is acknowledged only where that keeps it: on a work queue it would be removed
// before its time. There it comes again once in a while until NATS has published it. The mutex is held.
func (s *Source) skip(d *delivery, kind foreign) {
	o := acked
	switch kind {
	case markerForeign:
		s.skipped.Markers++
	case scheduleForeign:
		if !d.again {
			s.skipped.Schedules++
		}
		if !s.bound.keeps {
			o = putOff
		}
	}
	d.settled = true
	s.owe(d, o)
}

// Skipped tells what was not handed out since the source was opened.
func (s *Source) Skipped() Skipped {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.skipped
}
