package httplimit

import (
	"net/http"
	"net/netip"
	"strings"
)

// KeyFunc says who is limited; "" if the request doesn't tell. The keys of the functions here begin with what they are of,
// so that a client can't choose a value of one kind that is another's key of another.
type KeyFunc func(*http.Request) string

// First is the first key that a request has.
func First(keys ...KeyFunc) KeyFunc {
	return func(r *http.Request) string {
		for _, key := range keys {
			if k := key(r); k != "" {
				return k
			}
		}
		return ""
	}
}

// Header is the value of a header field that clients can't choose, such as the user that a gateway has found.
func Header(name string) KeyFunc {
	prefix := strings.ToLower(name) + ":"
	return func(r *http.Request) string {
		value := strings.TrimSpace(r.Header.Get(name))
		if value == "" {
			return ""
		}
		return prefix + value
	}
}

// APIKey is the value of the header field, or the token of Authorization: Bearer, as a digest: no secret gets into Redis. It
// isn't checked here. Put the middleware behind what checks it, or limit by [ClientIP] as well: else each made-up key
// has a burst of its own.
func APIKey(header string) KeyFunc {
	return func(r *http.Request) string {
		secret := strings.TrimSpace(r.Header.Get(header))
		if secret == "" {
			secret = bearer(r.Header.Get("Authorization"))
		}
		if secret == "" {
			return ""
		}
		return "key:" + digest(secret)
	}
}

// bearer is the token of an Authorization field; "" if it is of another scheme.
func bearer(authorization string) string {
	scheme, token, _ := strings.Cut(strings.TrimSpace(authorization), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.TrimSpace(token)
}

// ClientIP is the address of the client: of IPv6 its /64, for a client has at least one. It is that of the connection's peer
// unless that is in one of the trusted prefixes. Then it is the last address in X-Forwarded-For that isn't: what stands before
// it the client may have made up. If all are trusted, it is the first. A field that isn't readable from its end up to there
// leaves the peer's address. Every trusted proxy has to append to X-Forwarded-For or to replace it.
func ClientIP(trusted ...netip.Prefix) KeyFunc {
	return clientIP(trusted, "X-Forwarded-For", func(element string) string { return element })
}

// ForwardedIP is [ClientIP] behind proxies that write the field Forwarded (RFC 7239). Which of the two is believed can't depend on
// the request: clients could send the one that the proxies leave alone.
func ForwardedIP(trusted ...netip.Prefix) KeyFunc {
	return clientIP(trusted, "Forwarded", forwardedFor)
}

// clientIP walks a field's elements from the last; node finds the address in one.
func clientIP(trusted []netip.Prefix, field string, node func(element string) string) KeyFunc {
	in := func(ip netip.Addr) bool {
		for _, prefix := range trusted {
			if prefix.Contains(ip) {
				return true
			}
		}
		return false
	}
	return func(r *http.Request) string {
		peer, ok := parseAddress(r.RemoteAddr)
		if !ok { // a unix socket has none; all its clients are one
			return "ip:unknown"
		}
		if !in(peer) {
			return addressKey(peer)
		}
		client := peer
		rest := strings.Join(r.Header.Values(field), ",")
		for more := strings.TrimSpace(rest) != ""; more && in(client); {
			i := strings.LastIndexByte(rest, ',')
			client, ok = parseAddress(node(strings.TrimSpace(rest[i+1:])))
			if !ok {
				return addressKey(peer)
			}
			more = i >= 0
			rest = rest[:max(0, i)]
		}
		return addressKey(client)
	}
}

// forwardedFor is the for= of an element of Forwarded. Elements are cut at every comma, also within quotes: a node's name
// has none, and other parts that have one leave no readable element.
func forwardedFor(element string) string {
	for pair := range strings.SplitSeq(element, ";") {
		name, value, _ := strings.Cut(strings.TrimSpace(pair), "=")
		if strings.EqualFold(name, "for") {
			return strings.Trim(value, `"`)
		}
	}
	return ""
}

// parseAddress reads an address with or without a port; IPv6 with one stands in brackets.
func parseAddress(s string) (netip.Addr, bool) {
	bare := s
	if len(s) > 2 && s[0] == '[' && s[len(s)-1] == ']' {
		bare = s[1 : len(s)-1]
	}
	ip, err := netip.ParseAddr(bare)
	if err != nil {
		var both netip.AddrPort
		both, err = netip.ParseAddrPort(s)
		ip = both.Addr()
	}
	return ip.Unmap().WithZone(""), err == nil
}

func addressKey(ip netip.Addr) string {
	if ip.Is4() {
		return "ip:" + ip.String()
	}
	network, _ := ip.Prefix(64)
	return "ip:" + network.String()
}
