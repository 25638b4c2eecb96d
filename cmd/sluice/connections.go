package main

import (
	"net/url"
	"strings"
)

// NATSConfig is how to reach NATS. At most one way of authentication is set.
type NATSConfig struct {
	URLs        []URL
	Creds, Nkey string // paths
	User        string
	Password    Secret
	Token       Secret
	TLS         TLSFiles
	InboxPrefix string
	JSDomain    string

	URLFile, PasswordFile, TokenFile string // where these come from; "": from no file
}

func natsPart(r *reader, env *environment, cfg *Config) {
	raw := &env.NATS
	cfg.NATS = NATSConfig{
		URLs:        r.natsURLs(raw),
		Creds:       r.path("NATS_CREDS", raw.Creds),
		Nkey:        r.path("NATS_NKEY", raw.Nkey),
		User:        r.text("NATS_USER", raw.User),
		Password:    r.secret("NATS_PASSWORD", raw.Password, raw.PasswordFile),
		Token:       r.secret("NATS_TOKEN", raw.Token, raw.TokenFile),
		TLS:         r.tlsFiles("NATS_TLS", raw.TLS),
		InboxPrefix: r.text("NATS_INBOX_PREFIX", raw.InboxPrefix),
		JSDomain:    r.text("NATS_JS_DOMAIN", raw.JSDomain),

		URLFile: strings.TrimSpace(raw.URLFile), PasswordFile: strings.TrimSpace(raw.PasswordFile), TokenFile: strings.TrimSpace(raw.TokenFile),
	}
	if p := cfg.NATS.InboxPrefix; p != "" && (!validSubject(p) || strings.ContainsAny(p, "*>")) {
		r.faultf("NATS_INBOX_PREFIX", p, "is not a subject without wildcards; use one such as _SLUICE")
	}
	if d := cfg.NATS.JSDomain; d != "" && !plainName.MatchString(d) {
		r.faultf("NATS_JS_DOMAIN", d, "is not a domain; use one without spaces, dots, colons, slashes and wildcards")
	}
	r.checkNATSAuth(raw, cfg.NATS)
}

// natsURLs reads the list of servers. An entry without a scheme is host:port, as nats.go has it.
func (r *reader) natsURLs(raw *natsEnvironment) []URL {
	var urls []URL
	sockets := 0
	name := "NATS_URL"
	list := string(r.secret(name, raw.URL, raw.URLFile))
	for item := range strings.SplitSeq(list, ",") {
		u := URL(strings.TrimSpace(item))
		if u == "" {
			continue
		}
		full := string(u)
		if !strings.Contains(full, "://") {
			full = "nats://" + full
		}
		parsed, err := url.Parse(full)
		switch {
		case err != nil || parsed.Hostname() == "":
			r.faultf(name, u, "is not a URL; use one such as nats://host:4222, with special characters of a password percent-encoded")
		case parsed.Scheme == "ws" || parsed.Scheme == "wss":
			sockets++
		case parsed.Scheme != "nats" && parsed.Scheme != "tls":
			r.faultf(name, u, "has the unknown scheme %q; use nats, tls, ws or wss", parsed.Scheme)
		}
		urls = append(urls, u)
	}
	if sockets > 0 && sockets < len(urls) {
		r.faultf(name, joinURLs(urls), "mixes WebSocket and other addresses; use one kind")
	}
	if len(urls) == 0 && list != "" { // else its file is at fault
		r.faultf(name, list, "names no server; use one such as nats://host:4222")
	}
	return urls
}

func joinURLs(urls []URL) string {
	texts := make([]string, len(urls))
	for i, u := range urls {
		texts[i] = u.String()
	}
	return strings.Join(texts, ",")
}

// checkNATSAuth lets at most one way of authentication pass.
func (r *reader) checkNATSAuth(raw *natsEnvironment, n NATSConfig) {
	var ways []string
	add := func(set bool, name string) {
		if set {
			ways = append(ways, prefix+name)
		}
	}
	has := func(texts ...string) bool { return strings.TrimSpace(strings.Join(texts, "")) != "" }
	user, password := has(raw.User), has(raw.Password, raw.PasswordFile)
	if password && !user {
		r.fault("NATS_PASSWORD", "is set without a user; set SLUICE_NATS_USER, too")
	}
	add(has(raw.Creds), "NATS_CREDS")
	add(has(raw.Nkey), "NATS_NKEY")
	add(user || password, "NATS_USER")
	add(has(raw.Token, raw.TokenFile), "NATS_TOKEN")
	for _, u := range n.URLs {
		if u.hasUser() {
			add(true, "NATS_URL (user in the URL)")
			break
		}
	}
	if len(ways) > 1 {
		r.fault(strings.Fields(ways[0])[0], "is one of several ways to authenticate: "+strings.Join(ways, ", ")+"; use one of them")
	}
}

// servers is the list as nats.go takes it, with users and passwords.
func (c NATSConfig) servers() string {
	all := make([]string, len(c.URLs))
	for i, u := range c.URLs {
		all[i] = string(u)
	}
	return strings.Join(all, ",")
}
