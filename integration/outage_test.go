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
)

// outageTime is how long Redis is away.
func outageTime() time.Duration {
	if testenv.Soak() {
		return 10 * time.Second
	}
	return 2500 * time.Millisecond
}

// outage is a drill: three workers, keys with more events than their limit allows beside quiet ones, and Redis that is
// killed and comes back empty.
type outage struct {
	*world
	workers      []*testenv.WorkerProcess
	killed, back time.Time
	stop         chan struct{}
	publishing   sync.WaitGroup
	busy, quiet  int
}

// begin starts the workers and the load: perSecond events of each of two busy keys, and 5 of each of ten quiet ones.
func beginOutage(t *testing.T, perSecond int, env ...string) *outage {
	t.Helper()
	o := &outage{world: newWorld(t), stop: make(chan struct{}), busy: 2, quiet: 10}
	o.measures = true
	o.workers = o.world.workers(3, append(env, fmt.Sprintf("LIMIT=%d/s burst %d", outageRate, outageBurst))...)
	known := time.After(2200 * time.Millisecond) // so long they listen until they know all of them
	time.Sleep(1500 * time.Millisecond)
	for i := range o.busy {
		o.load(fmt.Sprintf("busy%d", i), 1, time.Second/time.Duration(perSecond))
	}
	for i := range o.quiet {
		o.load(fmt.Sprintf("quiet%d", i), 1, time.Second/5)
	}
	<-known
	return o
}

// load publishes n events of key every so often, until the drill's load ends.
func (o *outage) load(key string, n int, every time.Duration) {
	o.publishing.Go(func() {
		pace := time.NewTicker(every)
		defer pace.Stop()
		for {
			select {
			case <-o.stop:
				return
			case <-pace.C:
				o.publish(key, n, 0)
			}
		}
	})
}

// run kills Redis for the time of the outage and lets the load go on for a moment after.
func (o *outage) run() { o.runWith(o.redis.Kill, o.redis.Start, outageTime(), time.Second) }

func (o *outage) runWith(leave, comeBack func(), away, after time.Duration) {
	o.killed = time.Now()
	leave()
	time.Sleep(away)
	o.back = time.Now()
	comeBack()
	time.Sleep(after)
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
	o.told()
	o.t.Logf("%d events, %d duplicates", len(o.ids()), o.duplicates())
}

// told fails the test unless each worker has said once that Redis is away and once that it is back.
func (o *outage) told() {
	o.t.Helper()
	for _, w := range o.workers {
		for _, line := range []string{"Redis is away", "Redis is back"} {
			if n := strings.Count(w.Output(), line); n != 1 {
				o.t.Errorf("%q was said %d times:\n%s", line, n, w.Output())
			}
		}
	}
}

