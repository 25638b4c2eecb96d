package integration

import (
	"fmt"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"sluice/integration/testenv"
)

const (
	outageRate  = 50
	outageBurst = 10
	outageTime  = 4 * time.Second
)

// outage is a drill: three workers, keys with more events than their limit allows beside quiet ones, and Redis that is
// killed and comes back empty.
type outage struct {
	*world
	workers        []*testenv.WorkerProcess
	killed, back   time.Time
	stop           chan struct{}
	publishing     sync.WaitGroup
	flooded, quiet int
}

// begin starts the workers and the load: perSecond events of each of two flooded keys, and 5 of each of ten quiet ones.
func beginOutage(t *testing.T, perSecond int, env ...string) *outage {
	t.Helper()
	o := &outage{world: newWorld(t), stop: make(chan struct{}), flooded: 2, quiet: 10}
	o.measures = true
	o.workers = o.world.workers(3, append(env, fmt.Sprintf("LIMIT=%d/s burst %d", outageRate, outageBurst))...)
	time.Sleep(2 * time.Second) // so that the workers know of each other
	load := func(key string, perSecond int) {
		o.publishing.Go(func() {
			pace := time.NewTicker(time.Second / time.Duration(perSecond))
			defer pace.Stop()
			for {
				select {
				case <-o.stop:
					return
				case <-pace.C:
					o.publish(key, 1, 0)
				}
			}
		})
	}
	for i := range o.flooded {
		load(fmt.Sprintf("flood%d", i), perSecond)
	}
	for i := range o.quiet {
		load(fmt.Sprintf("quiet%d", i), 5)
	}
	time.Sleep(500 * time.Millisecond)
	return o
}

// run kills Redis for the time of the outage and lets the load go on for a moment after.
func (o *outage) run() { o.runWith(o.redis.Kill, o.redis.Start) }

func (o *outage) runWith(leave, comeBack func()) {
	o.killed = time.Now()
	leave()
	time.Sleep(outageTime)
	o.back = time.Now()
	comeBack()
	time.Sleep(time.Second)
	close(o.stop)
	o.publishing.Wait()
}

// during are the pushes of key between two moments.
func (o *outage) during(key string, from, to time.Time) (times []time.Time) {
	for _, at := range byKey(o.receiver.Requests())[key] {
		if !at.Before(from) && at.Before(to) {
			times = append(times, at)
		}
	}
	return times
}

// settled waits until all is delivered, and fails the test if anything is lost or left.
func (o *outage) settled() {
	o.t.Helper()
	o.receiver.WaitForDelivered(len(o.ids()), 40*time.Second)
	o.atRest(0)
	for _, w := range o.workers {
		for _, line := range []string{"Redis is away", "Redis is back"} {
			if n := strings.Count(w.Output(), line); n != 1 {
				o.t.Errorf("%q was said %d times:\n%s", line, n, w.Output())
			}
		}
	}
	o.t.Logf("%d events, %d duplicates", len(o.ids()), o.duplicates())
}

// All workers lose Redis: together they let pass what one limit allows, all of it, and nobody notices the return.
func TestWorkersShareTheLimitsWhileRedisIsAway(t *testing.T) {
	o := beginOutage(t, 65)
	o.run()
	end := time.Now()
	for i := range o.flooded {
		key := fmt.Sprintf("flood%d", i)
		n := len(o.during(key, o.killed, o.back))
		used := float64(n) / (outageRate * o.back.Sub(o.killed).Seconds())
		after := len(o.during(key, o.back, end))
		t.Logf("%s: %d pushes within %s without Redis, %.0f %% of the rate; %d within %s after", key, n,
			o.back.Sub(o.killed).Round(time.Millisecond), 100*used, after, end.Sub(o.back).Round(time.Millisecond))
		if used < 0.8 {
			t.Errorf("%s got %.0f %% of its rate while Redis was away", key, 100*used)
		}
	}
	o.settled()
	o.bounded(outageRate, outageBurst)
	o.mu.Lock()
	late := 0
	var all []time.Duration
	for _, r := range o.receiver.Requests() {
		if at, ok := o.published[r.ID]; ok && strings.HasPrefix(r.Key, "quiet") && r.Attempt == 1 {
			all = append(all, r.Arrived.Sub(at))
			if r.Arrived.Sub(at) > time.Second {
				late++
			}
		}
	}
	o.mu.Unlock()
	p99 := testenv.Percentile(all, 99)
	t.Logf("quiet keys: p50 %s, p99 %s, %d of %d above 1 s", testenv.Percentile(all, 50), p99, late, len(all))
	if p99 > time.Second {
		t.Errorf("quiet keys' p99 is %s", p99)
	}
	if n := sum(o.workers, "sluice_fallback_decisions_total"); n < 100 {
		t.Errorf("%v decisions were counted", n)
	}
}

