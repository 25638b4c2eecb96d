package sink

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"sluice/pipeline"
)

// maxExcerpt is how many bytes of what a receiver wrote go into an error's text.
const maxExcerpt = 200

// judge turns an answer into what Push returns. Retry-After counts only where the trouble is the receiver's: with other
// statuses it would let one bad event pause its whole key.
func (w *Webhook) judge(response *http.Response, body []byte, ev *pipeline.Event, to *url.URL) error {
	status := response.StatusCode
	if status/100 == 2 {
		return nil
	}
	f := &failure{class: classOf(status), text: fmt.Sprintf("%s answered %d", w.address.host, status)}
	if name := http.StatusText(status); name != "" {
		f.text += " " + name
	}
	if status/100 == 3 {
		f.text += ": redirect not followed"
		return pipeline.Permanent(f)
	}
	if said := excerpt(w.hide(string(body), ev.Key, to)); said != "" {
		f.text += ": " + said
	}
	switch {
	case status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable:
		if pause, ok := parseRetryAfter(response.Header["Retry-After"], answeredAt(response)); ok {
			return pipeline.RetryAfter(f, pause)
		}
		return pipeline.Unavailable(f)
	case status == http.StatusRequestTimeout || status == http.StatusTooEarly:
		return f
	case status/100 == 4:
		return pipeline.Permanent(f)
	default: // 5xx, and numbers that are no status
		return f
	}
}

// answeredAt is the time of an answer by the receiver's clock, if it says so: a date in Retry-After is by that clock, too.
func answeredAt(response *http.Response) time.Time {
	if at, err := http.ParseTime(response.Header.Get("Date")); err == nil {
		return at
	}
	return time.Now()
}

// unanswered turns the trouble of an exchange without an answer into what Push returns. ctx is the caller's, exchange
// the one with the timeout.
func (w *Webhook) unanswered(ctx, exchange context.Context, ev *pipeline.Event, to *url.URL, err error) error {
	if cause := ctx.Err(); cause != nil {
		return &failure{class: classCancelled, text: fmt.Sprintf("push to %s cut off: %v", w.address.host, cause), err: cause}
	}
	mark := pipeline.Unanswered // the event may be the trouble
	if _, ok := errors.AsType[*unconnected](err); ok {
		mark = pipeline.Unavailable // nothing of it was sent
	}
	if exchange.Err() != nil {
		text := fmt.Sprintf("%s gave no answer within %v", w.address.host, w.timeout)
		return mark(&failure{class: classTimeout, text: text})
	}
	text := err.Error()
	if _, ok := errors.AsType[*net.OpError](err); !ok {
		text = w.hide(text, ev.Key, to) // it may quote what the receiver wrote
	}
	text = fmt.Sprintf("push to %s: %s", w.address.host, excerpt(text))
	return mark(&failure{class: classNetwork, text: text, err: err})
}

// hide removes from a receiver's text what it may have learnt from the request and must not show: receivers like to
// repeat the URL or the user that they didn't find.
func (w *Webhook) hide(text, key string, to *url.URL) string {
	words := append([]string{key, percentEncode(key), url.PathEscape(key), url.QueryEscape(key), to.RawQuery}, w.credentials...)
	for _, values := range to.Query() {
		words = append(words, values...)
	}
	// The longest first: a word may hold another.
	slices.SortFunc(words, func(a, b string) int { return len(b) - len(a) })
	for _, word := range slices.Compact(words) {
		if word != "" {
			text = hideWord(text, word)
		}
	}
	return text
}

// hideWord replaces word where it stands alone. Inside a longer word it tells nothing, and the key "1" would leave
// little of any text.
func hideWord(text, word string) string {
	var b strings.Builder
	done := 0 // text before it is written
	for from := 0; ; {
		at := strings.Index(text[from:], word)
		if at < 0 {
			b.WriteString(text[done:])
			return b.String()
		}
		at += from
		end := at + len(word)
		if at > 0 && isAlphanumeric(text[at-1]) && isAlphanumeric(word[0]) ||
			end < len(text) && isAlphanumeric(text[end]) && isAlphanumeric(word[len(word)-1]) {
			from = at + 1
			continue
		}
		b.WriteString(text[done:at])
		b.WriteString("[hidden]")
		done, from = end, end
	}
}

// excerpt is the start of a receiver's text on one line of printable characters.
func excerpt(text string) string {
	printable := strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, text)
	line := strings.Join(strings.Fields(printable), " ")
	if len(line) <= maxExcerpt {
		return line
	}
	end := maxExcerpt
	for !utf8.RuneStart(line[end]) {
		end--
	}
	return line[:end]
}
