package redisstore

import (
	"cmp"
	"context"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// Address says which Redis is used and how it is reached. Exactly one of the fields is set.
type Address struct {
	Single   *redis.Options
	Sentinel *redis.FailoverOptions
	Cluster  *redis.ClusterOptions
}

// client returns a client with the options that the store relies on.
func (a Address) client() redis.UniversalClient {
	switch {
	case a.Sentinel != nil:
		o := a.Sentinel
		tune(options{
			&o.MaxRetries, &o.DialerRetries, &o.PoolSize, &o.Protocol, &o.DialTimeout, &o.ReadTimeout, &o.WriteTimeout,
			&o.PoolTimeout, &o.ConnMaxLifetime, &o.ContextTimeoutEnabled, &o.DisableIdentity,
		})
		// A replica knows only what was so some time ago, and refuses to write.
		o.ReplicaOnly, o.RouteByLatency, o.RouteRandomly, o.UseDisconnectedReplicas = false, false, false, false
		return redis.NewFailoverClient(o)
	case a.Cluster != nil:
		o := a.Cluster
		tune(options{
			&o.MaxRetries, &o.DialerRetries, &o.PoolSize, &o.Protocol, &o.DialTimeout, &o.ReadTimeout, &o.WriteTimeout,
			&o.PoolTimeout, &o.ConnMaxLifetime, &o.ContextTimeoutEnabled, &o.DisableIdentity,
		})
		o.ReadOnly, o.RouteByLatency, o.RouteRandomly = false, false, false
		o.MaxRedirects = 3              // to where a slot has moved; see once
		o.DisableRoutingPolicies = true // every call names its keys, so COMMAND needs to be neither asked nor permitted
		o.ClusterStateReloadInterval = 10 * time.Second
		o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
		c := redis.NewClusterClient(o)
		c.AddHook(once{c})
		return c
	default:
		o := a.Single
		tune(options{
			&o.MaxRetries, &o.DialerRetries, &o.PoolSize, &o.Protocol, &o.DialTimeout, &o.ReadTimeout, &o.WriteTimeout,
			&o.PoolTimeout, &o.ConnMaxLifetime, &o.ContextTimeoutEnabled, &o.DisableIdentity,
		})
		o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
		return redis.NewClient(o)
	}
}

// options are those that all kinds of clients have.
type options struct {
	maxRetries, dialerRetries, poolSize, protocol                        *int
	dialTimeout, readTimeout, writeTimeout, poolTimeout, connMaxLifetime *time.Duration
	contextTimeoutEnabled, disableIdentity                               *bool
}

// tune sets what correctness needs. By default go-redis runs a script up to four times when a reply is lost, and ignores
// the deadline of a call.
func tune(o options) {
	*o.maxRetries = -1
	*o.dialerRetries = 1
	*o.contextTimeoutEnabled = true
	*o.dialTimeout = time.Second
	*o.readTimeout = callTimeout
	*o.writeTimeout = callTimeout
	*o.poolSize = cmp.Or(*o.poolSize, 32) // in a Cluster: of each node
	*o.poolTimeout = callTimeout
	*o.connMaxLifetime = 30 * time.Minute
	*o.disableIdentity = true
	*o.protocol = 2
}

// once is a hook of a Cluster's client. By itself that counts attempts and redirections as one and so repeats a call whose
// reply is lost, however its nodes' clients are told not to. Only MOVED, ASK and READONLY are followed up: nothing was run.
type once struct{ client *redis.ClusterClient }

// unrepeated is a command that is sent once.
type unrepeated struct{ redis.Cmder }

func (unrepeated) NoRetry() bool { return true }

func (once) DialHook(next redis.DialHook) redis.DialHook { return next }

func (once) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// ProcessHook also has the client look for the slots' new places as soon as a node fails; the dead can't say MOVED.
func (o once) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, unrepeated{cmd})
		if away(err) {
			o.client.ReloadState(ctx)
		}
		return err
	}
}
