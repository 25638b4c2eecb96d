package main

import (
	"log/slog"
	"strings"
)

// Secret is a text that shows itself nowhere: not by any verb of fmt, in logs or in JSON. string(s) is the text.
type Secret string

// String says only whether there is a secret.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return "[secret]"
}

// GoString is for %#v.
func (s Secret) GoString() string { return s.String() }

// LogValue is for slog.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalText is for JSON.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// URL is an address that shows only its scheme and host: users and passwords come before the host, and paths and queries
// of webhooks hold tokens. string(u) is the whole of it.
type URL string

// String is the scheme and the host. It is made for texts that are no valid URL, too: whatever stands before the last
// "@" may be a password with unescaped characters.
func (u URL) String() string {
	scheme, rest, found := strings.Cut(string(u), "://")
	if !found || strings.ContainsAny(scheme, ":/@?#") {
		scheme, rest = "", string(u)
	} else {
		scheme += "://"
	}
	if i := strings.LastIndexByte(rest, '@'); i >= 0 {
		rest = rest[i+1:]
	}
	host := rest
	if i := strings.IndexAny(rest, "/?#"); i >= 0 {
		host = rest[:i]
	}
	if strings.Trim(rest[len(host):], "/") != "" {
		host += "/…"
	}
	return scheme + host
}

// GoString is for %#v.
func (u URL) GoString() string { return u.String() }

// LogValue is for slog.
func (u URL) LogValue() slog.Value { return slog.StringValue(u.String()) }

// MarshalText is for JSON.
func (u URL) MarshalText() ([]byte, error) { return []byte(u.String()), nil }

// withoutUser is u without what stands before the host, so that errors about the rest may be shown.
func (u URL) withoutUser() string {
	scheme, rest, found := strings.Cut(string(u), "://")
	if !found {
		return string(u)
	}
	if i := strings.LastIndexByte(rest, '@'); i >= 0 {
		rest = rest[i+1:]
	}
	return scheme + "://" + rest
}

// hasUser says whether something stands before the host.
func (u URL) hasUser() bool { return strings.Contains(string(u), "@") }
