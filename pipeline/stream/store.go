package stream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"

	"sluice/pipeline"
)

const (
	publishWindow  = 8192            // messages without an answer, more than a worker has events in hand
	publishTimeout = 5 * time.Second // of one message
	publishStall   = 30 * time.Second
)

// store keeps events in a stream of sluice's own: what lanes and dead letters have in common.
//
// An event is one message: its data as they are, its headers under stored names, and what sluice knows of it in headers of
// its own. If that doesn't fit into a message of the server, it is two. The first has the first half of the data and only
// says that it is a part; the second, the head, has everything else and names the first by its sequence. What the head has no
// room for of the producer's headers is stored with the data, before them. The part is stored before its head and deleted after
// it, so that a crash in between leaves at most a part that nobody refers to: it is never read, and costs its bytes until the
// stream is purged.
type store struct {
	js      jetstream.JetStream
	nc      *nats.Conn
	stream  jetstream.Stream
	name    string
	api     string        // prefix of the JetStream API, with the last dot
	quota   string        // the variable that says its size
	created atomic.Int64  // when the stream was created, Unix nanoseconds, as far as info has told
	ahead   time.Duration // the clock of NATS before this machine's, less a moment, as of the opening
	missed  chan struct{} // a call found no stream; holds one

	// Messages with the id of a part that was deleted would be taken for it for a while, and not stored. So part ids are this
	// process' own, and others after each deletion.
	process string
	deleted atomic.Int64
}

// openStore opens a stream that Setup has made or found.
func openStore(ctx context.Context, js jetstream.JetStream, cfg Config, name, quota string) (*store, error) {
	own, err := cfg.JetStream(js.Conn(),
		jetstream.WithPublishAsyncMaxPending(publishWindow), jetstream.WithPublishAsyncTimeout(publishTimeout))
	if err != nil {
		return nil, fmt.Errorf("opening stream %s: %w", name, err)
	}
	s, err := own.Stream(ctx, name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, &Fault{fmt.Sprintf("there is no stream %s: run `sluice setup`", name), err}
	}
	if err != nil {
		return nil, explain(js.Conn(), "opening stream "+name, err)
	}
	api := jetstream.DefaultAPIPrefix
	if cfg.JSDomain != "" {
		api = "$JS." + cfg.JSDomain + ".API."
	}
	opened := &store{js: own, nc: js.Conn(), stream: s, name: name, api: api, quota: quota, process: nuid.Next(), missed: make(chan struct{}, 1)}
	opened.created.Store(created(s.CachedInfo()))
	if now := s.CachedInfo().TimeStamp; !now.IsZero() {
		opened.ahead = time.Until(now)
	}
	return opened, nil
}

