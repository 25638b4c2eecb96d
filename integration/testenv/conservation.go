package testenv

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Streams names the streams that events pass; empty names are the defaults of sluice.
type Streams struct {
	Source      string // EVENTS; its retention must be WorkQueue, so that it holds just what isn't acked
	Lanes       string // SLUICE_LANES
	DeadLetters string // SLUICE_DLQ
}

// Conservation says where events are, by id: how many messages or deliveries of each.
type Conservation struct {
	Source, Lanes, DeadLetters, Delivered map[string]int
}

// Snapshot looks where the events are while everything runs. It reads from upstream to downstream, so that an event on
// its way is seen where it was or where it goes to, never nowhere: one that is missing is lost. Events published while
// it runs may be missed. Ids must consist of A-Za-z0-9_:/- so that they read the same everywhere.
func Snapshot(t testing.TB, server *NATSServer, receiver *ReceiverServer, streams Streams) Conservation {
	t.Helper()
	js := server.JetStream()
	source := cmp.Or(streams.Source, "EVENTS")
	requireWorkQueue(t, js, source)
	sourceID := func(h nats.Header, seq uint64) string {
		return cmp.Or(h.Get(nats.MsgIdHdr), source+":"+strconv.FormatUint(seq, 10))
	}
	storedID := func(h nats.Header, _ uint64) string { return h.Get("Sluice-Id") }
	return Conservation{
		Source:      streamIDs(t, js, source, sourceID),
		Lanes:       streamIDs(t, js, cmp.Or(streams.Lanes, "SLUICE_LANES"), storedID),
		DeadLetters: streamIDs(t, js, cmp.Or(streams.DeadLetters, "SLUICE_DLQ"), storedID),
		Delivered:   receiver.Delivered(),
	}
}

// Missing returns the ids that are nowhere, sorted. Events dropped by policy are among them; the caller knows their number.
func (c Conservation) Missing(published []string) []string {
	var found []string
	for _, place := range []map[string]int{c.Source, c.Lanes, c.DeadLetters, c.Delivered} {
		found = slices.AppendSeq(found, maps.Keys(place))
	}
	return Missing(published, found)
}

// String tells how many events are where.
func (c Conservation) String() string {
	return fmt.Sprintf("source %d, lanes %d, dead letters %d, delivered %d",
		len(c.Source), len(c.Lanes), len(c.DeadLetters), len(c.Delivered))
}

func requireWorkQueue(t testing.TB, js jetstream.JetStream, name string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	stream, err := js.Stream(ctx, name)
	if err != nil {
		t.Fatalf("looking at stream %s: %v", name, err)
	}
	if stream.CachedInfo().Config.Retention != jetstream.WorkQueuePolicy {
		t.Fatalf("stream %s keeps acked messages: what is still to do can't be told from what is done", name)
	}
}

// streamIDs counts the messages of a stream by the id that identify reads from them; messages without one aren't
// counted. A stream that doesn't exist holds nothing.
func streamIDs(t testing.TB, js jetstream.JetStream, name string, identify func(nats.Header, uint64) string) map[string]int {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	ids := map[string]int{}
	see := func(h nats.Header, seq uint64) {
		if id := identify(h, seq); id != "" {
			ids[id]++
		}
	}
	stream, err := js.Stream(ctx, name)
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return ids
	case err == nil && stream.CachedInfo().Config.AllowDirect:
		err = readBatches(ctx, js.Conn(), name, see)
	case err == nil:
		err = readSingly(ctx, stream, see)
	}
	if err != nil {
		t.Fatalf("reading stream %s: %v", name, err)
	}
	return ids
}

// readSingly reads a stream that has no direct get, message by message. A consumer can't be used instead: a WorkQueue
// stream has room for its one only.
func readSingly(ctx context.Context, stream jetstream.Stream, see func(nats.Header, uint64)) error {
	for next := uint64(1); ; next++ {
		message, err := stream.GetMsg(ctx, next, jetstream.WithGetMsgSubject(">"))
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		see(message.Header, message.Sequence)
		next = message.Sequence
	}
}

// readBatches reads a stream by direct gets of many messages each.
func readBatches(ctx context.Context, conn *nats.Conn, name string, see func(nats.Header, uint64)) error {
	inbox := conn.NewInbox()
	replies, err := conn.SubscribeSync(inbox)
	if err != nil {
		return err
	}
	defer func() { _ = replies.Unsubscribe() }()
	for next := uint64(1); ; next++ {
		request, err := json.Marshal(map[string]uint64{"seq": next, "batch": 1000})
		if err != nil {
			return err
		}
		if err := conn.PublishRequest("$JS.API.DIRECT.GET."+name, inbox, request); err != nil {
			return err
		}
		last, more, err := readBatch(ctx, replies, see)
		if err != nil || !more {
			return err
		}
		next = last
	}
}

// readBatch reads the replies to one direct get, up to the one with a status: 204 ends a batch, 404 says that nothing
// is left. It returns the last sequence, and whether there is more behind it.
func readBatch(ctx context.Context, replies *nats.Subscription, see func(nats.Header, uint64)) (last uint64, more bool, err error) {
	for {
		message, err := replies.NextMsgWithContext(ctx)
		if err != nil {
			return last, false, err
		}
		switch status := message.Header.Get("Status"); status {
		case "204":
			return last, last > 0 && message.Header.Get("Nats-Num-Pending") != "0", nil
		case "404":
			return last, false, nil
		case "":
		default:
			return last, false, fmt.Errorf("direct get answers %s %s", status, message.Header.Get("Description"))
		}
		sequences := message.Header.Values(jetstream.SequenceHeader)
		if len(sequences) == 0 {
			return last, false, errors.New("a reply without a sequence")
		}
		// The server's own header comes behind those the message was stored with.
		if last, err = strconv.ParseUint(sequences[len(sequences)-1], 10, 64); err != nil {
			return last, false, fmt.Errorf("reading a sequence: %w", err)
		}
		see(message.Header, last)
	}
}
