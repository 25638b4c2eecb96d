package redisstore

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// gate is a hook of a server's client that opens no connection for a moment after the server has refused a login: each call
// makes one of its own then, and those whose callers ask again soon would be hundreds a second. Connections that stand are used.
type gate struct{ last atomic.Pointer[refusedLogin] }

type refusedLogin struct {
	at  time.Time
	err error
}

// kept is a refusal that was told before.
type kept struct{ error }

func (k kept) Unwrap() error { return k.error }

// DialHook is called for each connection.
func (g *gate) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		if last := g.last.Load(); last != nil && time.Since(last.at) < trialEvery {
			return nil, kept{last.err}
		}
		return next(ctx, network, address)
	}
}

// ProcessHook is called for each command; one that needs a connection is told what its login was.
func (g *gate) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if _, old := errors.AsType[kept](err); !old && redis.IsAuthError(err) {
			g.last.Store(&refusedLogin{time.Now(), err})
		}
		return err
	}
}

// ProcessPipelineHook is not needed: nobody makes pipelines.
func (*gate) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
