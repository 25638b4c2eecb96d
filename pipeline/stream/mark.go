package stream

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Mark makes the very first entry of the lanes, and says whether this call made it: of all calls ever, for one stream,
// only one does. Who made it knows that no event can have been limited before. The entry itself holds nothing and is
// deleted at once; that the stream counts on from there is the mark.
func (l *Lanes) Mark(ctx context.Context) (bool, error) {
	if _, err := l.store.info(ctx); err != nil { // which stream there is now
		return false, err
	}
	msg := &nats.Msg{Subject: l.names.Lane("mark"), Header: nats.Header{headerPart: {partBody}}}
	ack, err := l.store.js.PublishMsg(ctx, msg, jetstream.WithExpectLastSequence(0), jetstream.WithExpectStream(l.store.name))
	if api, ok := errors.AsType[*jetstream.APIError](err); ok &&
		(api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence || api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant) {
		return false, nil
	}
	if err != nil {
		return false, explain(l.store.nc, fmt.Sprintf("marking stream %s", l.store.name), err)
	}
	return true, l.store.deleteMessage(ctx, ack.Sequence)
}
