package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"time"
)

// soonExpired is how long before its end a certificate is told of.
const soonExpired = 14 * 24 * time.Hour

func checkReceiver(ctx context.Context, cfg Config, f *findings) {
	const about = "receiver"
	if cfg.Sink != "webhook" {
		f.add(fine, about, "events go to the sink "+cfg.Sink, "")
		return
	}
	hook, err := cfg.webhook(slog.New(slog.DiscardHandler))
	if err != nil {
		f.add(fault, about, reason(err), "")
		return
	}
	defer hook.Close()
	met, err := hook.Reach(ctx)
	if err != nil {
		f.add(fault, about, fmt.Sprintf("%s can't be reached: %s", cfg.Webhook.URL, reason(err)), "check SLUICE_WEBHOOK_URL, DNS, proxies and firewalls")
		return
	}
	answers := fmt.Sprintf("%s answers (HEAD /: %d)", cfg.Webhook.URL, met.Status)
	switch {
	case met.Status == http.StatusBadRequest && speaksTLS(ctx, cfg):
		f.add(fault, about, answers+", but speaks TLS at this port", "write https:// in SLUICE_WEBHOOK_URL: as it is, each push is refused for good")
	case met.Status == http.StatusBadRequest:
		f.add(warning, about, answers+", which says that it doesn't understand", "look whether it wants a client certificate, or another protocol or name")
	case met.Status == http.StatusProxyAuthRequired:
		f.add(fault, about, answers+": a proxy wants a password", "give the proxy's URL in HTTP_PROXY a user and a password")
	case met.Status >= 500 && met.Status != http.StatusNotImplemented:
		f.add(warning, about, answers+", which pushes would wait for", "look whether the receiver, and what stands before it, works")
	default:
		f.add(fine, about, answers, "")
	}
	if len(cfg.Webhook.Secrets) == 0 {
		f.add(warning, about, "pushes are not signed", "set SLUICE_WEBHOOK_SECRETS, so that the receiver can tell them from others'")
	}
	if left := time.Until(met.Expiry); !met.Expiry.IsZero() && left < soonExpired {
		f.add(warning, about, "its certificate ends "+met.Expiry.UTC().Format(time.DateTime), "have it renewed: pushes fail after that")
	}
}

// speaksTLS says whether the receiver of a URL with http:// is one for https:// with the same port.
func speaksTLS(ctx context.Context, cfg Config) bool {
	to, err := url.Parse(string(cfg.Webhook.URL))
	if err != nil || to.Scheme != "http" {
		return false
	}
	port := to.Port()
	if port == "" {
		port = "80"
	}
	cfg.Webhook.URL = URL("https://" + net.JoinHostPort(to.Hostname(), port) + "/")
	hook, err := cfg.webhook(slog.New(slog.DiscardHandler))
	if err != nil {
		return false
	}
	defer hook.Close()
	_, err = hook.Reach(ctx)
	var distrusted *tls.CertificateVerificationError
	var alert tls.AlertError
	return err == nil || errors.As(err, &distrusted) || errors.As(err, &alert)
}
