package pipeline

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"sluice/limiter"
)

func TestTierIsReadFromTheHeader(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"pro": "pro", " Pro-2.x ": "Pro-2.x", "": "", "two words": "", "tab\tbed": "", "\xff": "",
		strings.Repeat("x", 64): strings.Repeat("x", 64), strings.Repeat("x", 65): "",
	} {
		if got := TierOf(Header{"sluice-TIER": {text}}); got != want {
			t.Errorf("%q: tier %q, want %q", text, got, want)
		}
	}
}

// tierLog is a limiter and an index that note the tiers they are called with. All lanes are of the tier gold.
type tierLog struct {
	indexOf
	mu     sync.Mutex
	called []string
}

func (l *tierLog) note(call, tier string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.called = append(l.called, call+" "+tier)
}

func (l *tierLog) Reserve(ctx context.Context, key, tier string, cost int64, horizon time.Duration) (limiter.Decision, error) {
	l.note("reserve", tier)
	return l.indexOf.Reserve(ctx, key, tier, cost, horizon)
}

func (l *tierLog) Park(ctx context.Context, r ParkRequest) (LaneInfo, error) {
	l.note("park", r.Tier)
	return l.indexOf.Park(ctx, r)
}

func (l *tierLog) Lease(ctx context.Context, r LeaseRequest) (Lease, error) {
	l.note("lease", r.Tier)
	got, err := l.indexOf.Lease(ctx, r)
	got.Tier = "gold"
	return got, err
}

func (l *tierLog) Settle(ctx context.Context, r SettleRequest) (LaneInfo, error) {
	l.note("settle", r.Tier)
	return l.indexOf.Settle(ctx, r)
}

func TestTierOfAnEventGoesWithItAndThatOfALaneComesFromTheIndex(t *testing.T) {
	for tier, allowed := range map[string]bool{"pro": true, "": false} {
		t.Run(tier, func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, r *rig) {
				r.cfg.Tiers = allowed
				r.index.limits["a"] = limit{every: 150 * time.Millisecond, burst: 1}
				log := &tierLog{indexOf: indexOf{r.index, "worker"}}
				r.limiter = log
				stop := r.start(func(w *Worker) { w.Index = log })
				r.publish("a", 30, func(d *delivery) { d.ev.Header = Header{"Sluice-Tier": {"pro"}} })
				pass(10 * time.Second)
				_ = stop()
				want := []string{"lease ", "lease gold", "park " + tier, "reserve " + tier, "settle gold"}
				slices.Sort(log.called) // the first lease of a lane knows no tier, the others do
				if got := slices.Compact(log.called); !slices.Equal(got, want) {
					t.Errorf("tiers count: %t: called with %q, want %q", allowed, got, want)
				}
			})
		})
	}
}
