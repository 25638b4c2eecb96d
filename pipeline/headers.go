package pipeline

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	"sluice/limiter"
)

// The producers' headers that say something to sluice.
const (
	costHeader     = "Sluice-Cost"
	tierHeader     = "Sluice-Tier"
	msgIDHeader    = "Nats-Msg-Id"
	idHeader       = "Sluice-Id"
	ceSourceHeader = "ce-source"
	ceIDHeader     = "ce-id"
)

// CheckHeader says what is wrong with what h says to sluice: the events of it would be dead-lettered as [BadHeader].
func CheckHeader(h Header) error { return (&Event{Header: h}).readHeader() }

// readHeader reads what the event says about itself. An error is final for the event: it is dead-lettered as [BadHeader].
func (ev *Event) readHeader() (err error) {
	if ev.Cost, err = CostOf(ev.Header); err != nil {
		return err
	}
	if ev.Expires, err = ExpiresOf(ev.Header, ev.Time); err != nil {
		return err
	}
	ev.Collapse, err = CollapseOf(ev.Header, ev.Source)
	return err
}

// CostOf is the number of tokens that an event takes: Sluice-Cost, or 1 where there is none. An error is final for the
// event: it is dead-lettered as [BadHeader].
func CostOf(h Header) (int64, error) {
	text, err := h.only(costHeader)
	if err != nil {
		return 0, err
	}
	if text = strings.TrimSpace(text); text == "" {
		return 1, nil
	}
	cost, err := strconv.ParseInt(text, 10, 64)
	if err != nil || cost < 1 || cost > limiter.MaxBurst {
		return 0, fmt.Errorf("%s is %.40q, not a whole number from 1 to %d", costHeader, text, limiter.MaxBurst)
	}
	return cost, nil
}

// maxTier is the longest name of a tier that an event can give.
const maxTier = 64

// TierOf is the tier that an event names: Sluice-Tier, or "". A name that no tier can have is as good as none: events of
// unknown tiers go by the limits of all others.
func TierOf(h Header) string {
	tier, err := h.only(tierHeader)
	tier = strings.TrimSpace(tier)
	if err != nil || len(tier) > maxTier || strings.ContainsFunc(tier, func(c rune) bool { return c <= ' ' || c >= 0x7f }) {
		return ""
	}
	return tier
}

// ReplayPrefix begins the Nats-Msg-Id of every event that was put back into the source from the dead letters.
const ReplayPrefix = "dlq:"

// Replayed says whether h is of an event that was put back from the dead letters, and gives the id that it had before. It
// stands in Sluice-Id, which means this only where Nats-Msg-Id begins with [ReplayPrefix].
func Replayed(h Header) (id string, ok bool) {
	if !strings.HasPrefix(h.Get(msgIDHeader), ReplayPrefix) {
		return "", false
	}
	id = h.Get(idHeader)
	return id, id != "" && len(id) <= maxID && escapeID(id, ":/%") == id
}

// maxID is the length up to which an id is kept as it is. It is added to stored events as a header, and all headers that
// are added have to stay below 512 bytes.
const maxID = 200

// EventID is the id that the receiver sees on every attempt: the producer's Nats-Msg-Id, else CloudEvents' source and id,
// else <stream>:<seq>. Bytes outside A-Za-z0-9_:/- are percent-encoded, "%" too, so that different ids stay different.
// One that is longer than 200 bytes then is replaced by its SHA-256, which is as good to tell events apart. A replayed
// event keeps the id that it had; see [Replayed].
func EventID(h Header, src SourceID) string {
	id, ok := Replayed(h)
	if ok {
		return id
	}
	source, ceID := h.Get(ceSourceHeader), h.Get(ceIDHeader)
	switch msgID := h.Get(msgIDHeader); {
	case msgID != "":
		id = escapeID(msgID, ":/")
	case source != "" && ceID != "":
		// The last slash is the one between them: within the id it is encoded.
		id = escapeID(source, ":/") + "/" + escapeID(ceID, ":")
	default:
		id = escapeID(src.Stream, ":/") + ":" + strconv.FormatUint(src.Seq, 10)
	}
	if len(id) <= maxID {
		return id
	}
	sum := sha256.Sum256([]byte(id))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// escapeID percent-encodes all but letters, digits, "_", "-" and the bytes of plain.
func escapeID(s, plain string) string {
	const hexDigits = "0123456789ABCDEF"
	isPlain := func(c byte) bool {
		return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-' ||
			strings.IndexByte(plain, c) >= 0
	}
	n := 0
	for n < len(s) && isPlain(s[n]) {
		n++
	}
	if n == len(s) {
		return s
	}
	escaped := append(make([]byte, 0, len(s)+16), s[:n]...)
	for ; n < len(s); n++ {
		if c := s[n]; isPlain(c) {
			escaped = append(escaped, c)
		} else {
			escaped = append(escaped, '%', hexDigits[c>>4], hexDigits[c&15])
		}
	}
	return string(escaped)
}
