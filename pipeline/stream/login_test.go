package stream

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nkeys"
)

// rotation is a login by files, which is exchanged at the server and then in the files.
type rotation struct {
	t      *testing.T
	dir    string
	before func(*server.Options, *Config) // also writes the files
	server func(*server.Server, *server.Options)
	files  func(Config)
}

func (r *rotation) write(name, text string) string {
	r.t.Helper()
	path := filepath.Join(r.dir, name)
	if err := errors.Join(os.WriteFile(path+".new", []byte(text), 0o600), os.Rename(path+".new", path)); err != nil {
		r.t.Fatal(err)
	}
	return path
}

var rotations = map[string]func(*rotation){
	"password": func(r *rotation) {
		r.before = func(o *server.Options, c *Config) {
			o.Users = []*server.User{{Username: "worker", Password: "hunter1"}}
			c.User, c.Password, c.PasswordFile = "worker", "hunter1", r.write("password", "hunter1\n")
		}
		r.server = func(_ *server.Server, o *server.Options) {
			o.Users = []*server.User{{Username: "worker", Password: "hunter2"}}
		}
		r.files = func(Config) { r.write("password", "hunter2\n") }
	},
	"token": func(r *rotation) {
		r.before = func(o *server.Options, c *Config) {
			o.Authorization, c.Token, c.TokenFile = "hunter1", "hunter1", r.write("token", "hunter1")
		}
		r.server = func(_ *server.Server, o *server.Options) { o.Authorization = "hunter2" }
		r.files = func(Config) { r.write("token", "hunter2") }
	},
	"user in the URL": func(r *rotation) {
		r.before = func(o *server.Options, c *Config) {
			o.Users = []*server.User{{Username: "worker", Password: "hunter1"}}
			c.URLs = strings.ReplaceAll(c.URLs, "//", "//worker:hunter1@")
			c.URLFile = r.write("url", c.URLs)
		}
		r.server = func(_ *server.Server, o *server.Options) {
			o.Users = []*server.User{{Username: "worker2", Password: "hunter2%"}}
		}
		r.files = func(c Config) { r.write("url", strings.ReplaceAll(c.URLs, "worker:hunter1", "worker2:hunter2%25")) }
	},
	"token in the URL": func(r *rotation) {
		r.before = func(o *server.Options, c *Config) {
			o.Authorization = "hunter1"
			c.URLs = strings.ReplaceAll(c.URLs, "//", "//hunter1@")
			c.URLFile = r.write("url", c.URLs)
		}
		r.server = func(_ *server.Server, o *server.Options) { o.Authorization = "hunter2" }
		r.files = func(c Config) { r.write("url", strings.ReplaceAll(c.URLs, "hunter1", "hunter2")) }
	},
	"nkey": func(r *rotation) {
		old, next := newNkey(r.t), newNkey(r.t)
		r.before = func(o *server.Options, c *Config) {
			o.Nkeys = []*server.NkeyUser{{Nkey: old.public}}
			c.NKey = r.write("seed", string(old.seed))
		}
		r.server = func(_ *server.Server, o *server.Options) { o.Nkeys = []*server.NkeyUser{{Nkey: next.public}} }
		r.files = func(Config) { r.write("seed", string(next.seed)) }
	},
	"creds": func(r *rotation) {
		issuer := newIssuer(r.t)
		old, oldText := issuer.user()
		_, nextText := issuer.user()
		r.before = func(o *server.Options, c *Config) {
			issuer.rule(o)
			c.Creds = r.write("creds", oldText)
		}
		r.server = func(ns *server.Server, _ *server.Options) { issuer.revoke(ns, old) }
		r.files = func(Config) { r.write("creds", nextText) }
	},
	"certificates": func(r *rotation) {
		old, next := newTLSPair(r.t), newTLSPair(r.t)
		r.before = func(o *server.Options, c *Config) {
			o.TLSConfig = old.config()
			c.URLs = strings.ReplaceAll(c.URLs, "nats://", "tls://")
			c.TLSCA, c.TLSCert, c.TLSKey = r.write("ca", old.ca), r.write("cert", old.cert), r.write("key", old.key)
		}
		r.server = func(_ *server.Server, o *server.Options) { o.TLSConfig = next.config() }
		r.files = func(Config) {
			r.write("key", next.key) // doesn't belong to the certificate yet
			r.write("cert", next.cert)
			r.write("ca", next.ca)
		}
	},
}