// Redis hangs and goes on with all its data: its buckets have filled meanwhile, and that brings no burst.
func TestRedisThatComesBackWithItsDataBringsNoBurst(t *testing.T) {
	o := beginOutage(t, 65)
	o.runWith(o.redis.Pause, o.redis.Resume)
	o.settled()
	o.bounded(outageRate, outageBurst)
	for i := range o.flooded {
		key := fmt.Sprintf("flood%d", i)
		// It takes up to a second until a Redis that hangs is taken for away.
		n, ideal := len(o.during(key, o.killed, o.back)), outageRate*(o.back.Sub(o.killed)-time.Second).Seconds()
		t.Logf("%s: %d pushes without Redis", key, n)
		if float64(n) < 0.8*ideal {
			t.Errorf("%s got %d pushes while Redis was away, want about %.0f", key, n, ideal)
		}
	}
}

func TestNothingIsPushedWhileRedisIsAwayIfSoSet(t *testing.T) {
	o := beginOutage(t, 30, "ON_REDIS_DOWN=closed")
	o.run()
	const promised = time.Second // what Redis had promised before, and its outage was noticed
	for _, r := range o.receiver.Requests() {
		if r.Arrived.After(o.killed.Add(promised+200*time.Millisecond)) && r.Arrived.Before(o.back) {
			t.Errorf("%s was pushed %s after Redis was killed", r.ID, r.Arrived.Sub(o.killed))
		}
	}
	o.settled()
	o.bounded(outageRate, outageBurst)
}

func TestEverythingPassesWhileRedisIsAwayIfSoSet(t *testing.T) {
	o := beginOutage(t, 60, "ON_REDIS_DOWN=open")
	o.run()
	from, to := o.killed.Add(time.Second), o.back
	n := len(o.during("flood0", from, to))
	if want := 60 * to.Sub(from).Seconds(); float64(n) < 0.9*want {
		t.Errorf("%d pushes within %s, want all of about %.0f", n, to.Sub(from), want)
	}
	if n := sum(o.workers, `sluice_fallback_decisions_total{policy="open"}`); n < 300 {
		t.Errorf("%v decisions were counted", n)
	}
	o.settled()
}

// One of three workers is cut off from Redis: the others get its events, and the limit holds.
func TestWorkerThatAloneIsWithoutRedisLeavesItsEventsToOthers(t *testing.T) {
	w := newWorld(t)
	redis, err := url.Parse(w.redis.URL())
	if err != nil {
		t.Fatal(err)
	}
	proxy := testenv.Proxy(t, redis.Host)
	env := []string{fmt.Sprintf("LIMIT=%d/s burst %d", outageRate, outageBurst)}
	workers := w.workers(2, env...)
	alone := w.worker(append(env, "REDIS_URL="+proxy.URL(t, w.redis.URL()))...)
	alone.WaitReady(30 * time.Second)
	time.Sleep(2 * time.Second)

	enough := make(chan struct{})
	var loading sync.WaitGroup
	loading.Go(func() { w.loadUntil(enough, 10, outageRate+5) })
	time.Sleep(time.Second)
	proxy.Cut()
	cut := time.Now()
	time.Sleep(2 * time.Second)
	received := alone.Metrics()["sluice_events_received_total"]
	close(enough)
	loading.Wait()
	w.receiver.WaitForDelivered(len(w.ids()), 20*time.Second) // the leases of the one run out first
	took := time.Since(cut)
	if n := alone.Metrics()["sluice_events_received_total"]; n != received {
		t.Errorf("the worker without Redis took %v events", n-received)
	}
	proxy.Mend()
	w.atRest(0)
	w.bounded(outageRate, outageBurst)
	t.Logf("%d events, all delivered %s after the cut, %d duplicates, %v orphans", len(w.ids()), took.Round(time.Millisecond),
		w.duplicates(), sum(append(workers, alone), "sluice_orphans_total"))
	deadline := time.Now().Add(5 * time.Second)
	for !strings.Contains(alone.Output(), "Redis is back") && time.Now().Before(deadline) {
		time.Sleep(20 * time.Millisecond)
	}
	n := alone.Metrics()["sluice_events_received_total"]
	w.load(20, 5, 100*time.Millisecond)
	w.receiver.WaitForDelivered(len(w.ids()), 10*time.Second)
	if n == alone.Metrics()["sluice_events_received_total"] {
		t.Error("the worker takes no events although it sees Redis again")
	}
	for _, line := range []string{"Redis is away", "other workers see Redis", "Redis is back"} {
		if n := strings.Count(alone.Output(), line); n != 1 {
			t.Errorf("%q was said %d times:\n%s", line, n, alone.Output())
		}
	}
}
