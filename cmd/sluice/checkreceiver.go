package main

import (
	"context"
	"fmt"
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
	hook, err := cfg.webhook()
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
	f.add(fine, about, fmt.Sprintf("%s answers (HEAD /: %d)", cfg.Webhook.URL, met.Status), "")
	if len(cfg.Webhook.Secrets) == 0 {
		f.add(warning, about, "pushes are not signed", "set SLUICE_WEBHOOK_SECRETS, so that the receiver can tell them from others'")
	}
	if left := time.Until(met.Expiry); !met.Expiry.IsZero() && left < soonExpired {
		f.add(warning, about, "its certificate ends "+met.Expiry.UTC().Format(time.DateTime), "have it renewed: pushes fail after that")
	}
}