// delivered waits until all events of the keys that want chooses are delivered.
func (o *outage) delivered(want func(key string) bool, within time.Duration) {
	o.t.Helper()
	deadline := time.Now().Add(within)
	for {
		pushed := map[string]bool{}
		for _, r := range o.receiver.Requests() {
			pushed[r.ID] = true
		}
		left := 0
		for _, id := range o.ids() {
			if key, _, _ := strings.Cut(id, "-"); want(key) && !pushed[id] {
				left++
			}
		}
		if left == 0 {
			return
		}
		if time.Now().After(deadline) {
			o.t.Fatalf("%d events are not delivered %s after the load", left, within)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// promptly is the share of the events of the keys that want chooses, published while Redis was away, that were delivered
// within a second.
func (o *outage) promptly(want func(key string) bool) float64 {
	arrived := map[string]time.Time{}
	for _, r := range o.receiver.Requests() {
		if arrived[r.ID].IsZero() {
			arrived[r.ID] = r.Arrived
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	all, prompt := 0, 0
	for id, at := range o.published {
		if key, _, _ := strings.Cut(id, "-"); !want(key) || at.Before(o.killed) || at.After(o.back) {
			continue
		}
		if all++; arrived[id].Sub(at) < time.Second {
			prompt++
		}
	}
	return float64(prompt) / float64(max(1, all))
}

// All workers lose Redis beside a flood: together they let pass what each limit allows, nearly all of it, and nobody notices
// the return.
func TestWorkersShareTheLimitsWhileRedisIsAway(t *testing.T) {
	beside(t)
	o := beginOutage(t, 58)
	flood, looks := 20, 800*time.Millisecond
	if testenv.Soak() { // 20,000 waiting events have to be indexed at the return
		flood, looks = 100, 3*time.Second
	}
	o.load("flood", flood, 50*time.Millisecond)
	// Buckets fill from a second after the index was rebuilt, which workers begin within a quarter of a second after the return.
	const exact, least = 1250 * time.Millisecond, 0.8
	o.runWith(o.redis.Kill, o.redis.Start, outageTime(), exact+looks)
	end := time.Now()
	used := func(key string, from, to time.Time) float64 {
		return float64(len(o.during(key, from, to))) / (outageRate * to.Sub(from).Seconds())
	}
	for _, key := range []string{"busy0", "busy1", "flood"} {
		away, after := used(key, o.killed, o.back), used(key, o.back.Add(exact), end)
		t.Logf("%s: used %.0f %% of its limit within %s without Redis, %.0f %% from %s after", key, 100*away,
			o.back.Sub(o.killed).Round(time.Millisecond), 100*after, exact)
		if away < least || after < least {
			t.Errorf("%s used %.0f %% of its limit while Redis was away and %.0f %% after", key, 100*away, 100*after)
		}
	}
	quiet := func(key string) bool { return strings.HasPrefix(key, "quiet") }
	o.delivered(func(key string) bool { return key != "flood" }, 20*time.Second)
	o.bounded(outageRate, outageBurst)
	o.conserved("after the return")
	o.told()
	all := o.latencies(quiet)
	prompt, p99 := o.promptly(quiet), testenv.Percentile(all, 99)
	t.Logf("quiet keys: p50 %s, p99 %s, %.1f %% within a second while Redis was away", testenv.Percentile(all, 50), p99, 100*prompt)
	if p99 > time.Second || prompt < 0.95 {
		t.Errorf("quiet keys' p99 is %s, and %.1f %% came within a second", p99, 100*prompt)
	}
	if n := sum(o.workers, "sluice_fallback_decisions_total"); n < 100 {
		t.Errorf("%v decisions were counted", n)
	}
}

// Redis hangs and goes on with all its data: its buckets have filled meanwhile, and that brings no burst.
func TestRedisThatComesBackWithItsDataBringsNoBurst(t *testing.T) {
	beside(t)
	o := beginOutage(t, 58)
	// A call ends after a second, and the next in its queue may begin just before Redis is taken for away.
	const noticed = 2 * time.Second
	o.runWith(o.redis.Pause, o.redis.Resume, noticed+outageTime()/2, 300*time.Millisecond)
	o.settled()
	o.bounded(outageRate, outageBurst)
	for i := range o.busy {
		key := fmt.Sprintf("busy%d", i)
		n, ideal := len(o.during(key, o.killed.Add(noticed), o.back)), outageRate*(o.back.Sub(o.killed)-noticed).Seconds()
		t.Logf("%s: %d pushes without Redis, ideal %.0f", key, n, ideal)
		if float64(n) < 0.8*ideal {
			t.Errorf("%s got %d pushes while Redis was away, want about %.0f", key, n, ideal)
		}
	}
}

func TestNothingIsPushedWhileRedisIsAwayIfSoSet(t *testing.T) {
	beside(t)
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
	beside(t)
	o := beginOutage(t, 60, "ON_REDIS_DOWN=open")
	o.run()
	from, to := o.killed.Add(time.Second), o.back
	n := len(o.during("busy0", from, to))
	if want := 60 * to.Sub(from).Seconds(); float64(n) < 0.9*want {
		t.Errorf("%d pushes within %s, want all of about %.0f", n, to.Sub(from), want)
	}
	if n := sum(o.workers, `sluice_fallback_decisions_total{policy="open"}`); n < 200 {
		t.Errorf("%v decisions were counted", n)
	}
	o.settled()
}

// One of three workers is cut off from Redis: the others get its events, and the limit holds.
func TestWorkerThatAloneIsWithoutRedisLeavesItsEventsToOthers(t *testing.T) {
	beside(t)
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
