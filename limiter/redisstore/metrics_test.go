package redisstore

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"sluice/limiter"
)

func TestRegistryOfAnotherLimiterIsAnErrorAndStaysAsItIs(t *testing.T) {
	t.Parallel()
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer func() { _ = rdb.Close() }()
	limits := limiter.Limits{{Events: 1, Period: time.Second, Burst: 1}}
	open := func(reg prometheus.Registerer) error {
		_, err := NewLimiter(rdb, limits, LimiterOptions{Registry: reg})
		return err
	}
	has := func(reg *prometheus.Registry) int {
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		return len(families)
	}

	reg := prometheus.NewRegistry()
	if err := open(reg); err != nil {
		t.Fatal(err)
	}
	all := has(reg)
	err := open(reg)
	if _, twice := errors.AsType[prometheus.AlreadyRegisteredError](err); !twice || !strings.Contains(err.Error(), "WrapRegistererWithPrefix") {
		t.Errorf("a second limiter: %v", err)
	}
	if n := has(reg); n != all || all < 5 {
		t.Errorf("%d metrics after that, %d before", n, all)
	}
	if err := open(prometheus.WrapRegistererWithPrefix("second_", reg)); err != nil {
		t.Errorf("the second with a prefix: %v", err)
	}

	other := prometheus.NewRegistry() // has one of the names for something else
	other.MustRegister(prometheus.NewGauge(prometheus.GaugeOpts{Name: "sluice_limiter_breaker_state", Help: "Another."}))
	if err := open(other); err == nil {
		t.Error("a name that is taken is no error")
	}
	if n := has(other); n != 1 {
		t.Errorf("%d metrics are left of a limiter that there isn't, want none beside the one before", n-1)
	}
}
