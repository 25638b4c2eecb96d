package sink

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"unicode/utf8"
)

// placeholder stands for the event's key in the path and query of SLUICE_WEBHOOK_URL.
const placeholder = "{key}"

// address is where events are posted to.
type address struct {
	scheme string
	host   string // with its port
	path   string // escaped, with placeholders
	query  string // escaped, with placeholders
	user   *url.Userinfo
	fixed  *url.URL // the same for every event; nil if there are placeholders
}

// hostname is the host without its port.
func (a *address) hostname() string { return (&url.URL{Host: a.host}).Hostname() }

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
	a.path = escapeTemplate(cmp.Or(u.RawPath, u.EscapedPath()), "/")
	if !strings.Contains(a.path, placeholder) && !strings.Contains(a.query, placeholder) {
		a.fixed = a.expand("")
	}
	return a
}

// forKey returns the URL for an event, without a user. It is not to be changed. Only keys that [address.checkKey] passes may be
// sent there.
func (a *address) forKey(key string) *url.URL {
	if a.fixed != nil {
		return a.fixed
	}
	return a.expand(key)
}

// hostPort is what to connect to, in ASCII.
func (a *address) hostPort() string {
	u := url.URL{Scheme: a.scheme, Host: a.host}
	host := u.Hostname()
	if strings.ContainsFunc(host, func(r rune) bool { return r >= utf8.RuneSelf }) {
		// A request writes such a name as it is known to the name servers.
		var wire bytes.Buffer
		_ = (&http.Request{Method: http.MethodGet, URL: &url.URL{Scheme: a.scheme, Host: host}}).Write(&wire)
		if request, err := http.ReadRequest(bufio.NewReader(&wire)); err == nil {
			host = request.Host
		}
	}
	port := map[string]string{"http": "80", "https": "443"}[a.scheme]
	return net.JoinHostPort(host, cmp.Or(u.Port(), port))
}

func (a *address) expand(key string) *url.URL {
	u := &url.URL{
		Scheme:   a.scheme,
		Host:     a.host,
		RawPath:  fill(a.path, key),
		RawQuery: strings.ReplaceAll(a.query, placeholder, url.QueryEscape(key)),
	}
	// RawPath goes on the wire as it is, as long as Path is what it decodes to. Everything in it is escaped, so that
	// decoding can't fail.
	u.Path, _ = url.PathUnescape(u.RawPath)
	return u
}

// checkKey refuses a key that would aim at another path than the one it stands in: receivers and their proxies decode paths
// before they walk them, some more than once, and URL parsers of browsers' kind take %2E for a dot. A key in the query is
// always fine.
func (a *address) checkKey(key string) error {
	for template := range strings.SplitSeq(a.path, "/") {
		if !strings.Contains(template, placeholder) {
			continue
		}
		segment := decoded(fill(template, key))
		if slashes(segment) > slashes(decoded(fill(template, "k"))) {
			return errors.New("the key holds a slash or backslash, and {key} stands in the path of SLUICE_WEBHOOK_URL")
		}
		// What follows a semicolon are parameters, which some servers cut off before they walk; others end at a zero byte.
		name := segment
		if end := strings.IndexAny(segment, ";\x00"); end >= 0 {
			name = segment[:end]
		}
		if name = strings.TrimFunc(name, isBlank); name == "." || name == ".." {
			return errors.New("the key makes . or .. of a segment of the path of SLUICE_WEBHOOK_URL")
		}
	}
	return nil
}

// fill puts a key into a template of the path.
func fill(template, key string) string {
	return strings.ReplaceAll(template, placeholder, url.PathEscape(key))
}

// decoded is the last that a part of a path can become by decoding it again and again. Tabs and ends of lines are left out, as
// URL parsers do.
func decoded(part string) string {
	for {
		var b strings.Builder
		for i := 0; i < len(part); i++ {
			c := part[i]
			if c == '%' && i+2 < len(part) && isHex(part[i+1]) && isHex(part[i+2]) {
				n, _ := strconv.ParseUint(part[i+1:i+3], 16, 8)
				c = byte(n)
				i += 2
			}
			if c != '\t' && c != '\n' && c != '\r' {
				b.WriteByte(c)
			}
		}
		if b.Len() == len(part) {
			return part
		}
		part = b.String()
	}
}

func slashes(s string) int { return strings.Count(s, "/") + strings.Count(s, `\`) }

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

// isBlank says whether r is a space or a control character, which some take away at the ends.
func isBlank(r rune) bool { return r <= ' ' || r == 0x7f }

func isHex(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F'
}

func isAlphanumeric(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}
