package stream

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// madeAgain is in the metadata of a stream that takes the place of one that was there.
const madeAgain = "sluice_made_again"

// Mark makes the very first entry of the lanes, and says whether this call made it: of all calls ever, for one stream,
// only one does, and none for a stream that was made again. Who made it knows that no event can have been limited before.
// The entry itself holds nothing and is deleted at once; that the stream counts on from there is the mark.
func (l *Lanes) Mark(ctx context.Context) (bool, error) {
	info, err := l.store.info(ctx) // which stream there is now
	if err != nil {
		return false, err
	}
	before := max(info.Config.FirstSeq, 1) - 1
	if info.State.LastSeq > before || info.Config.Metadata[madeAgain] != "" {
		return false, nil
	}
	msg := &nats.Msg{Subject: l.names.Lane("mark"), Header: nats.Header{headerPart: {partBody}}}
	ack, err := l.store.js.PublishMsg(ctx, msg, jetstream.WithExpectLastSequence(before), jetstream.WithExpectStream(l.store.name))
	if api, ok := errors.AsType[*jetstream.APIError](err); ok &&
		(api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence || api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant) {
		return false, nil
	}
	if err != nil {
		return false, explain(l.store.nc, fmt.Sprintf("marking stream %s", l.store.name), err)
	}
	return true, l.store.deleteMessage(ctx, ack.Sequence)
}
