package testenv

import (
	"context"
	"testing"

	"github.com/redis/go-redis/v9"
)

func TestProxyPassesOnUntilItIsCut(t *testing.T) {
	t.Parallel()
	server := Redis(t)
	direct, err := redis.ParseURL(server.URL())
	if err != nil {
		t.Fatal(err)
	}
	p := Proxy(t, direct.Addr)
	opt, err := redis.ParseURL(p.URL(t, server.URL()))
	if err != nil {
		t.Fatal(err)
	}
	opt.MaxRetries, opt.DialerRetries = -1, 1
	rdb := redis.NewClient(opt)
	defer func() { _ = rdb.Close() }()
	works := func(ctx context.Context) bool { return rdb.Ping(ctx).Err() == nil }
	if !works(t.Context()) {
		t.Fatal("nothing passes")
	}
	p.Cut()
	for range 3 {
		if works(t.Context()) {
			t.Error("something passes a cut proxy")
		}
	}
	p.Mend()
	if !eventually(startTimeout, func() bool { return works(t.Context()) }) {
		t.Error("nothing passes after it was mended")
	}
}
