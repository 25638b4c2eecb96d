package stream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"

	"sluice/pipeline"
)

const (
	scanAhead  = 512              // messages that are asked for and not here yet
	scanExpiry = 30 * time.Second // of what is asked for
	scanBeat   = time.Second      // so often a server that has nothing to send says so
	scanLife   = time.Minute      // of a consumer that nobody uses
)

// scanPace says when a scan that gets nothing does something about it.
type scanPace struct {
	silence  time.Duration // without a word of the server: what it sent may be lost
	patience time.Duration // without a message, although there is one: the scan fails
	pause    time.Duration // before the next try
}

var usualScanPace = scanPace{silence: 3 * scanBeat, patience: 30 * time.Second, pause: 100 * time.Millisecond}

// scan reads the events of a range of the stream, each once and in order. It ends well only when the leader of the stream has
// said that there is none any more: what a consumer sends may be lost or late, and what it says of the end goes by a replica,
// which lags behind. What the leader has is read by a consumer, whose sequences, without a gap from 1, prove that nothing was
// left out; the next one goes on where they end.
type scan struct {
	*store
	from, last uint64 // what is still to be read
	filters    []string
	fn         func(ev *pipeline.Event, m message, seq uint64) error
	moved      time.Time // when it got on last
	stop       error     // of fn
}

// each calls fn with all events of the stream whose subjects match one of filters (none: all), in the order they were stored
// and without their data, up to the last one that was there when it began. Messages that sluice didn't store are passed
// over.
func (s *store) each(ctx context.Context, filters []string, fn func(ev *pipeline.Event, m message, seq uint64) error) error {
	info, err := s.info(ctx)
	if err != nil {
		return err
	}
	return s.between(ctx, 0, info.State.LastSeq, filters, fn)
}

// between is each for the events with after < sequence <= last.
func (s *store) between(ctx context.Context, after, last uint64, filters []string,
	fn func(ev *pipeline.Event, m message, seq uint64) error,
) error {
	r := &scan{store: s, from: after + 1, last: last, filters: filters, fn: fn}
	return r.run(ctx, usualScanPace)
}

func (r *scan) run(ctx context.Context, pace scanPace) error {
	r.moved = time.Now()
	for {
		from, there, err := r.next(ctx)
		if err == nil && !there {
			return nil
		}
		if err == nil {
			r.from = from
			err = r.read(ctx, pace.silence)
		}
		switch {
		case r.stop != nil:
			return r.stop
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil && r.from > r.last:
			return nil
		case lasts(err):
			return err
		case time.Since(r.moved) > pace.patience:
			if err == nil {
				err = fmt.Errorf("reading stream %s: no server sends message %d, which its leader has", r.name, r.from)
			}
			return err
		case err != nil || r.from == from:
			sleep(ctx, pace.pause)
		}
	}
}

// lasts says whether trying again is of no use.
func lasts(err error) bool {
	return isFault(err) && !noJetStream(err) || errors.Is(err, jetstream.ErrStreamNotFound) ||
		codeOf(err) == jetstream.JSErrCodeStreamNotFound
}

// next answers the first sequence that is to be read, by the word of the stream's leader, and whether there is any.
func (r *scan) next(ctx context.Context) (seq uint64, there bool, err error) {
	if r.from > r.last {
		return 0, false, nil
	}
	filters := r.filters
	if len(filters) == 0 {
		filters = []string{">"}
	}
	seq = r.last
	for _, filter := range filters {
		var answer struct {
			Error   *jetstream.APIError `json:"error"`
			Message struct {
				Seq uint64 `json:"seq"`
			} `json:"message"`
		}
		err := r.call(ctx, "STREAM.MSG.GET.", map[string]any{"seq": r.from, "next_by_subj": filter}, &answer)
		if err == nil && answer.Error != nil && answer.Error.ErrorCode != jetstream.JSErrCodeMessageNotFound {
			err = answer.Error
		}
		if err != nil {
			return 0, false, r.explain("reading stream "+r.name, err)
		}
		if found := answer.Message.Seq; answer.Error == nil && found <= seq {
			seq, there = found, true
		}
	}
	return seq, there, nil
}

