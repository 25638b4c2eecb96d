package stream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/textproto"
	"slices"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"sluice/pipeline"
)

// maxHeader is how many bytes of headers JetStream takes in a message, whatever its max_payload is.
const maxHeader = 1<<16 - 1

// keptInHead are the producers' headers that are read without the part: the index is rebuilt from the first four, and people
// select dead letters by the last.
var keptInHead = []string{"Sluice-Cost", "Sluice-Tier", "Sluice-Expires", "Sluice-Collapse", nats.MsgIdHdr}

var oneLine = strings.NewReplacer("\r", " ", "\n", " ")

// put stores an event under subject, once per id within dedupeWindow, and returns the name of its body, or of the one stored
// before.
func (s *store) put(ctx context.Context, subject, id string, h nats.Header, data []byte) (pipeline.BodyID, error) {
	h.Set(jetstream.MsgIDHeader, id)
	h.Set(jetstream.ExpectedStreamHeader, s.name)
	room := int(s.nc.MaxPayload())
	if msg := (&nats.Msg{Subject: subject, Header: h, Data: data}); Fits(msg, room) {
		ack, err := s.publish(ctx, msg)
		return s.body(ack.Sequence), err
	}

	part := nats.Header{}
	part.Set(jetstream.MsgIDHeader, fmt.Sprintf("%s:part:%s:%d", id, s.process, s.deleted.Load()))
	part.Set(jetstream.ExpectedStreamHeader, s.name)
	part.Set(headerPart, partBody)
	h.Set(headerPart, strconv.FormatUint(1<<64-1, 10)) // the sizes, before the values are known
	h.Set(headerRest, strconv.Itoa(1<<20))
	if rest := overflow(h, min(maxHeader, room)); rest != nil {
		h.Set(headerRest, strconv.Itoa(len(rest)))
		data = slices.Concat(rest, data)
	} else {
		h.Del(headerRest)
	}
	first := max(len(data)/2, headerSize(h)+len(data)-room)
	if first > len(data) || headerSize(part)+first > room {
		return pipeline.BodyID{}, fmt.Errorf("%w: %d bytes of headers and %d of data, max_payload is %d",
			pipeline.ErrTooLarge, headerSize(h), len(data), room)
	}
	half, err := s.publish(ctx, &nats.Msg{Subject: subject, Header: part, Data: data[:first]})
	if err != nil {
		return pipeline.BodyID{}, err
	}
	h.Set(headerPart, strconv.FormatUint(half.Sequence, 10))
	head, err := s.publish(ctx, &nats.Msg{Subject: subject, Header: h, Data: data[first:]})
	if errors.Is(err, pipeline.ErrFull) || err == nil && head.Duplicate && !half.Duplicate {
		// Nothing refers to the part, which would take room for good. Should deleting it fail, it does.
		s.deleted.Add(1)
		_ = s.deleteMessage(ctx, half.Sequence)
	}
	return s.body(head.Sequence), err
}

// body is the name of what lies at a sequence of the stream as it is known here.
func (s *store) body(seq uint64) pipeline.BodyID {
	return pipeline.BodyID{Created: s.created.Load(), Seq: seq}
}

// overflow takes as many of the producer's headers out of h as needed for it to have at most so many bytes, the largest first,
// and answers them as they stand on the wire; nothing if it has no more than that. Of equal headers it always takes the same,
// so that an event that is stored again has the same part.
func overflow(h nats.Header, most int) []byte {
	size := headerSize(h)
	if size <= most {
		return nil
	}
	kept := func(stored string) int {
		name := producerName(stored)
		if slices.ContainsFunc(keptInHead, func(kept string) bool { return strings.EqualFold(kept, name) }) {
			return 1
		}
		return 0
	}
	sizes := map[string]int{}
	for stored, values := range h {
		if producerName(stored) != "" {
			sizes[stored] = headerSize(nats.Header{stored: values}) - headerSize(nil)
		}
	}
	names := slices.SortedFunc(maps.Keys(sizes), func(a, b string) int {
		return cmp.Or(cmp.Compare(kept(a), kept(b)), cmp.Compare(sizes[b], sizes[a]), cmp.Compare(a, b))
	})
	rest := []byte("NATS/1.0\r\n")
	for _, name := range names {
		if size <= most {
			break
		}
		for _, value := range h[name] {
			rest = fmt.Appendf(rest, "%s: %s\r\n", name, oneLine.Replace(textproto.TrimString(value)))
		}
		size -= sizes[name]
		delete(h, name)
	}
	return append(rest, "\r\n"...)
}

// unfold gives the event back what overflow took from its headers. Its data begin with that.
func unfold(ev *pipeline.Event, head message) error {
	text := head.header.Get(headerRest)
	if text == "" {
		return nil
	}
	n, err := strconv.Atoi(text)
	if err == nil && (n < 0 || n > len(ev.Data)) {
		err = errors.New("is more than there is")
	}
	if err != nil {
		return fmt.Errorf("%s %q: %w", headerRest, text, err)
	}
	h, err := nats.DecodeHeadersMsg(ev.Data[:n])
	if err != nil {
		return fmt.Errorf("the first %d bytes are no headers: %w", n, err)
	}
	maps.Copy(ev.Header, producerHeader(h))
	ev.Data = ev.Data[n:]
	return nil
}

// Fits says whether a message has no more headers, and no more bytes with its data, than a stream takes whose messages have at
// most so many.
func Fits(msg *nats.Msg, most int) bool {
	size := headerSize(msg.Header)
	return size <= maxHeader && size+len(msg.Data) <= most
}
