package stream

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/nats-io/nats.go/jetstream"
)

// ensureLimits creates or compares the KV bucket of the limits. Without one SLUICE_LIMIT rules, so that it may be missing.
func ensureLimits(ctx context.Context, js jetstream.JetStream, cfg Config) (Action, error) {
	n := cfg.names()
	action := Action{Object: "KV bucket " + n.LimitsBucket()}
	s, err := js.Stream(ctx, n.limitsStream())
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		if cfg.Setup == SetupOff {
			action.Did, action.Detail = "missing", "SLUICE_LIMIT rules, and no limit can be changed while workers run"
			return action, nil
		}
		doing := "creating " + action.Object
		_, err = js.CreateKeyValue(ctx, jetstream.KeyValueConfig{
			Bucket: n.LimitsBucket(), Description: "sluice: Limits that rule while it runs", History: limitsHistory,
			MaxValueSize: maxLimitValue, Storage: jetstream.FileStorage, Replicas: cfg.Replicas,
		})
		if err == nil {
			action.Did = "created"
			return action, nil
		}
		if !errors.Is(err, jetstream.ErrBucketExists) {
			return action, explain(js.Conn(), doing, remedy(doing, "the bucket", err))
		}
		s, err = js.Stream(ctx, n.limitsStream()) // another worker was faster
	}
	if err != nil {
		return action, explain(js.Conn(), "looking for "+action.Object, err)
	}
	return fitLimits(ctx, js, cfg, s.CachedInfo().Config)
}

// fitLimits refuses a bucket that would forget rules, and brings its replicas in line.
func fitLimits(ctx context.Context, js jetstream.JetStream, cfg Config, is jetstream.StreamConfig) (Action, error) {
	n := cfg.names()
	action := Action{Object: "KV bucket " + n.LimitsBucket(), Did: "exists"}
	var unfit []string
	if want := []string{"$KV." + n.LimitsBucket() + ".>"}; !slices.Equal(is.Subjects, want) {
		unfit = append(unfit, fmt.Sprintf("subjects is %v, wanted %v", is.Subjects, want))
	}
	if is.MaxAge != 0 {
		unfit = append(unfit, fmt.Sprintf("ttl is %s, wanted none", is.MaxAge))
	}
	if is.MaxMsgsPerSubject < 1 {
		unfit = append(unfit, "it isn't a KV bucket")
	}
	if len(unfit) > 0 {
		action.Did, action.Detail = "differs", strings.Join(unfit, "; ")
		return action, &Fault{Text: fmt.Sprintf("%s can't keep limits: %s: change it, or set another SLUICE_NAME", action.Object, action.Detail)}
	}
	if is.Replicas == cfg.Replicas {
		return action, nil
	}
	action.Did, action.Detail = "differs", fmt.Sprintf("num_replicas %d -> %d", is.Replicas, cfg.Replicas)
	if cfg.Setup == SetupOff {
		return action, nil
	}
	is.Replicas = cfg.Replicas
	doing := "updating " + action.Object
	if _, err := js.UpdateStream(ctx, is); err != nil {
		return action, explain(js.Conn(), doing, remedy(doing, "the bucket", err))
	}
	action.Did = "updated"
	return action, nil
}
