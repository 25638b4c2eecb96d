package sink

import (
	"encoding/json"
	"fmt"
	"maps"
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
	h := http.Header{
		"User-Agent":        {w.userAgent},
		"Content-Type":      {contentType(ev)},
		"Webhook-Id":        {ev.ID},
		"Webhook-Timestamp": {strconv.FormatInt(at.Unix(), 10)},
		"Sluice-Key":        {percentEncode(ev.Key)},
		"Sluice-Subject":    {percentEncode(ev.Subject)},
		"Sluice-Attempt":    {strconv.Itoa(ev.Attempt)},
	}
	if w.authorization != "" {
		h["Authorization"] = []string{w.authorization}
	}
	if len(w.signer) > 0 {
		signature, err := w.signer.sign(ev.ID, at, ev.Data)
		if err != nil {
			return nil, err
		}
		h["Webhook-Signature"] = []string{signature}
	}
	passOn(h, ev.Header)
	return h, nil
}

// passOn copies the CloudEvents attributes and the trace context of an event. What HTTP can't carry is left out: it
// would fail every attempt. Names that differ in their case only are one name, and the first in byte order counts, so that
// all attempts carry the same.
func passOn(h http.Header, from pipeline.Header) {
	for _, name := range slices.Sorted(maps.Keys(from)) {
		canonical := http.CanonicalHeaderKey(name)
		isAttribute := strings.HasPrefix(canonical, "Ce-") && isToken(name) && len(name) > len("Ce-")
		if !isAttribute && canonical != "Traceparent" && canonical != "Tracestate" || h[canonical] != nil {
			continue
		}
		values := slices.DeleteFunc(slices.Clone(from[name]), func(v string) bool { return !isLegalValue(v) })
		if canonical != "Tracestate" && len(values) > 1 {
			values = values[:1] // only tracestate is a list
		}
		if len(values) > 0 {
			h[canonical] = values
		}
	}
}

func contentType(ev *pipeline.Event) string {
	if own := ev.Header.Get("Content-Type"); strings.TrimSpace(own) != "" && isLegalValue(own) {
		return own
	}
	if isJSON(ev.Data) {
		return "application/json"
	}
	return "application/octet-stream"
}

// isJSON says whether data is JSON as others will read it; package json is content with broken UTF-8 in strings.
func isJSON(data []byte) bool {
	return json.Valid(data) && utf8.Valid(data)
}

// percentEncode makes any bytes a header value: what isn't visible ASCII, and the percent sign, becomes %XX.
func percentEncode(s string) string {
	isPlain := func(c byte) bool { return c > ' ' && c < 0x7f && c != '%' }
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
