package pipeline

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"sluice/limiter"
)

// outage is a limiter whose server is away for a while.
type outage struct {
	mu      sync.Mutex
	changed chan struct{}
	err     func(changed chan struct{}) error // nil: it lets everything pass
	calls   int
}

func (o *outage) Reserve(context.Context, string, string, int64, time.Duration) (limiter.Decision, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.calls++
	if o.err != nil {
		return limiter.Decision{}, o.err(o.changed)
	}
	return limiter.Decision{Verdict: limiter.Go, At: time.Now(), Stale: time.Now().Add(time.Second)}, nil
}

func (o *outage) set(err func(chan struct{}) error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.err = err
	close(o.changed)
	o.changed = make(chan struct{})
}

func TestEventsWaitForAServerThatIsAwayAndGoOnAsSoonAsItIsBack(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, r *rig) {
		o := &outage{changed: make(chan struct{})}
		o.set(func(changed chan struct{}) error { return fmt.Errorf("redis: %w", &Away{Changed: changed}) })
		r.limiter = o
		stop := r.start()
		r.publish("k", 10)
		pass(time.Minute)
		if n := r.count("delivered"); n != 0 {
			t.Errorf("%d events were delivered while the server was away", n)
		}
		if o.calls > 10*40 {
			t.Errorf("it was asked %d times within a minute", o.calls)
		}
		o.set(nil)
		pass(time.Millisecond)
		if n := r.count("delivered"); n != 10 {
			t.Errorf("%d events were delivered at once, want 10", n)
		}
		if n, list := r.log.about(); n != 0 {
			t.Errorf("it was logged by the page too:\n%s", list)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// A call that fails again and again although nobody takes the server for away is told of in the end.
func TestFailureThatNobodyTakesForAnOutageIsLogged(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, r *rig) {
		o := &outage{changed: make(chan struct{})}
		o.set(func(changed chan struct{}) error { return &Away{Cause: errFault, Changed: changed} })
		r.limiter = o
		stop := r.start()
		r.publish("k", 3)
		pass(time.Second)
		if n, list := r.log.about(); n != 0 {
			t.Errorf("logged at once:\n%s", list)
		}
		pass(10 * time.Second)
		if n, list := r.log.about(); n != 1 {
			t.Errorf("%d lines, want one:\n%s", n, list)
		}
		o.set(nil)
		pass(time.Second)
		if n, list := r.log.about(); n != 2 || r.count("delivered") != 3 {
			t.Errorf("%d lines, want that it works again; %d delivered:\n%s", n, r.count("delivered"), list)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestEventThatOthersAreToHaveGoesBackToTheSource(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, r *rig) {
		o := &outage{changed: make(chan struct{})}
		o.set(func(changed chan struct{}) error { return &Away{Changed: changed} })
		r.limiter = o
		stop := r.start()
		r.publish("k", 1)
		pass(time.Second)
		asked := o.calls
		o.set(func(chan struct{}) error { return ErrElsewhere })
		r.wantTrace(t, "hand back, append, park, ack") // redelivered, so it goes to its lane
		if o.calls != asked+2 {                        // and once more when it came again
			t.Errorf("it was asked %d times more", o.calls-asked)
		}
		o.set(nil)
		pass(10 * time.Second)
		r.wantRest(t)
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}
