package limiter_test

import (
	"testing"

	"sluice/limiter"
	"sluice/limiter/limitertest"
)

func TestLocalConforms(t *testing.T) {
	t.Parallel()
	limitertest.Run(t, func(t *testing.T, limits limiter.Limits) limitertest.Limiter {
		l, err := limiter.NewLocal(limits)
		if err != nil {
			t.Fatal(err)
		}
		return l
	})
}
