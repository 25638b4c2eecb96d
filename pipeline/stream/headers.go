package stream

import (
	"errors"
	"fmt"
	"net/textproto"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/nats-io/nats.go"

	"sluice/limiter"
	"sluice/pipeline"
)

// The headers that sluice writes into what it stores. A producer's headers of these names are not lost: see storedName.
const (
	headerID      = "Sluice-Id"
	headerSource  = "Sluice-Source"  // [pipeline.SourceID]
	headerKey     = "Sluice-Key"     // encoded; missing without a usable key
	headerSubject = "Sluice-Subject" // the producer's
	headerTime    = "Sluice-Time"    // when the source stored it, RFC 3339
	headerAttempt = "Sluice-Attempt" // pushes started; missing for none
	headerFirst   = "Sluice-First"   // when the first push started, RFC 3339
	headerPlace   = "Sluice-Place"   // among the events of its key, if its source doesn't tell
	headerReason  = "Sluice-Reason"  // dead letters
	headerError   = "Sluice-Error"   // dead letters
	headerPart    = "Sluice-Part"    // of an event in two messages: partBody, or the sequence of that
	headerRest    = "Sluice-Rest"    // of an event in two messages: so many bytes before its data are headers of the producer's

	// wasPrefix stands before the name of a producer's header that can't be stored under its own name.
	wasPrefix = "Sluice-Was-"

	partBody = "body"
)

var ownHeaders = []string{
	headerID, headerSource, headerKey, headerSubject, headerTime, headerAttempt, headerFirst, headerReason, headerError, headerPart,
	headerRest, headerPlace,
}

// mustRename says whether a producer's header can't be stored under its own name: because JetStream would act on it
// (Nats-*: reject the message, expire it, or delete others), because a client would take the message for a status
// (Status), because it is one of ours, or because it looks like a renamed one.
func mustRename(name string) bool {
	if hasPrefixFold(name, "Nats-") || hasPrefixFold(name, wasPrefix) ||
		strings.EqualFold(name, "Status") || strings.EqualFold(name, "Description") {
		return true
	}
	if hasPrefixFold(name, "Sluice-") {
		for _, own := range ownHeaders {
			if strings.EqualFold(name, own) {
				return true
			}
		}
	}
	for i := range len(name) {
		if !nameByte(name[i]) {
			return true
		}
	}
	return false
}

// storedName is the name under which a producer's header is stored: its own, or Sluice-Was-<name> with percent escapes for
// bytes that nats.go refuses in a name. producerName is the inverse.
func storedName(name string) string {
	if !mustRename(name) {
		return name
	}
	var b strings.Builder
	b.WriteString(wasPrefix)
	for i := range len(name) {
		if c := name[i]; nameByte(c) && c != '%' {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

// producerName is the producer's name of a stored header, or "" for one that isn't the producer's.
func producerName(stored string) string {
	escaped, renamed := strings.CutPrefix(stored, wasPrefix)
	if !renamed {
		if mustRename(stored) {
			return ""
		}
		return stored
	}
	if !strings.Contains(escaped, "%") {
		return escaped
	}
	var b strings.Builder
	for i := 0; i < len(escaped); i++ {
		if escaped[i] != '%' {
			b.WriteByte(escaped[i])
			continue
		}
		if i+2 >= len(escaped) {
			return ""
		}
		c, err := strconv.ParseUint(escaped[i+1:i+3], 16, 8)
		if err != nil {
			return ""
		}
		b.WriteByte(byte(c))
		i += 2
	}
	return b.String()
}

// nameByte is what nats.go allows in the name of a header it sends; what it receives may hold more.
func nameByte(c byte) bool {
	return c > ' ' && c < 0x7f && !strings.ContainsRune("\"()/,:;<=>?@[\\]{}", rune(c))
}

func hasPrefixFold(s, prefix string) bool {
	return len(s) >= len(prefix) && strings.EqualFold(s[:len(prefix)], prefix)
}

// renamed holds the producer's headers under their stored names. producerHeader is the inverse.
func renamed(header pipeline.Header) nats.Header {
	h := make(nats.Header, len(header)+8)
	for name, values := range header {
		if name != "" && len(values) > 0 {
			h[storedName(name)] = values
		}
	}
	return h
}

// producerHeader holds the producer's headers under their own names, and nothing else of h.
func producerHeader(h nats.Header) pipeline.Header {
	header := make(pipeline.Header, len(h))
	for stored, values := range h {
		if name := producerName(stored); name != "" {
			header[name] = values
		}
	}
	return header
}

// storedHeader is the header that ev is stored with.
func storedHeader(ev *pipeline.Event) nats.Header {
	h := renamed(ev.Header)
	h.Set(headerID, ev.ID)
	h.Set(headerSource, ev.Source.String())
	if usableKey(ev.Key) {
		h.Set(headerKey, keyToken(ev.Key))
	}
	h.Set(headerSubject, ev.Subject)
	h.Set(headerTime, ev.Time.UTC().Format(time.RFC3339Nano))
	if ev.Attempt > 0 {
		h.Set(headerAttempt, strconv.Itoa(ev.Attempt))
	}
	if !ev.First.IsZero() {
		h.Set(headerFirst, ev.First.UTC().Format(time.RFC3339Nano))
	}
	if ev.Place > 0 {
		h.Set(headerPlace, strconv.FormatUint(ev.Place, 10))
	}
	return h
}

// parseEvent is the inverse of storedHeader: the event that was stored under subject with header h, without its data.
func parseEvent(subject string, h nats.Header) (*pipeline.Event, error) {
	ev := &pipeline.Event{ID: h.Get(headerID), Subject: h.Get(headerSubject), Header: producerHeader(h)}
	token := h.Get(headerKey)
	if token == "" {
		token = lastToken(subject)
	}
	var errs [6]error
	if token != noKey {
		ev.Key, errs[0] = limiter.DecodeKey(token)
	}
	ev.Source, errs[1] = pipeline.ParseSourceID(h.Get(headerSource))
	ev.Time, errs[2] = time.Parse(time.RFC3339Nano, h.Get(headerTime))
	if s := h.Get(headerAttempt); s != "" {
		ev.Attempt, errs[3] = strconv.Atoi(s)
	}
	if s := h.Get(headerFirst); s != "" {
		ev.First, errs[4] = time.Parse(time.RFC3339Nano, s)
	}
	if s := h.Get(headerPlace); s != "" {
		ev.Place, errs[5] = strconv.ParseUint(s, 10, 64)
	}
	if err := errors.Join(errs[:]...); err != nil {
		return nil, fmt.Errorf("reading a stored event: %w", err)
	}
	return ev, nil
}

// headerSize is the number of bytes that h takes in a message.
func headerSize(h nats.Header) int {
	n := len("NATS/1.0\r\n") + len("\r\n")
	for name, values := range h {
		for _, v := range values {
			n += len(name) + len(": ") + len(textproto.TrimString(v)) + len("\r\n")
		}
	}
	return n
}

// isPart says whether a stored message is only the first half of an event's data.
func isPart(h nats.Header) bool { return h.Get(headerPart) == partBody }

const maxErrorText = 200 // bytes

// printable makes the text of an error fit to be a header: one line of printable characters, at most maxErrorText bytes.
func printable(text string) string {
	var b strings.Builder
	for _, r := range text {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			r = ' '
		}
		if b.Len()+utf8.RuneLen(r) > maxErrorText {
			break
		}
		b.WriteRune(r)
	}
	return strings.TrimSpace(b.String())
}
