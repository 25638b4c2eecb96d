package stream

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"
)

// errDoubtful says that the consumer may be another one than a moment ago.
var errDoubtful = errors.New("the consumer is being looked for")

// Settled says up to which place all events were acknowledged, whichever worker had them, and what the last place in use is
// (see [pipeline.Source]). It costs one question to the server, or three when most lies behind the last event delivered.
//
// An event that is deleted from the stream while a worker has it in hand counts as settled.
func (s *Source) Settled(ctx context.Context, most uint64) (upTo, last uint64, err error) {
	s.payDebts() // or the answer would lag behind what is settled here
	s.mu.Lock()
	b, sure := s.bound, s.sure
	s.mu.Unlock()
	if !sure {
		return 0, 0, errDoubtful
	}
	info, err := s.askFloor(ctx, b)
	if err != nil {
		return 0, 0, err
	}
	last = info.Delivered.Stream
	if most > last {
		stream, err := s.js.Stream(ctx, s.cfg.Stream)
		if err != nil {
			return 0, 0, explain(s.js.Conn(), "looking for stream "+s.cfg.Stream, err)
		}
		last = max(last, stream.CachedInfo().State.LastSeq)
		// Asked again, so that an event between the two isn't overlooked.
		if info, err = s.askFloor(ctx, b); err != nil {
			return 0, 0, err
		}
		if info.NumAckPending == 0 && info.NumPending == 0 {
			upTo = last // what lies behind the last delivery is for others
		}
	}
	upTo = max(upTo, floorOf(info))
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.sure || s.bound.stream != b.stream {
		return 0, 0, errDoubtful
	}
	return upTo, last, nil
}

// floorOf is the place up to which all events for the consumer were delivered and acknowledged. The server keeps it exactly:
// a redelivery leaves an event unacknowledged, in its place.
func floorOf(info *jetstream.ConsumerInfo) uint64 {
	if info.NumAckPending == 0 {
		return max(info.AckFloor.Stream, info.Delivered.Stream)
	}
	return info.AckFloor.Stream
}

func (s *Source) askFloor(ctx context.Context, b binding) (*jetstream.ConsumerInfo, error) {
	info, err := b.consumer.Info(ctx)
	if err != nil {
		return nil, explain(s.js.Conn(), "asking about consumer "+s.cfg.consumer(), err)
	}
	if !info.Created.Equal(b.made) {
		return nil, fmt.Errorf("asking about consumer %s: %w", s.cfg.consumer(), errDoubtful)
	}
	return info, nil
}
