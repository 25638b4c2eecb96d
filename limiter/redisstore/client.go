package redisstore

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// Address says which Redis is used and how it is reached. Exactly one of the first three fields is set.
type Address struct {
	Single   *redis.Options
	Sentinel *redis.FailoverOptions
	Cluster  *redis.ClusterOptions

	// Login is asked for user and password at each connection to a server that holds keys; nil: those of the options.
	Login func(context.Context) (username, password string)
	// TLS is asked for authorities and certificates at each connection, if the options have a TLSConfig; nil: those of it.
	TLS func(context.Context) *tls.Config
}

// NewClient returns a client with the options that limits are best kept by, whatever the address says of them: it dials and
// waits for no longer than a second, heeds the deadlines of calls, and asks the servers that hold the keys, never replicas. It
// connects when it is first used; the caller closes it. An address with another number of kinds than one is an error.
func NewClient(addr Address) (redis.UniversalClient, error) {
	kinds := 0
	for _, is := range []bool{addr.Single != nil, addr.Sentinel != nil, addr.Cluster != nil} {
		kinds += bit(is)
	}
	if kinds != 1 {
		return nil, fmt.Errorf("an address has one of Single, Sentinel and Cluster, not %d", kinds)
	}
	return addr.client(), nil
}

// client returns a client with the options that the store relies on.
func (a Address) client() redis.UniversalClient {
	switch {
	case a.Sentinel != nil:
		o := *a.Sentinel
		a.live(&o.CredentialsProviderContext, &o.Dialer, o.TLSConfig)
		tune(options{
			&o.MaxRetries, &o.DialerRetries, &o.PoolSize, &o.Protocol, &o.DialTimeout, &o.ReadTimeout, &o.WriteTimeout,
			&o.PoolTimeout, &o.ConnMaxLifetime, &o.ContextTimeoutEnabled, &o.DisableIdentity,
		})
		// A replica knows only what was so some time ago, and refuses to write.
		o.ReplicaOnly, o.RouteByLatency, o.RouteRandomly, o.UseDisconnectedReplicas = false, false, false, false
		c := redis.NewFailoverClient(&o)
		c.AddHook(&gate{})
		return c
	case a.Cluster != nil:
		o := *a.Cluster
		a.live(&o.CredentialsProviderContext, &o.Dialer, o.TLSConfig)
		tune(options{
			&o.MaxRetries, &o.DialerRetries, &o.PoolSize, &o.Protocol, &o.DialTimeout, &o.ReadTimeout, &o.WriteTimeout,
			&o.PoolTimeout, &o.ConnMaxLifetime, &o.ContextTimeoutEnabled, &o.DisableIdentity,
		})
		o.ReadOnly, o.RouteByLatency, o.RouteRandomly = false, false, false
		o.MaxRedirects = 3              // to where a slot has moved
		o.DisableRoutingPolicies = true // every call names its keys, so COMMAND needs to be neither asked nor permitted
		o.ClusterStateReloadInterval = 10 * time.Second
		o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
		c := redis.NewClusterClient(&o)
		c.OnNewNode(func(node *redis.Client) { node.AddHook(&gate{}) })
		return c
	default:
		o := *a.Single
		a.live(&o.CredentialsProviderContext, &o.Dialer, o.TLSConfig)
		tune(options{
			&o.MaxRetries, &o.DialerRetries, &o.PoolSize, &o.Protocol, &o.DialTimeout, &o.ReadTimeout, &o.WriteTimeout,
			&o.PoolTimeout, &o.ConnMaxLifetime, &o.ContextTimeoutEnabled, &o.DisableIdentity,
		})
		o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
		c := redis.NewClient(&o)
		c.AddHook(&gate{})
		return c
	}
}

// live has the client ask anew at each connection. base is the options' own.
func (a Address) live(
	login *func(context.Context) (string, string, error),
	dial *func(context.Context, string, string) (net.Conn, error), base *tls.Config,
) {
	if a.Login != nil {
		*login = func(ctx context.Context) (string, string, error) {
			username, password := a.Login(ctx)
			return username, password, nil
		}
	}
	if a.TLS == nil || base == nil {
		return
	}
	*dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		now, config := a.TLS(ctx), base.Clone()
		config.RootCAs, config.Certificates = now.RootCAs, now.Certificates
		dialer := tls.Dialer{NetDialer: &net.Dialer{Timeout: callTimeout, KeepAlive: 5 * time.Minute}, Config: config}
		return dialer.DialContext(ctx, network, address)
	}
}

// options are those that all kinds of clients have.
type options struct {
	maxRetries, dialerRetries, poolSize, protocol                        *int
	dialTimeout, readTimeout, writeTimeout, poolTimeout, connMaxLifetime *time.Duration
	contextTimeoutEnabled, disableIdentity                               *bool
}

// tune sets what keeps calls short. By default go-redis ignores the deadline of a call.
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

// once is a client of a known kind that sends each script once, whatever its options say. By itself go-redis repeats a call
// whose reply is lost, up to four times by default, and each time it takes its tokens once more; a Cluster's client counts attempts
// and redirections as one and so does that even if its nodes' clients are told not to. Only MOVED, ASK and READONLY are followed
// up: nothing was run.
type once struct {
	redis.UniversalClient
	cluster *redis.ClusterClient // nil: of another kind
}

// onceOf refuses clients of unknown kinds.
func onceOf(rdb redis.UniversalClient) (once, error) {
	switch c := rdb.(type) {
	case *redis.Client:
		if c != nil {
			return once{c, nil}, nil
		}
	case *redis.ClusterClient:
		if c != nil {
			return once{c, c}, nil
		}
	case *redis.Ring:
		return once{}, errors.New("a *redis.Ring can't keep limits: it spreads the keys of one call over servers that know nothing of " +
			"each other, and moves keys without their tokens; give a client of one of the servers, or of a Cluster, as NewClient makes")
	case nil:
	default:
		return once{}, fmt.Errorf("a client of type %T can't keep limits, as nobody knows which calls it repeats; give a *redis.Client or "+
			"*redis.ClusterClient, as NewClient makes, and add to that what is around it as a hook", rdb)
	}
	return once{}, errors.New("there is no client to keep limits by; give a *redis.Client or *redis.ClusterClient, as NewClient makes")
}

// EvalSha and Eval are what [redis.Script.Run] calls.

func (o once) EvalSha(ctx context.Context, sha string, keys []string, args ...any) *redis.Cmd {
	return o.send(ctx, "evalsha", sha, keys, args)
}

func (o once) Eval(ctx context.Context, script string, keys []string, args ...any) *redis.Cmd {
	return o.send(ctx, "eval", script, keys, args)
}

func (o once) send(ctx context.Context, name, script string, keys []string, args []any) *redis.Cmd {
	all := append(make([]any, 0, 3+len(keys)+len(args)), name, script, len(keys))
	for _, key := range keys {
		all = append(all, key)
	}
	cmd := redis.NewCmd(ctx, append(all, args...)...)
	err := o.Process(ctx, unrepeated{cmd})
	// The Cluster's slots may have found new places when a node fails; the dead can't say MOVED.
	if o.cluster != nil && away(err) {
		o.cluster.ReloadState(ctx)
	}
	return cmd
}

// unrepeated is a command that is sent once.
type unrepeated struct{ redis.Cmder }

func (unrepeated) NoRetry() bool { return true }
