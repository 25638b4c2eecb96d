package sink

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"sluice/pipeline"
)

// headers returns the headers of one attempt. Only a few of the producer's headers go on, under names that none of ours
// has, so that a producer can't replace an id or a signature.
func (w *Webhook) headers(ev *pipeline.Event, at time.Time) (http.Header, error) {
	const own = 8 // the ninth, Authorization, is rare
	passed := passedOn(ev.Header)
	h := make(http.Header, own+len(passed))
	values := make([]string, 0, own+1) // one array for all that is set here
	set := func(name, value string) {
		values = append(values, value)
		h[name] = values[len(values)-1 : len(values) : len(values)]
	}
	set("User-Agent", w.userAgent)
	set("Content-Type", contentType(ev))
	set("Webhook-Id", ev.ID)
	set("Webhook-Timestamp", strconv.FormatInt(at.Unix(), 10))
	set("Sluice-Key", percentEncode(ev.Key))
	set("Sluice-Subject", percentEncode(ev.Subject))
	set("Sluice-Attempt", strconv.Itoa(ev.Attempt))
	if w.authorization != "" {
		set("Authorization", w.authorization)
	}
	if signer := w.signer(); len(signer) > 0 {
		signature, err := signer.sign(ev.ID, at, ev.Data)
		if err != nil {
			return nil, err
		}
		set("Webhook-Signature", signature)
	}
	passOn(h, ev.Header, passed)
	return h, nil
}

// passedOn returns the names of an event's headers that go on: the attributes of CloudEvents, the trace context and the encoding
// of the data, in byte order. What HTTP can't carry is left out, as it would fail every attempt.
func passedOn(from pipeline.Header) []string {
	var names []string
	for name := range from {
		if isAttribute(name) || strings.EqualFold(name, "Traceparent") || strings.EqualFold(name, "Tracestate") ||
			strings.EqualFold(name, "Content-Encoding") {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// passOn translates the headers of those names. Names that differ in their case only are one name, and the first counts, so
// that all attempts carry the same. Values that HTTP can't carry are left out.
func passOn(h http.Header, from pipeline.Header, names []string) {
	for _, name := range names {
		canonical := http.CanonicalHeaderKey(name)
		if h[canonical] != nil {
			continue
		}
		values := slices.DeleteFunc(slices.Clone(from[name]), func(v string) bool { return !isLegalValue(v) })
		if canonical != "Tracestate" && canonical != "Content-Encoding" && len(values) > 1 {
			values = values[:1] // the others aren't lists
		}
		if isAttribute(name) {
			for i, v := range values {
				values[i] = attributeValue(v)
			}
		}
		if len(values) > 0 {
			h[canonical] = values
		}
	}
}

// contentType is the producer's, be it a header or the attribute of a CloudEvent; else what the data are.
func contentType(ev *pipeline.Event) string {
	for _, name := range []string{"Content-Type", typeAttribute} {
		if own := ev.Header.Get(name); strings.TrimSpace(own) != "" && isLegalValue(own) {
			return own
		}
	}
	switch {
	case !isJSON(ev.Data):
		return "application/octet-stream"
	case isCloudEvent(ev):
		return "application/cloudevents+json"
	}
	return "application/json"
}

// isJSON says whether data is JSON as others will read it; package json is content with broken UTF-8 in strings.
func isJSON(data []byte) bool {
	return json.Valid(pipeline.WithoutMark(data)) && utf8.Valid(data)
}

// percentEncode makes any bytes a header value: what isn't visible ASCII, and the percent sign, becomes %XX.
func percentEncode(s string) string { return percentEncodeAlso(s, "") }

func percentEncodeAlso(s, also string) string {
	isPlain := func(c byte) bool { return c > ' ' && c < 0x7f && c != '%' && strings.IndexByte(also, c) < 0 }
	plain := 0
	for plain < len(s) && isPlain(s[plain]) {
		plain++
	}
	if plain == len(s) {
		return s
	}
	var b strings.Builder
	for i := range len(s) {
		if isPlain(s[i]) {
			b.WriteByte(s[i])
		} else {
			fmt.Fprintf(&b, "%%%02X", s[i])
		}
	}
	return b.String()
}

// isLegalValue says whether HTTP can carry a header value: no control characters but the tab.
func isLegalValue(v string) bool {
	for i := range len(v) {
		if c := v[i]; c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	return true
}

// isToken says whether HTTP can carry a header name.
func isToken(name string) bool {
	for i := range len(name) {
		if c := name[i]; !isAlphanumeric(c) && strings.IndexByte("!#$%&'*+-.^_`|~", c) < 0 {
			return false
		}
	}
	return name != ""
}