// publish stores one message and waits until that is safe. After an error it may be stored all the same.
func (s *store) publish(ctx context.Context, msg *nats.Msg) (jetstream.PubAck, error) {
	future, err := s.js.PublishMsgAsync(msg, jetstream.WithStallWait(publishStall))
	if err == nil {
		select {
		case ack := <-future.Ok():
			return *ack, nil
		case err = <-future.Err():
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	code := codeOf(err)
	switch {
	case errors.Is(err, nats.ErrMaxPayload), errors.Is(err, jetstream.ErrStreamMessageExceedsMaximum):
		return jetstream.PubAck{}, fmt.Errorf("storing in stream %s: %w (%w)", s.name, pipeline.ErrTooLarge, err)
	case code == codeStoreFailed && strings.Contains(err.Error(), "maximum bytes exceeded"):
		return jetstream.PubAck{}, fmt.Errorf("stream %s is %w: raise %s, or make room (%w)", s.name, pipeline.ErrFull, s.quota, err)
	case code == codeStorageExceeded, code == codeResourcesExceeded, code == codeStoreFailed && strings.Contains(err.Error(), "no space left"):
		return jetstream.PubAck{}, fmt.Errorf("storing in stream %s: NATS is %w: raise max_file_store of NATS or the account's limit, "+
			"or make room on the disk (%w)", s.name, pipeline.ErrFull, err)
	case errors.Is(err, jetstream.ErrAsyncPublishTimeout):
		err = nats.ErrTimeout // so that a permission that was denied explains it
	}
	return jetstream.PubAck{}, s.explain("storing in stream "+s.name, err)
}

// explain says what an error of a call means. When there seems to be no stream, whoever keeps it is told.
func (s *store) explain(doing string, err error) error {
	if errors.Is(err, jetstream.ErrNoStreamResponse) || errors.Is(err, jetstream.ErrStreamNotFound) ||
		codeOf(err) == jetstream.JSErrCodeStreamNotFound {
		signal(s.missed)
	}
	return explain(s.nc, doing, err)
}

// message is a stored message as it was read.
type message struct {
	subject string
	header  nats.Header
	data    []byte
	time    time.Time // when it was stored
}

// holds says whether the stream is the one that was created then.
func (s *store) holds(ctx context.Context, created int64) (bool, error) {
	if created == s.created.Load() {
		return true, nil
	}
	_, err := s.info(ctx) // it may be newer than what is known here
	return created == s.created.Load(), err
}

// read returns the event of that name, with its body, and the message that holds it, or [pipeline.ErrGone]. It must have been
// stored under subject, unless that is empty.
func (s *store) read(ctx context.Context, subject string, id pipeline.BodyID) (*pipeline.Event, message, error) {
	if ok, err := s.holds(ctx, id.Created); err != nil {
		return nil, message{}, err
	} else if !ok {
		return nil, message{}, pipeline.ErrGone
	}
	seq := id.Seq
	head, err := s.get(ctx, seq)
	if err != nil {
		return nil, message{}, err
	}
	// Another subject: the stream lost its end; the sequence now belongs to another event.
	if subject != "" && head.subject != subject || isPart(head.header) {
		return nil, message{}, pipeline.ErrGone
	}
	ev, err := parseEvent(head.subject, head.header)
	if err != nil {
		return nil, message{}, fmt.Errorf("message %d of stream %s: %w", seq, s.name, err)
	}
	ev.Data, ev.Body.BodyID = head.data, id
	ref := head.header.Get(headerPart)
	if ref == "" {
		return ev, head, nil
	}
	partSeq, err := strconv.ParseUint(ref, 10, 64)
	if err != nil {
		return nil, message{}, fmt.Errorf("message %d of stream %s: %s: %w", seq, s.name, headerPart, err)
	}
	part, err := s.get(ctx, partSeq)
	if errors.Is(err, pipeline.ErrGone) {
		// Deleted between the two reads: its head was deleted before it.
		return nil, message{}, err
	}
	if err != nil {
		return nil, message{}, err
	}
	if part.subject != head.subject || !isPart(part.header) {
		return nil, message{}, pipeline.ErrGone
	}
	ev.Body.Part = partSeq
	ev.Data = append(part.data, head.data...)
	if err := unfold(ev, head); err != nil {
		return nil, message{}, fmt.Errorf("message %d of stream %s: %w", seq, s.name, err)
	}
	return ev, head, nil
}

// get reads one message from any replica. Only the leader's word counts when it isn't there: replicas lag behind, and nats.go
// takes a message without data and with a header Status for a refusal.
func (s *store) get(ctx context.Context, seq uint64) (message, error) {
	m, err := s.stream.GetMsg(ctx, seq)
	switch {
	case err == nil:
		return message{m.Subject, m.Header, m.Data, m.Time}, nil
	case ctx.Err() != nil, errors.Is(err, context.DeadlineExceeded), errors.Is(err, nats.ErrTimeout), notConnected(err):
		return message{}, s.explain("reading from stream "+s.name, err)
	}
	return s.getFromLeader(ctx, seq)
}

func (s *store) getFromLeader(ctx context.Context, seq uint64) (message, error) {
	m, err := messageFromLeader(ctx, s.nc, s.api, s.name, map[string]any{"seq": seq})
	if err != nil && !errors.Is(err, pipeline.ErrGone) {
		err = s.explain("reading from stream "+s.name, err)
	}
	return m, err
}

// messageFromLeader asks the leader of a stream for a message, whose answer can't be taken for anything else: a direct get answers with
// the message itself, which a producer may make look like a refusal. [pipeline.ErrGone]: there is none.
func messageFromLeader(ctx context.Context, nc *nats.Conn, api, stream string, request map[string]any) (message, error) {
	var answer struct {
		Error   *jetstream.APIError `json:"error"`
		Message struct {
			Subject string    `json:"subject"`
			Header  []byte    `json:"hdrs"`
			Data    []byte    `json:"data"`
			Time    time.Time `json:"time"`
		} `json:"message"`
	}
	err := callStream(ctx, nc, api+"STREAM.MSG.GET."+stream, request, &answer)
	switch {
	case err != nil:
		return message{}, err
	case answer.Error != nil && answer.Error.ErrorCode == jetstream.JSErrCodeMessageNotFound:
		return message{}, pipeline.ErrGone
	case answer.Error != nil:
		return message{}, answer.Error
	}
	m := message{subject: answer.Message.Subject, data: answer.Message.Data, time: answer.Message.Time}
	if len(answer.Message.Header) > 0 {
		if m.header, err = nats.DecodeHeadersMsg(answer.Message.Header); err != nil {
			return message{}, err
		}
	}
	return m, nil
}

// delete removes a body that was read, its head first; one that is gone is no error.
func (s *store) delete(ctx context.Context, body pipeline.Body) error {
	if ok, err := s.holds(ctx, body.Created); err != nil || !ok {
		return err
	}
	err := s.deleteMessage(ctx, body.Seq)
	if err == nil && body.Part > 0 {
		err = s.deleteMessage(ctx, body.Part)
	}
	return err
}

// deleteMessage asks by itself: nats.go keeps the code of the error to itself.
func (s *store) deleteMessage(ctx context.Context, seq uint64) error {
	var answer struct {
		Error   *jetstream.APIError `json:"error"`
		Success bool                `json:"success"`
	}
	err := s.call(ctx, "STREAM.MSG.DELETE.", map[string]any{"seq": seq, "no_erase": true}, &answer)
	if err == nil && answer.Error != nil {
		if missing(answer.Error) {
			return nil
		}
		err = answer.Error
	}
	return s.explain("deleting from stream "+s.name, err)
}

// missing says whether a deletion failed because there is nothing to delete. The server has a code for that, and a code
// for all failures whose text is then the error of its store.
func missing(err *jetstream.APIError) bool {
	switch err.ErrorCode {
	case codeSequenceNotFound, jetstream.JSErrCodeMessageNotFound:
		return true
	case codeDeleteFailed:
		return strings.Contains(err.Description, "no message found") || strings.Contains(err.Description, "deleted message") ||
			strings.Contains(err.Description, "stream store EOF")
	}
	return false
}

// call asks the JetStream API about the stream.
func (s *store) call(ctx context.Context, operation string, request, answer any) error {
	return callStream(ctx, s.nc, s.api+operation+s.name, request, answer)
}

func callStream(ctx context.Context, nc *nats.Conn, subject string, request, answer any) error {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, publishTimeout)
		defer cancel()
	}
	body, err := json.Marshal(request)
	if err != nil {
		return err
	}
	reply, err := nc.RequestWithContext(ctx, subject, body)
	if err != nil {
		return err
	}
	return json.Unmarshal(reply.Data, answer)
}

// info asks about the stream, and notes if it was created anew.
func (s *store) info(ctx context.Context) (*jetstream.StreamInfo, error) {
	info, err := s.stream.Info(ctx)
	if err != nil {
		return nil, s.explain("reading stream "+s.name, err)
	}
	s.created.Store(created(info))
	return info, nil
}
