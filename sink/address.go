package sink

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
)

// placeholder stands for the event's key in the path and query of SLUICE_WEBHOOK_URL.
const placeholder = "{key}"

// address is where events are posted to.
type address struct {
	scheme   string
	host     string   // with its port
	segments []string // of the path, escaped, with placeholders
	query    string   // escaped, with placeholders
	user     *url.Userinfo
	fixed    *url.URL // the same for every event; nil if there are placeholders
}

// parseAddress reads SLUICE_WEBHOOK_URL and tells all faults at once.
func parseAddress(raw string) (*address, error) {
	if raw == "" {
		return nil, errors.New("SLUICE_WEBHOOK_URL is empty: set it to where events are posted, such as https://example.com/hooks/{key}")
	}
	var faults []error
	fault := func(text string) {
		faults = append(faults, fmt.Errorf("SLUICE_WEBHOOK_URL %s: %s", showURL(raw), text))
	}
	if strings.Contains(raw, "#") {
		// Nothing more is said: what stands before it may be the first half of a password.
		fault("remove the # and what follows it, or write # as %23")
		return nil, errors.Join(faults...)
	}
	front := raw[:pathStart(raw)]
	switch rest := strings.ReplaceAll(raw, placeholder, ""); {
	case strings.Contains(front, placeholder):
		fault("{key} may stand in the path and the query only")
		return nil, errors.Join(faults...)
	case strings.ContainsAny(rest, "{}"):
		fault("{key} is the only word there is in braces; write other braces as %7B and %7D")
	}
	u, err := url.Parse(raw)
	if err != nil {
		// The parser's text may quote a part of a password.
		fault("it isn't a URL; write one such as https://example.com/hooks/{key}, with special characters percent-encoded")
		return nil, errors.Join(faults...)
	}
	if u.Scheme != "http" && u.Scheme != "https" {
		fault("it must start with https:// or http://")
	} else if u.Hostname() == "" {
		fault("it names no host; write one such as https://example.com/hooks/{key}")
	}
	if port := u.Port(); port != "" {
		if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
			fault("the port must be from 1 to 65535")
		}
	}
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	return newAddress(u), nil
}

func newAddress(u *url.URL) *address {
	a := &address{
		scheme: u.Scheme,
		host:   u.Host,
		user:   u.User,
		query:  escapeTemplate(u.RawQuery, "?/"),
	}
	// RawPath is the path as it was written whenever that differs from what EscapedPath makes of it.
	path := escapeTemplate(cmp.Or(u.RawPath, u.EscapedPath()), "/")
	a.segments = strings.Split(path, "/")
	if !strings.Contains(path, placeholder) && !strings.Contains(a.query, placeholder) {
		a.fixed = a.expand("")
	}
	return a
}

// forKey returns the URL for an event, without a user. It is not to be changed.
func (a *address) forKey(key string) *url.URL {
	if a.fixed != nil {
		return a.fixed
	}
	return a.expand(key)
}

func (a *address) expand(key string) *url.URL {
	escaped := url.PathEscape(key)
	segments := make([]string, len(a.segments))
	for i, template := range a.segments {
		segments[i] = strings.ReplaceAll(template, placeholder, escaped)
		// A key must not walk up: a segment that it turns into a dot or two is sent encoded.
		if segments[i] != template && (segments[i] == "." || segments[i] == "..") {
			segments[i] = strings.ReplaceAll(segments[i], ".", "%2E")
		}
	}
	u := &url.URL{
		Scheme:   a.scheme,
		Host:     a.host,
		RawPath:  strings.Join(segments, "/"),
		RawQuery: strings.ReplaceAll(a.query, placeholder, url.QueryEscape(key)),
	}
	// RawPath goes on the wire as it is, as long as Path is what it decodes to. Everything in it is escaped, so that
	// decoding can't fail.
	u.Path, _ = url.PathUnescape(u.RawPath)
	return u
}

// escapeTemplate percent-encodes what may not stand in a URL, except placeholders. The transport sends a query as it is
// written, and a path only if every byte of it is legal; also lists legal bytes beside those of any path segment.
func escapeTemplate(s, also string) string {
	pieces := strings.Split(s, placeholder)
	for i, piece := range pieces {
		var b strings.Builder
		for j := range len(piece) {
			switch c := piece[j]; {
			case c == '%' && j+2 < len(piece) && isHex(piece[j+1]) && isHex(piece[j+2]),
				isAlphanumeric(c), strings.IndexByte("-._~!$&'()*+,;=:@", c) >= 0, strings.IndexByte(also, c) >= 0:
				b.WriteByte(c)
			default:
				fmt.Fprintf(&b, "%%%02X", c)
			}
		}
		pieces[i] = b.String()
	}
	return strings.Join(pieces, placeholder)
}

// showURL says what a fault may tell of a URL: scheme and host. Users, paths and queries are used as passwords.
func showURL(raw string) string {
	if strings.Contains(raw, "@") {
		return "(not shown, as it may hold a password)"
	}
	if end := pathStart(raw); end < len(raw) && raw[end:] != "/" {
		raw = raw[:end] + "/..."
	}
	return "is " + strconv.Quote(raw)
}

// pathStart is where path, query or fragment begin in a URL that may be faulty.
func pathStart(raw string) int {
	start := 0
	if i := strings.Index(raw, "://"); i >= 0 {
		start = i + len("://")
	}
	if i := strings.IndexAny(raw[start:], "/?#"); i >= 0 {
		return start + i
	}
	return len(raw)
}

func isHex(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F'
}

func isAlphanumeric(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}
