package pipeline

import (
	"context"
	"sync"
	"time"

	"sluice/limiter"
)

// mortal is the world as one worker sees it that is killed at a step: the call is carried out and its answer never seen, and
// from then on nothing that the worker does has any effect.
type mortal struct {
	Ports
	step string // the call that is its last
	left int    // how often it is made until then

	mu   sync.Mutex
	dead bool
	open map[*delivery]bool // what the source still counts as on its way to it
}

// doomed starts a worker that dies right after the nth call of that name. bury stops what is left of it, and lets the source
// hand out anew what it had; it answers whether the worker has died.
func (r *rig) doomed(step string, nth int) (bury func() bool) {
	m := &mortal{step: step, left: nth, open: map[*delivery]bool{}}
	stop := r.start(func(w *Worker) {
		m.Ports = w.Ports
		w.Source, w.Limiter, w.Index, w.Lanes, w.DeadLetters, w.Sink = m, m, m, m, m, m
	})
	return func() bool {
		_ = stop()
		for d := range m.open {
			d.HandBack()
		}
		return m.dead
	}
}

func (m *mortal) isDead() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.dead
}

// reach counts a call that was carried out, and says whether the worker is dead now.
func (m *mortal) reach(step string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if step == m.step {
		m.left--
		m.dead = m.dead || m.left == 0
	}
	return m.dead
}

// carryOut makes one call, unless the worker is dead.
func carryOut[T any](m *mortal, step string, call func() (T, error)) (T, error) {
	var none T
	if m.isDead() {
		return none, errFault
	}
	answer, err := call()
	if m.reach(step) {
		return none, errFault
	}
	return answer, err
}

func carryOutPlain(m *mortal, step string, call func() error) error {
	_, err := carryOut(m, step, func() (struct{}, error) { return struct{}{}, call() })
	return err
}

func (m *mortal) Next(ctx context.Context) (Delivery, error) {
	if m.isDead() {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	d, err := m.Source.Next(ctx)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	m.open[d.(*delivery)] = true
	m.mu.Unlock()
	return mortalDelivery{d.(*delivery), m}, nil
}

func (m *mortal) Settled(ctx context.Context, most uint64) (upTo, last uint64, err error) {
	return m.Source.Settled(ctx, most)
}

func (m *mortal) Ease(on bool) { m.Source.Ease(on) }

type mortalDelivery struct {
	*delivery
	m *mortal
}

func (d mortalDelivery) settle(call func()) {
	if d.m.isDead() {
		return
	}
	call()
	d.m.mu.Lock()
	delete(d.m.open, d.delivery)
	d.m.mu.Unlock()
}

func (d mortalDelivery) Ack() {
	d.settle(d.delivery.Ack)
	d.m.reach("ack")
}

func (d mortalDelivery) HandBack() { d.settle(d.delivery.HandBack) }

func (m *mortal) Reserve(ctx context.Context, key, tier string, cost int64, horizon time.Duration) (limiter.Decision, error) {
	return carryOut(m, "reserve", func() (limiter.Decision, error) {
		return m.Limiter.Reserve(ctx, key, tier, cost, horizon)
	})
}

func (m *mortal) Park(ctx context.Context, r ParkRequest) (LaneInfo, error) {
	return carryOut(m, "park", func() (LaneInfo, error) { return m.Index.Park(ctx, r) })
}

func (m *mortal) Claim(ctx context.Context, most int) (keys []string, next time.Duration, err error) {
	keys, err = carryOut(m, "claim", func() (keys []string, err error) {
		keys, next, err = m.Index.Claim(ctx, most)
		return keys, err
	})
	return keys, next, err
}

func (m *mortal) Lease(ctx context.Context, r LeaseRequest) (Lease, error) {
	return carryOut(m, "lease", func() (Lease, error) { return m.Index.Lease(ctx, r) })
}

func (m *mortal) Settle(ctx context.Context, r SettleRequest) (LaneInfo, error) {
	return carryOut(m, "settle", func() (LaneInfo, error) { return m.Index.Settle(ctx, r) })
}

func (m *mortal) Now() time.Time { return m.Index.Now() }

func (m *mortal) Holds(ctx context.Context, key string, order uint64) (bool, error) {
	return carryOut(m, "holds", func() (bool, error) { return m.Index.Holds(ctx, key, order) })
}

func (m *mortal) Forget(ctx context.Context, key string, e Entry) (bool, error) {
	return carryOut(m, "forget", func() (bool, error) { return m.Index.Forget(ctx, key, e) })
}

func (m *mortal) Append(ctx context.Context, ev *Event) (BodyID, error) {
	return carryOut(m, "append", func() (BodyID, error) { return m.Lanes.Append(ctx, ev) })
}

func (m *mortal) Read(ctx context.Context, key string, id BodyID) (*Event, error) {
	return carryOut(m, "read", func() (*Event, error) { return m.Lanes.Read(ctx, key, id) })
}

func (m *mortal) Delete(ctx context.Context, body Body) error {
	return carryOutPlain(m, "delete", func() error { return m.Lanes.Delete(ctx, body) })
}

func (m *mortal) Bury(ctx context.Context, ev *Event, reason DeadReason, cause error) error {
	return carryOutPlain(m, "bury", func() error { return m.DeadLetters.Bury(ctx, ev, reason, cause) })
}

func (m *mortal) Name() string { return m.Sink.Name() }

func (m *mortal) Push(ctx context.Context, ev *Event) error {
	return carryOutPlain(m, "push", func() error { return m.Sink.Push(ctx, ev) })
}
