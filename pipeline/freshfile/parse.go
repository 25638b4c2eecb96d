package freshfile

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"strings"
)

// Secret is a text without the space around it. An empty one is an error.
func Secret(texts []string) (string, error) {
	text := strings.TrimSpace(texts[0])
	if text == "" {
		return "", errors.New("is empty")
	}
	return text, nil
}

// CAs are the certificate authorities of a PEM text.
func CAs(text string) (*x509.CertPool, error) {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM([]byte(text)) {
		return nil, errors.New("holds no certificate")
	}
	return pool, nil
}

// OpenTLS returns what the paths of PEM files say, as a config for clients that must not be changed: authorities (no path: the
// system's) and a certificate with its key (no paths: the client shows none), which count when they belong together.
func OpenTLS(log *slog.Logger, name, ca, cert, key string) (*Value[*tls.Config], error) {
	var paths []string
	for _, path := range []string{ca, cert, key} {
		if path != "" {
			paths = append(paths, path)
		}
	}
	return Open(log, name, func(texts []string) (*tls.Config, error) {
		config := &tls.Config{MinVersion: tls.VersionTLS12}
		if ca != "" {
			pool, err := CAs(texts[0])
			if err != nil {
				return nil, err
			}
			config.RootCAs, texts = pool, texts[1:]
		}
		if cert != "" {
			pair, err := tls.X509KeyPair([]byte(texts[0]), []byte(texts[1]))
			if err != nil {
				return nil, err
			}
			config.Certificates = []tls.Certificate{pair}
		}
		return config, nil
	}, paths...)
}