// The login is exchanged at the server, later in the file, while a worker is connected, which is refused between: it goes on by
// itself within seconds, and a file that can't be used is none.
func TestExchangedLoginIsFollowed(t *testing.T) {
	t.Parallel()
	for name, make := range rotations {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := &rotation{t: t, dir: t.TempDir()}
			make(r)
			opts := &server.Options{ServerName: "test", Host: "127.0.0.1", NoSigs: true, NoLog: true, AuthTimeout: 5, TLSTimeout: 5}
			free, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			opts.Port = free.Addr().(*net.TCPAddr).Port
			_ = free.Close()
			cfg := Config{URLs: "nats://" + free.Addr().String(), Name: "sluice"}
			r.before(opts, &cfg)
			opts.TLS = opts.TLSConfig != nil
			ns := startServer(t, opts.Clone())
			var out logged
			nc, err := Connect(t.Context(), cfg, out.log())
			if err != nil {
				t.Fatal(err)
			}
			defer nc.Close()

			for _, path := range []string{cfg.PasswordFile, cfg.TokenFile, cfg.Creds, cfg.NKey, cfg.TLSCA, cfg.URLFile} {
				if path != "" {
					if err := os.Truncate(path, 0); err != nil {
						t.Fatal(err)
					}
				}
			}
			kick(t, ns)
			eventually(t, "connected by what was read before", func() bool {
				return nc.IsConnected() && strings.Contains(out.String(), "connected to NATS again")
			})

			r.server(ns, opts)
			if name != "creds" {
				if err := ns.ReloadOptions(opts.Clone()); err != nil {
					t.Fatal(err)
				}
			}
			kick(t, ns)
			eventually(t, "refused", func() bool {
				return !nc.IsConnected() && (strings.Contains(out.String(), "refused the login") || strings.Contains(out.String(), "x509"))
			})
			time.Sleep(time.Second) // some more attempts
			if n := strings.Count(out.String(), "refused the login"); n > 2 {
				t.Errorf("it is told %d times that the login is refused:\n%s", n, &out)
			}
			if why := Trouble(nc); !strings.Contains(why, "refused the login") && !strings.Contains(why, "x509") {
				t.Errorf("the trouble is %q, %s: %s", why, nc.Status(), &out)
			}
			r.files(cfg)
			eventually(t, "connected by what the files hold now", func() bool {
				return nc.IsConnected() && strings.Contains(out.String(), "read again")
			})
			if why := Trouble(nc); why != "" {
				t.Errorf("connected, and the trouble is %q", why)
			}
			if n := strings.Count(out.String(), "can't be used"); n != 1 {
				t.Errorf("an empty file was told %d times:\n%s", n, &out)
			}
			if strings.Contains(out.String(), "hunter") {
				t.Errorf("a secret is logged:\n%s", &out)
			}
		})
	}
}

