package stream

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/nats-io/nats.go/jetstream"
)

// bucket is a KV bucket of sluice's own.
type bucket struct {
	name     string
	about    string // its description
	holds    string
	without  string // what comes of it when it is missing
	history  uint8
	maxValue int32
}

// ensureBucket creates or compares a KV bucket.
func ensureBucket(ctx context.Context, js jetstream.JetStream, cfg Config, want bucket) (Action, error) {
	action := Action{Object: "KV bucket " + want.name}
	s, err := js.Stream(ctx, "KV_"+want.name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		if cfg.Setup == SetupOff {
			action.Did, action.Detail = "missing", want.without
			return action, nil
		}
		doing := "creating " + action.Object
		_, err = js.CreateKeyValue(ctx, jetstream.KeyValueConfig{
			Bucket: want.name, Description: "sluice: " + want.about, History: want.history,
			MaxValueSize: want.maxValue, Storage: jetstream.FileStorage, Replicas: cfg.Replicas,
		})
		if err == nil {
			action.Did = "created"
			return action, nil
		}
		if !errors.Is(err, jetstream.ErrBucketExists) {
			return action, explain(js.Conn(), doing, remedy(doing, "the bucket", err))
		}
		s, err = js.Stream(ctx, "KV_"+want.name) // another worker was faster
	}
	if err != nil {
		return action, explain(js.Conn(), "looking for "+action.Object, err)
	}
	return fitBucket(ctx, js, cfg, want, s.CachedInfo().Config)
}

// fitBucket refuses a bucket that would forget values, and brings its replicas in line.
func fitBucket(ctx context.Context, js jetstream.JetStream, cfg Config, want bucket, is jetstream.StreamConfig) (Action, error) {
	action := Action{Object: "KV bucket " + want.name, Did: "exists"}
	var unfit []string
	if subjects := []string{"$KV." + want.name + ".>"}; !slices.Equal(is.Subjects, subjects) {
		unfit = append(unfit, fmt.Sprintf("subjects is %v, wanted %v", is.Subjects, subjects))
	}
	if is.MaxAge != 0 {
		unfit = append(unfit, fmt.Sprintf("ttl is %s, wanted none", is.MaxAge))
	}
	if is.MaxMsgsPerSubject < 1 {
		unfit = append(unfit, "it isn't a KV bucket")
	}
	if len(unfit) > 0 {
		action.Did, action.Detail = "differs", strings.Join(unfit, "; ")
		return action, &Fault{Text: fmt.Sprintf("%s can't keep %s: %s: change it, or set another SLUICE_NAME", action.Object, want.holds, action.Detail)}
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
