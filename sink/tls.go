package sink

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/url"
)

// clientTLS is what the transport secures connections by: to the receiver, and to a proxy with TLS. A config's own authorities
// are those of when it was made, so that here the certificate is verified by VerifyConnection, as crypto/tls does it, by those
// of now.
func clientTLS(cfg WebhookConfig, proxy *url.URL) *tls.Config {
	if cfg.TLS == nil {
		return nil
	}
	receiver, _ := parseAddress(cfg.URL)
	return &tls.Config{
		MinVersion:         tls.VersionTLS12,
		InsecureSkipVerify: true, // VerifyConnection verifies
		VerifyConnection: func(state tls.ConnectionState) error {
			return verify(state, cfg.TLS(context.Background()).RootCAs, serverName(state, receiver, proxy))
		},
		GetClientCertificate: func(asked *tls.CertificateRequestInfo) (*tls.Certificate, error) {
			for _, c := range cfg.TLS(asked.Context()).Certificates {
				if asked.SupportsCertificate(&c) == nil {
					return &c, nil
				}
			}
			return new(tls.Certificate), nil // none
		},
	}
}

// serverName is whose certificate is expected. The state has no name of a server that is called by its IP address.
func serverName(state tls.ConnectionState, receiver *address, proxy *url.URL) string {
	if state.ServerName != "" {
		return state.ServerName
	}
	if host := receiver.hostname(); net.ParseIP(host) != nil || proxy == nil {
		return host
	}
	return proxy.Hostname()
}

func verify(state tls.ConnectionState, authorities *x509.CertPool, name string) error {
	if name == "" || len(state.PeerCertificates) == 0 {
		return errors.New("the receiver shows no certificate that can be verified")
	}
	options := x509.VerifyOptions{Roots: authorities, DNSName: name, Intermediates: x509.NewCertPool()}
	for _, c := range state.PeerCertificates[1:] {
		options.Intermediates.AddCert(c)
	}
	if _, err := state.PeerCertificates[0].Verify(options); err != nil {
		return &tls.CertificateVerificationError{UnverifiedCertificates: state.PeerCertificates, Err: err}
	}
	return nil
}
