package sink

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// authority signs certificates.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) authority {
	t.Helper()
	a := authority{t: t}
	a.cert = &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: t.Name()}, NotBefore: time.Now().Add(-time.Minute),
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	var pair tls.Certificate
	pair, a.key = a.sign(a.cert, nil)
	a.cert = pair.Leaf
	return a
}

// sign makes a certificate; by itself, without a key of the authority.
func (a authority) sign(c *x509.Certificate, by *ecdsa.PrivateKey) (tls.Certificate, *ecdsa.PrivateKey) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	if by == nil {
		by = key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, a.cert, &key.PublicKey, by)
	if err != nil {
		a.t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, key
}

// certificate is one of names and addresses, to be changed.
func (a authority) certificate(change func(*x509.Certificate), hosts ...string) tls.Certificate {
	a.t.Helper()
	c := &x509.Certificate{
		SerialNumber: big.NewInt(2), NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			c.IPAddresses = append(c.IPAddresses, ip)
		} else {
			c.DNSNames = append(c.DNSNames, host)
		}
	}
	if change != nil {
		change(c)
	}
	pair, _ := a.sign(c, a.key)
	return pair
}

func (a authority) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return pool
}

// tlsReceiver is a receiver whose certificate and authority for clients a test may change.
type tlsReceiver struct {
	*httptest.Server
	now atomic.Pointer[tls.Config]
}

func newTLSReceiver(t *testing.T) *tlsReceiver {
	t.Helper()
	r := &tlsReceiver{Server: httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))}
	r.Config.ErrorLog = discardLog
	r.TLS = &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return r.now.Load(), nil }}
	r.Config.SetKeepAlivesEnabled(false) // each push is a connection
	r.StartTLS()
	t.Cleanup(r.Close)
	return r
}

func (r *tlsReceiver) by(host string) string { return strings.Replace(r.URL, "127.0.0.1", host, 1) }

// The receiver goes to another authority and wants a certificate of it; the files are exchanged, and pushes go on.
func TestCertificatesAreFollowed(t *testing.T) {
	t.Parallel()
	for _, host := range []string{"127.0.0.1", "localhost"} {
		old, next := newAuthority(t), newAuthority(t)
		r := newTLSReceiver(t)
		r.now.Store(&tls.Config{Certificates: []tls.Certificate{old.certificate(nil, host)}})
		var files atomic.Pointer[tls.Config]
		files.Store(&tls.Config{RootCAs: old.pool()})
		w := newTestWebhook(t, r.by(host), func(c *WebhookConfig) {
			c.TLS = func(context.Context) *tls.Config { return files.Load() }
		})
		pushes := func(what string, want bool) {
			t.Helper()
			if err := w.Push(t.Context(), testEvent()); (err == nil) != want {
				t.Errorf("%s, %s: %v", host, what, err)
			}
		}
		pushes("before", true)
		r.now.Store(&tls.Config{
			Certificates: []tls.Certificate{next.certificate(nil, host)}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: next.pool(),
		})
		pushes("another authority", false)
		files.Store(&tls.Config{RootCAs: next.pool()})
		pushes("no certificate", false)
		files.Store(&tls.Config{RootCAs: next.pool(), Certificates: []tls.Certificate{old.certificate(nil, "me")}})
		pushes("one of the old authority", false)
		files.Store(&tls.Config{RootCAs: next.pool(), Certificates: []tls.Certificate{next.certificate(nil, "me")}})
		pushes("after", true)
	}
}

func TestCertificatesThatDontVerifyAreRefused(t *testing.T) {
	t.Parallel()
	ours, other := newAuthority(t), newAuthority(t)
	expired := func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Second) }
	client := func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} }
	for name, c := range map[string]struct {
		host  string
		shown tls.Certificate
	}{
		"of another authority":           {"localhost", other.certificate(nil, "localhost", "127.0.0.1")},
		"of another name":                {"localhost", ours.certificate(nil, "example.com", "127.0.0.1")},
		"of a name, called by address":   {"127.0.0.1", ours.certificate(nil, "localhost")},
		"of another address":             {"127.0.0.1", ours.certificate(nil, "127.0.0.2", "localhost")},
		"of nothing":                     {"127.0.0.1", ours.certificate(nil)},
		"expired":                        {"127.0.0.1", ours.certificate(expired, "127.0.0.1")},
		"for clients":                    {"127.0.0.1", ours.certificate(client, "127.0.0.1")},
		"expired, of a name":             {"localhost", ours.certificate(expired, "localhost")},
		"of another authority's address": {"127.0.0.1", other.certificate(nil, "127.0.0.1")},
	} {
		r := newTLSReceiver(t)
		r.now.Store(&tls.Config{Certificates: []tls.Certificate{c.shown}})
		w := newTestWebhook(t, r.by(c.host), func(cfg *WebhookConfig) {
			cfg.TLS = func(context.Context) *tls.Config { return &tls.Config{RootCAs: ours.pool()} }
		})
		if err := w.Push(t.Context(), testEvent()); Class(err) != classNetwork {
			t.Errorf("a certificate %s: %v", name, err)
		}
	}
}