// kick ends all connections of clients.
func kick(t *testing.T, ns *server.Server) {
	t.Helper()
	all, err := ns.Connz(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range all.Conns {
		_ = ns.DisconnectClientByID(c.Cid) // gone by itself
	}
}

func newNkey(t *testing.T) *nkey {
	t.Helper()
	pair, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	seed, err := pair.Seed()
	if err != nil {
		t.Fatal(err)
	}
	public, err := pair.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	return &nkey{public, seed}
}

// issuer is an operator with an account.
type issuer struct {
	t                 *testing.T
	operator, account nkeys.KeyPair
	claims            *jwt.AccountClaims
}

func newIssuer(t *testing.T) *issuer {
	t.Helper()
	i := &issuer{t: t}
	var err, err2 error
	i.operator, err = nkeys.CreateOperator()
	i.account, err2 = nkeys.CreateAccount()
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	i.claims = jwt.NewAccountClaims(publicOf(t, i.account))
	return i
}

func publicOf(t *testing.T, pair nkeys.KeyPair) string {
	t.Helper()
	public, err := pair.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	return public
}

func (i *issuer) rule(o *server.Options) {
	i.t.Helper()
	text, err := jwt.NewOperatorClaims(publicOf(i.t, i.operator)).Encode(i.operator)
	if err != nil {
		i.t.Fatal(err)
	}
	operator, err := jwt.DecodeOperatorClaims(text)
	if err != nil {
		i.t.Fatal(err)
	}
	o.TrustedOperators = []*jwt.OperatorClaims{operator}
	resolver := &server.MemAccResolver{}
	if err := resolver.Store(i.claims.Subject, i.encoded()); err != nil {
		i.t.Fatal(err)
	}
	o.AccountResolver = resolver
}

func (i *issuer) encoded() string {
	i.t.Helper()
	text, err := i.claims.Encode(i.operator)
	if err != nil {
		i.t.Fatal(err)
	}
	return text
}

// user answers a new user's public key and file of credentials.
func (i *issuer) user() (public, creds string) {
	i.t.Helper()
	key := newNkey(i.t)
	text, err := jwt.NewUserClaims(key.public).Encode(i.account)
	if err != nil {
		i.t.Fatal(err)
	}
	file, err := jwt.FormatUserConfig(text, key.seed)
	if err != nil {
		i.t.Fatal(err)
	}
	return key.public, string(file)
}

func (i *issuer) revoke(ns *server.Server, user string) {
	i.t.Helper()
	i.claims.RevokeAt(user, time.Now().Add(time.Minute))
	text := i.encoded()
	account, err := ns.LookupAccount(i.claims.Subject)
	if err != nil {
		i.t.Fatal(err)
	}
	claims, err := jwt.DecodeAccountClaims(text)
	if err != nil {
		i.t.Fatal(err)
	}
	ns.UpdateAccountClaims(account, claims)
}

// tlsPair is an authority with a certificate of 127.0.0.1, as PEM.
type tlsPair struct {
	t             *testing.T
	ca, cert, key string
}

func newTLSPair(t *testing.T) *tlsPair {
	t.Helper()
	template := func(n int64) *x509.Certificate {
		return &x509.Certificate{
			SerialNumber: big.NewInt(n), Subject: pkix.Name{CommonName: "test"}, NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
		}
	}
	ca, leaf := template(1), template(2)
	ca.IsCA, ca.BasicConstraintsValid, ca.KeyUsage = true, true, x509.KeyUsageCertSign
	leaf.IPAddresses, leaf.KeyUsage = []net.IP{net.IPv4(127, 0, 0, 1)}, x509.KeyUsageDigitalSignature
	leaf.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	key, err2 := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	caDER, err := x509.CreateCertificate(rand.Reader, ca, ca, &caKey.PublicKey, caKey)
	leafDER, err2 := x509.CreateCertificate(rand.Reader, leaf, ca, &key.PublicKey, caKey)
	keyDER, err3 := x509.MarshalPKCS8PrivateKey(key)
	if err := errors.Join(err, err2, err3); err != nil {
		t.Fatal(err)
	}
	text := func(kind string, der []byte) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
	}
	return &tlsPair{t, text("CERTIFICATE", caDER), text("CERTIFICATE", leafDER), text("PRIVATE KEY", keyDER)}
}

// config is a server's, which takes clients with a certificate of the authority only.
func (p *tlsPair) config() *tls.Config {
	p.t.Helper()
	pair, err := tls.X509KeyPair([]byte(p.cert), []byte(p.key))
	if err != nil {
		p.t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM([]byte(p.ca))
	return &tls.Config{Certificates: []tls.Certificate{pair}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS12}
}
