package stream

import (
	"context"

	"github.com/nats-io/nats.go/jetstream"
)

// ensureLimits creates or compares the KV bucket of the limits. Without one SLUICE_LIMIT rules, so that it may be missing.
func ensureLimits(ctx context.Context, js jetstream.JetStream, cfg Config) (Action, error) {
	return ensureBucket(ctx, js, cfg, bucket{
		name: cfg.names().LimitsBucket(), about: "Limits that rule while it runs", holds: "limits",
		history: limitsHistory, maxValue: maxLimitValue,
		without: "SLUICE_LIMIT rules, and no limit can be changed while workers run",
	})
}