// Through a proxy, whether it speaks TLS itself or not, the receiver's certificate is verified by the receiver's name.
func TestCertificatesAreVerifiedBehindAProxy(t *testing.T) {
	t.Parallel()
	ours := newAuthority(t)
	files := func(context.Context) *tls.Config { return &tls.Config{RootCAs: ours.pool()} }
	for name, c := range map[string]struct {
		proxied  bool // with TLS
		receiver string
		shown    string
		want     bool
	}{
		"by address":                    {false, "127.0.0.1", "127.0.0.1", true},
		"by name":                       {false, "localhost", "localhost", true},
		"of another name":               {false, "localhost", "127.0.0.1", false},
		"by a proxy with TLS":           {true, "localhost", "localhost", true},
		"of another name, over TLS":     {true, "localhost", "example.com", false},
		"of the proxy's name, over TLS": {true, "localhost", "127.0.0.1", false},
	} {
		r := newTLSReceiver(t)
		r.now.Store(&tls.Config{Certificates: []tls.Certificate{ours.certificate(nil, c.shown)}})
		proxy := httptest.NewUnstartedServer(http.HandlerFunc(tunnel))
		proxy.Config.ErrorLog = discardLog
		if c.proxied {
			proxy.TLS = &tls.Config{Certificates: []tls.Certificate{ours.certificate(nil, "127.0.0.1")}}
			proxy.StartTLS()
		} else {
			proxy.Start()
		}
		t.Cleanup(proxy.Close)
		cfg := WebhookConfig{URL: r.by(c.receiver), Timeout: 5 * time.Second, Concurrency: 1, TLS: files}
		w := newTestWebhook(t, cfg.URL)
		at, err := url.Parse(proxy.URL)
		if err != nil {
			t.Fatal(err)
		}
		w.connections.transport = newTransport(cfg, at)
		if err := w.Push(t.Context(), testEvent()); (err == nil) != c.want {
			t.Errorf("%s: %v", name, err)
		}
		w.Close()
	}
}

// tunnel is a proxy's CONNECT.
func tunnel(w http.ResponseWriter, r *http.Request) {
	far, err := net.Dial("tcp", r.Host)
	if err != nil {
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	defer func() { _ = far.Close() }()
	near, _, err := w.(http.Hijacker).Hijack()
	if err != nil {
		return
	}
	defer func() { _ = near.Close() }()
	_, _ = io.WriteString(near, "HTTP/1.1 200 OK\r\n\r\n")
	go func() { _, _ = io.Copy(far, near); _ = far.Close() }()
	_, _ = io.Copy(near, far)
}

func TestExchangedSecretsSignTheNextPush(t *testing.T) {
	t.Parallel()
	pushed := make(chan received, 1)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		pushed <- received{header: r.Header, body: body}
	}))
	defer server.Close()
	var secrets atomic.Pointer[[]string]
	use := func(list ...string) { secrets.Store(&list) }
	use(secretOf(32))
	w := newTestWebhook(t, server.URL, func(c *WebhookConfig) {
		c.Secrets = *secrets.Load()
		c.SecretsNow = func() []string { return *secrets.Load() }
	})
	signs := func(what string, secrets ...string) {
		t.Helper()
		if err := w.Push(t.Context(), testEvent()); err != nil {
			t.Fatal(err)
		}
		r := <-pushed
		if got := len(strings.Fields(r.header.Get("webhook-signature"))); got != len(secrets) {
			t.Errorf("%s: %d signatures, want %d", what, got, len(secrets))
		}
		for _, secret := range secrets {
			s, err := newSigner([]string{secret})
			if err != nil {
				t.Fatal(err)
			}
			if err := s[0].Verify(r.body, r.header); err != nil {
				t.Errorf("%s: not by %s: %v", what, secret, err)
			}
		}
	}
	signs("before", secretOf(32))
	use(secretOf(40), secretOf(32))
	signs("both", secretOf(40), secretOf(32))
	use("nonsense")
	signs("a faulty list counts for nothing", secretOf(40), secretOf(32))
	use(secretOf(40))
	signs("after", secretOf(40))
}