// read has a consumer of its own send the messages from where the scan is, until that says or seems to have no more, or one is
// missing. It is no error that none comes.
//
// It doesn't use the readers of nats.go: these take every message without data and with a header Status for a word of the
// server, and here all come without data.
func (r *scan) read(ctx context.Context, silence time.Duration) error {
	name := nuid.Next()
	_, err := r.js.CreateConsumer(ctx, r.name, jetstream.ConsumerConfig{
		Name: name, AckPolicy: jetstream.AckNonePolicy, DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: r.from,
		FilterSubjects: r.filters, HeadersOnly: true, InactiveThreshold: scanLife, MemoryStorage: true, Replicas: 1,
	})
	if err != nil {
		return r.explain("reading stream "+r.name, err)
	}
	// Whether it is deleted is not waited for: by itself it ends, too.
	defer func() { _ = r.nc.PublishRequest(r.api+"CONSUMER.DELETE."+r.name+"."+name, r.nc.NewInbox(), nil) }()

	messages := make(chan *nats.Msg, scanAhead+128) // with what the server may have to say
	inbox := r.nc.NewInbox()
	sub, err := r.nc.ChanSubscribe(inbox, messages)
	if err != nil {
		return r.explain("reading stream "+r.name, err)
	}
	defer func() { _ = sub.Unsubscribe() }()

	quiet := time.NewTimer(silence)
	defer quiet.Stop()
	for got, asked := 0, 0; ; got++ {
		if asked-got <= scanAhead/2 {
			if err := r.ask(name, inbox, scanAhead-(asked-got)); err != nil {
				return r.explain("reading stream "+r.name, err)
			}
			asked = got + scanAhead
		}
		msg, meta := await(ctx, messages, quiet, silence)
		if msg == nil || meta.Sequence.Consumer != uint64(got)+1 {
			return nil
		}
		if more := r.take(msg, meta); !more {
			return nil
		}
	}
}

// ask lets the consumer send so many messages.
func (r *scan) ask(consumer, inbox string, most int) error {
	request, err := json.Marshal(map[string]int64{
		"batch": int64(most), "expires": scanExpiry.Nanoseconds(), "idle_heartbeat": scanBeat.Nanoseconds(),
	})
	if err != nil {
		return err
	}
	return r.nc.PublishRequest(r.api+"CONSUMER.MSG.NEXT."+r.name+"."+consumer, inbox, request)
}

// await is the next message with what its reply subject says of it: only stored messages have such a one. It is none when
// the server says anything else, if only that it is still there: it thinks then that it has sent all.
func await(ctx context.Context, messages <-chan *nats.Msg, quiet *time.Timer, silence time.Duration) (*nats.Msg, *nats.MsgMetadata) {
	quiet.Reset(silence)
	select {
	case msg := <-messages:
		if meta, err := msg.Metadata(); err == nil {
			return msg, meta
		}
	case <-quiet.C:
	case <-ctx.Done():
	}
	return nil, nil
}

// take gives a message to fn, and says whether more are to come.
func (r *scan) take(msg *nats.Msg, meta *nats.MsgMetadata) (more bool) {
	seq := meta.Sequence.Stream
	if seq < r.from {
		return false
	}
	r.from, r.moved = seq+1, time.Now()
	if seq > r.last {
		return false
	}
	if !isPart(msg.Header) {
		if ev, err := parseEvent(msg.Subject, msg.Header); err == nil {
			m := message{subject: msg.Subject, header: msg.Header, time: meta.Timestamp}
			if r.stop = r.fn(ev, m, seq); r.stop != nil {
				return false
			}
			r.moved = time.Now() // fn may have taken long
		}
	}
	return seq < r.last && meta.NumPending > 0
}
