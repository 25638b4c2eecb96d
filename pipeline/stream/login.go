package stream

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/url"
	"strings"
	"sync/atomic"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"sluice/pipeline/freshfile"
)

// login is who sluice is, and the servers with whatever of that doesn't change. What comes from files is asked for at each
// attempt to connect.
func (l *link) login() (list []nats.Option, servers []string, err error) {
	c := l.cfg
	servers = c.urls()
	switch {
	case c.Creds != "":
		creds, err := freshfile.Open(l.log, "SLUICE_NATS_CREDS", parseCreds, c.Creds)
		if err != nil {
			return nil, nil, &Fault{"SLUICE_NATS_CREDS: the file can't be used", err}
		}
		list = append(list, byCreds(creds))
	case c.NKey != "":
		seeds, err := freshfile.Open(l.log, "SLUICE_NATS_NKEY", parseSeed, c.NKey)
		if err != nil {
			return nil, nil, &Fault{"SLUICE_NATS_NKEY: the file holds no seed of a user", err}
		}
		list = append(list, l.byNkey(seeds))
	case c.PasswordFile != "":
		password := freshfile.New(c.Password, l.log, "SLUICE_NATS_PASSWORD_FILE", freshfile.Secret, c.PasswordFile)
		list = append(list, nats.UserInfoHandler(func() (string, string) { return c.User, current(password) }))
	case c.User != "" || c.Password != "":
		list = append(list, nats.UserInfo(c.User, c.Password))
	case c.TokenFile != "":
		token := freshfile.New(c.Token, l.log, "SLUICE_NATS_TOKEN_FILE", freshfile.Secret, c.TokenFile)
		list = append(list, nats.TokenHandler(func() string { return current(token) }))
	case c.Token != "":
		list = append(list, nats.Token(c.Token))
	case c.URLFile != "":
		if user, bare := userOf(servers); user != nil {
			users := freshfile.New(user, l.log, "SLUICE_NATS_URL_FILE", parseUser, c.URLFile)
			list, servers = append(list, byUser(users)...), bare
		}
	}
	return list, servers, nil
}

// current is a value as nats.go asks for it: amid connecting, where nothing ends a short wait.
func current[T any](v *freshfile.Value[T]) T { return v.Await(context.Background()) }

// credentials are what a file of credentials holds.
type credentials struct {
	jwt  string
	seed []byte
}

func parseCreds(texts []string) (*credentials, error) {
	jwt, err := nkeys.ParseDecoratedJWT([]byte(texts[0]))
	if err != nil {
		return nil, err
	}
	pair, err := nkeys.ParseDecoratedNKey([]byte(texts[0]))
	if err != nil {
		return nil, err
	}
	defer pair.Wipe()
	seed, err := pair.Seed()
	if err != nil {
		return nil, err
	}
	if strings.TrimSpace(jwt) == "" {
		return nil, errors.New("holds no JWT")
	}
	return &credentials{strings.TrimSpace(jwt), bytes.Clone(seed)}, nil // it is wiped with the pair
}

// byCreds signs with the seed of the JWT that was sent.
func byCreds(v *freshfile.Value[*credentials]) nats.Option {
	var sent atomic.Pointer[credentials]
	return nats.UserJWT(func() (string, error) {
		now := current(v)
		sent.Store(now)
		return now.jwt, nil
	}, func(nonce []byte) ([]byte, error) { return signed(sent.Load().seed, nonce) })
}

func signed(seed, nonce []byte) ([]byte, error) {
	pair, err := nkeys.FromSeed(seed)
	if err != nil {
		return nil, err
	}
	defer pair.Wipe()
	return pair.Sign(nonce)
}

// nkey is a user's key.
type nkey struct {
	public string
	seed   []byte
}

func parseSeed(texts []string) (*nkey, error) {
	pair, err := nkeys.ParseDecoratedNKey([]byte(texts[0]))
	if err != nil {
		return nil, err
	}
	defer pair.Wipe()
	public, err := pair.PublicKey()
	if err != nil {
		return nil, err
	}
	if !nkeys.IsValidPublicUserKey(public) {
		return nil, errors.New("not the seed of a user")
	}
	seed, err := pair.Seed()
	if err != nil {
		return nil, err
	}
	return &nkey{public, bytes.Clone(seed)}, nil
}

// byNkey has the public key set anew before each connection: nats.go asks for the signature only.
func (l *link) byNkey(v *freshfile.Value[*nkey]) nats.Option {
	var shown atomic.Pointer[nkey]
	first := v.Now()
	shown.Store(first)
	l.nkey = func() {
		now := current(v)
		shown.Store(now)
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.public != nil {
			*l.public = now.public
		}
	}
	return nats.Nkey(first.public, func(nonce []byte) ([]byte, error) { return signed(shown.Load().seed, nonce) })
}

// connect is opts.Connect. From then on the connection's own options are what its dials have to change: they are made by the
// goroutine that reads them next, under the connection's lock.
func (l *link) connect(opts *nats.Options) (*nats.Conn, error) {
	if l.nkey != nil {
		l.mu.Lock()
		l.public = &opts.Nkey
		l.mu.Unlock()
		l.nkey() // the dial is too late for this one, which has a copy of the options
	}
	nc, err := opts.Connect()
	if err == nil {
		l.mu.Lock()
		l.public, l.nc = &nc.Opts.Nkey, nc
		l.mu.Unlock()
	}
	return nc, err
}

// userOf is the user that all servers' URLs name, and the URLs without it; nil if they name none, or not the same.
func userOf(servers []string) (user *url.Userinfo, bare []string) {
	for _, s := range servers {
		u, err := url.Parse(s)
		if err != nil || u.User == nil || user != nil && *user != *u.User {
			return nil, nil
		}
		user, u.User = u.User, nil
		bare = append(bare, u.String())
	}
	return user, bare
}

func parseUser(texts []string) (*url.Userinfo, error) {
	user, _ := userOf(Config{URLs: strings.TrimSpace(texts[0])}.urls())
	if user == nil {
		return nil, errors.New("doesn't name the same user in each URL")
	}
	return user, nil
}

// byUser is the login of a URL: a user alone is a token.
func byUser(v *freshfile.Value[*url.Userinfo]) []nats.Option {
	var asked atomic.Pointer[url.Userinfo]
	return []nats.Option{
		nats.UserInfoHandler(func() (string, string) {
			now := current(v)
			asked.Store(now)
			if password, ok := now.Password(); ok {
				return now.Username(), password
			}
			return "", ""
		}),
		nats.TokenHandler(func() string { // is asked after the other
			if now := asked.Load(); now != nil {
				if _, ok := now.Password(); !ok {
					return now.Username()
				}
			}
			return ""
		}),
	}
}

// secured is how connections are secured beside what the URLs say.
func (l *link) secured() ([]nats.Option, error) {
	c := l.cfg
	if c.TLSCA == "" && c.TLSCert == "" {
		return nil, nil
	}
	files, err := freshfile.OpenTLS(l.log, "SLUICE_NATS_TLS_…", c.TLSCA, c.TLSCert, c.TLSKey)
	if err != nil {
		return nil, &Fault{"setting up the connection to NATS (SLUICE_NATS_TLS_*)", err}
	}
	var certificate nats.TLSCertHandler
	if c.TLSCert != "" {
		certificate = func() (tls.Certificate, error) { return current(files).Certificates[0], nil }
	}
	var authorities nats.RootCAsHandler
	if c.TLSCA != "" {
		authorities = func() (*x509.CertPool, error) { return current(files).RootCAs, nil }
	}
	return []nats.Option{nats.ClientTLSConfig(certificate, authorities)}, nil
}
