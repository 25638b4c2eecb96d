package testenv

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

// TLSFiles are the paths of PEM files: an authority, and a certificate of 127.0.0.1 for servers and clients with its key.
type TLSFiles struct {
	CA, Cert, Key string
}

// Certificates makes an authority and a certificate that are good for an hour.
func Certificates(t testing.TB) TLSFiles {
	t.Helper()
	now := time.Now()
	authority := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"},
		NotBefore: now.Add(-time.Minute), NotAfter: now.Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "test"},
		NotBefore: now.Add(-time.Minute), NotAfter: now.Add(time.Hour),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{"localhost"},
	}
	authorityKey, leafKey := newKey(t), newKey(t)
	ca := sign(t, authority, authority, authorityKey, authorityKey)
	cert := sign(t, leaf, authority, leafKey, authorityKey)
	key, err := x509.MarshalPKCS8PrivateKey(leafKey)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write := func(name, kind string, der []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	return TLSFiles{
		CA: write("ca.pem", "CERTIFICATE", ca), Cert: write("cert.pem", "CERTIFICATE", cert), Key: write("key.pem", "PRIVATE KEY", key),
	}
}

// Config is for a client that shows the certificate.
func (f TLSFiles) Config(t testing.TB) *tls.Config {
	t.Helper()
	ca, err := os.ReadFile(f.CA)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.LoadX509KeyPair(f.Cert, f.Key)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	return &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{pair}, ServerName: "127.0.0.1", MinVersion: tls.VersionTLS12}
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func sign(t testing.TB, template, parent *x509.Certificate, key, parentKey *ecdsa.PrivateKey) []byte {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, parentKey)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

// RedisTLS starts a Redis that listens with TLS, too, and there takes only clients with a certificate of files' authority.
// url is that address.
func RedisTLS(t testing.TB, files TLSFiles, extraArgs ...string) (server *RedisServer, url string) {
	t.Helper()
	port := freePort(t)
	args := append([]string{
		"--tls-port", strconv.Itoa(port), "--tls-ca-cert-file", files.CA, "--tls-cert-file", files.Cert, "--tls-key-file", files.Key,
		"--tls-auth-clients", "yes",
	}, extraArgs...)
	return Redis(t, args...), "rediss://" + loopback(port) + "/0"
}
