package pipeline

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"sluice/limiter"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a world in memory around one or more workers: what was published, what was pushed, and where everything is.
// It checks at every Ack that the event may be forgotten.
type rig struct {
	t     *testing.T
	cfg   Config
	index *memory
	sink  *scriptedSink
	log   *logCounter

	mu      sync.Mutex
	trace   []string // what was done to events, in order
	queue   []*delivery
	arrived chan struct{} // the queue has something
	seq     uint64
	bodies  map[uint64]Event
	deleted map[uint64]Event
	stored  map[uint64]time.Time // when a body was
	dead    map[uint64]DeadReason
	acked   map[uint64]time.Time
	counts  map[string]int // of the observer's calls
	latency map[Path][]time.Duration
	workers []*Worker
	faults  func(call string) fault // of source, lanes and dead letters; nil: none
	limiter Limiter                 // in place of the index' own; nil: that
	reach   func(context.Context) error
	mayDrop bool
	stores  func(*Event) time.Duration // how long it takes to store in a lane; nil: no time
	room    map[string]int             // messages that lanes ("append") and dead letters ("bury") hold at most; none: any number
	asked   map[string]int             // calls that found no room
}

func newRig(t *testing.T) *rig {
	key, err := ParseKeySpec("subject:2")
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{
		t: t, index: newMemory(), log: &logCounter{}, arrived: make(chan struct{}, 1), bodies: map[uint64]Event{}, deleted: map[uint64]Event{}, stored: map[uint64]time.Time{},
		dead: map[uint64]DeadReason{}, acked: map[uint64]time.Time{}, counts: map[string]int{},
		latency: map[Path][]time.Duration{}, room: map[string]int{}, asked: map[string]int{},
	}
	r.index.note = r.note
	r.sink = &scriptedSink{rig: r, pushed: map[uint64]int{}, flying: map[string]int{}, peak: map[string]int{}}
	r.cfg = Config{
		Key: key, Concurrency: 256, Drain: 20 * time.Second,
		Retry: Retry{For: 24 * time.Hour, Base: time.Second, Cap: time.Hour},
	}
	return r
}

// start runs one more worker, changed before. The function that it returns stops it and returns Run's error.
func (r *rig) start(change ...func(*Worker)) (stop func() error) {
	r.t.Helper()
	var lim Limiter = r.index
	if r.limiter != nil {
		lim = r.limiter
	}
	w := New(r.cfg, Ports{
		Source: sourceOf{r}, Limiter: lim, Index: indexOf{r.index, fmt.Sprint("worker ", len(r.workers))}, Lanes: lanesOf{r},
		DeadLetters: lanesOf{r}, Sink: r.sink, Gossip: gossipOf{r, len(r.workers)}, Observer: observerOf{r}, Log: slog.New(r.log), Reach: r.reach,
	})
	for _, c := range change {
		c(w)
	}
	r.workers = append(r.workers, w)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	return func() error {
		cancel()
		return <-done
	}
}

// publish puts n events of key into the source.
func (r *rig) publish(key string, n int, change ...func(*delivery)) {
	for range n {
		r.mu.Lock()
		r.seq++
		d := &delivery{rig: r, ev: &Event{
			ID: fmt.Sprintf("EVENTS:%d", r.seq), Subject: "events." + key, Data: []byte("{}"), Time: r.index.Now(),
			Source: SourceID{Stream: "EVENTS", Created: 1, Seq: r.seq},
		}}
		r.mu.Unlock()
		for _, c := range change {
			c(d)
		}
		r.offer(d)
	}
}

func (r *rig) offer(d *delivery) {
	r.mu.Lock()
	r.queue = append(r.queue, d)
	r.mu.Unlock()
	select {
	case r.arrived <- struct{}{}:
	default:
	}
}

func (r *rig) note(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.trace = append(r.trace, fmt.Sprintf(format, args...))
}

func (r *rig) count(what string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.counts[what]
}

func (r *rig) fault(call string) fault {
	r.mu.Lock()
	f := r.faults
	r.mu.Unlock()
	if f == nil {
		return noFault
	}
	return f(call)
}

// failing makes calls fail, and no others from now on.
func (r *rig) failing(calls ...string) {
	fails := func(call string) fault {
		if slices.Contains(calls, call) {
			return notDone
		}
		return noFault
	}
	r.mu.Lock()
	r.faults = fails
	r.mu.Unlock()
	r.index.mu.Lock()
	r.index.fault = fails
	r.index.mu.Unlock()
}

// promise says how an event is safe though the source forgets it; "" if it isn't. It asks in the order in which an event comes to
// where it is safe: a worker may be about to take it out of its lane.
func (r *rig) promise(src uint64) string {
	r.mu.Lock()
	body := r.bodies[laneSeq(src)]
	r.mu.Unlock()
	if body.Key != "" && r.index.knows(body.Key, laneSeq(src)) {
		return "parked"
	}
	r.mu.Lock()
	reason := r.dead[src]
	r.mu.Unlock()
	switch {
	case reason != "":
		return "dead"
	case r.sink.times(src) > 0:
		return "pushed"
	case r.hasGone(src).Collapse != "": // a newer one of its name came at once
		return "collapsed"
	case r.mayDrop:
		return "dropped"
	}
	return ""
}

// hasGone is the event of the source whose body was deleted from its lane, if it was.
func (r *rig) hasGone(src uint64) Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.deleted[laneSeq(src)]
}

// rest says what is left anywhere but at its end.
func (r *rig) rest() (left []string) {
	left = r.index.left()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, d := range r.queue {
		left = append(left, "source: "+d.ev.ID)
	}
	for seq, ev := range r.bodies {
		left = append(left, fmt.Sprintf("lane %s: body %d", ev.Key, seq))
	}
	return left
}

// laneSeq is where an event of the source lies in the lanes, however often it is stored.
func laneSeq(src uint64) uint64 { return 1000 + src }

// laneBody names what lies there.
func laneBody(src uint64) BodyID { return BodyID{Created: 9, Seq: laneSeq(src)} }

// sourceOf is the source: a queue that every worker takes from.
type sourceOf struct{ *rig }

func (s sourceOf) Next(ctx context.Context) (Delivery, error) {
	for {
		s.mu.Lock()
		if len(s.queue) > 0 {
			d := s.queue[0]
			s.queue = s.queue[1:]
			d.open = true
			more := len(s.queue) > 0
			s.mu.Unlock()
			if more {
				s.wake()
			}
			return d, nil
		}
		s.mu.Unlock()
		select {
		case <-s.arrived:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (s sourceOf) Settled(ctx context.Context, most uint64) (upTo, last uint64, err error) {
	if s.fault("settled") != noFault || ctx.Err() != nil {
		return 0, 0, errFault
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts["asked how far it is settled"]++
	for ; upTo < s.seq; upTo++ {
		if _, acked := s.acked[upTo+1]; !acked {
			break
		}
	}
	return upTo, s.seq, nil
}

func (s sourceOf) Ease(on bool) { s.note("ease %t", on) }

func (s sourceOf) wake() {
	select {
	case s.arrived <- struct{}{}:
	default:
	}
}

type delivery struct {
	rig         *rig
	ev          *Event
	redelivered bool
	open        bool
}

func (d *delivery) Event() *Event     { return d.ev }
func (d *delivery) Redelivered() bool { return d.redelivered }

func (d *delivery) Ack() {
	src := d.ev.Source.Seq
	if p := d.rig.promise(src); p == "" {
		d.rig.t.Errorf("event %d was acked without being pushed, parked, dead-lettered or dropped", src)
	}
	d.rig.mu.Lock()
	defer d.rig.mu.Unlock()
	d.settle("ack")
	d.rig.acked[src] = time.Now()
}

func (d *delivery) HandBack() {
	d.rig.mu.Lock()
	d.settle("hand back")
	ev := *d.ev
	ev.Key, ev.Cost, ev.Attempt, ev.First = "", 0, 0, time.Time{}
	d.rig.mu.Unlock()
	d.rig.offer(&delivery{rig: d.rig, ev: &ev, redelivered: true})
}

func (d *delivery) settle(how string) {
	if !d.open {
		d.rig.t.Errorf("event %d was settled twice, the second time by %s", d.ev.Source.Seq, how)
	}
	d.open = false
	d.rig.trace = append(d.rig.trace, how)
}

// lanesOf keeps bodies and dead letters.
type lanesOf struct{ *rig }

func (l lanesOf) Append(ctx context.Context, ev *Event) (BodyID, error) {
	f := l.fault("append")
	if f == notDone || ctx.Err() != nil {
		l.note("append fails")
		return BodyID{}, errFault
	}
	if l.stores != nil {
		time.Sleep(l.stores(ev))
	}
	if strings.HasPrefix(string(ev.Data), "too large") {
		return BodyID{}, fmt.Errorf("storing: %w", ErrTooLarge)
	}
	seq := laneSeq(ev.Source.Seq)
	l.mu.Lock()
	if _, stored := l.bodies[seq]; !stored && l.full("append", len(l.bodies)) {
		l.mu.Unlock()
		return BodyID{}, fmt.Errorf("lanes: %w", ErrFull)
	}
	// As the lane stream does, which remembers for a minute what it stored, deleted or not.
	if since, stored := l.stored[seq]; !stored || time.Since(since) > time.Minute {
		l.bodies[seq], l.stored[seq] = *ev, time.Now()
	}
	l.mu.Unlock()
	l.note("append")
	if f == replyLost {
		return BodyID{}, errFault
	}
	return laneBody(ev.Source.Seq), nil
}

func (l lanesOf) Read(ctx context.Context, key string, id BodyID) (*Event, error) {
	if l.fault("read") != noFault || ctx.Err() != nil {
		return nil, errFault
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	ev, ok := l.bodies[id.Seq]
	if !ok || ev.Key != key {
		return nil, ErrGone
	}
	ev.Body.BodyID = id
	return &ev, nil
}

func (l lanesOf) Delete(ctx context.Context, body Body) error {
	seq := body.Seq
	f := l.fault("delete")
	if f == notDone || ctx.Err() != nil {
		return errFault
	}
	l.mu.Lock()
	if ev, ok := l.bodies[seq]; ok {
		l.deleted[seq] = ev
	}
	delete(l.bodies, seq)
	l.mu.Unlock()
	l.note("delete")
	if f == replyLost {
		return errFault
	}
	return nil
}

func (l lanesOf) Bury(ctx context.Context, ev *Event, reason DeadReason, _ error) error {
	f := l.fault("bury")
	if f == notDone || ctx.Err() != nil {
		return errFault
	}
	if string(ev.Data) == "too large for both" {
		l.note("bury fails")
		return fmt.Errorf("storing: %w", ErrTooLarge)
	}
	l.mu.Lock()
	if _, stored := l.dead[ev.Source.Seq]; !stored && l.full("bury", len(l.dead)) {
		l.mu.Unlock()
		return fmt.Errorf("dead letters: %w", ErrFull)
	}
	l.dead[ev.Source.Seq] = reason
	l.mu.Unlock()
	l.note("bury %s", reason)
	if f == replyLost {
		return errFault
	}
	return nil
}

// full says that there is no room for one more, and counts that. The mutex is held.
func (l lanesOf) full(call string, stored int) bool {
	most, bounded := l.room[call]
	if full := bounded && stored >= most; full {
		l.asked[call]++
		return true
	}
	return false
}

// gossipOf tells the other workers at once.
type gossipOf struct {
	*rig
	from int
}

func (g gossipOf) Cooling(key string, d time.Duration) {
	for i, w := range g.workers {
		if i != g.from {
			w.Cooling(key, d)
		}
	}
}

type observerOf struct{ *rig }

func (o observerOf) add(what string, n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.counts[what] += n
}

func (o observerOf) Received(bool)                                { o.add("received", 1) }
func (o observerOf) Decided(ev *Event, d limiter.Decision)        { o.add("decided "+ev.Key, 1) }
func (o observerOf) Throttled(r limiter.Reason)                   { o.add(string("throttled "+r), 1) }
func (o observerOf) Parked()                                      { o.add("parked", 1) }
func (o observerOf) Settled(c Outcome)                            { o.add(string(c), 1) }
func (o observerOf) Buried(r DeadReason)                          { o.add(string("buried "+r), 1) }
func (o observerOf) Pushed(ev *Event, err error, d time.Duration) { o.add("pushed "+ev.Key, 1) }
func (o observerOf) LaneWait(time.Duration)                       { o.add("lane waits", 1) }
func (o observerOf) InFlight(delta int)                           { o.add("in flight", delta) }
func (o observerOf) HeldNow(delta int)                            { o.add("held", delta) }
func (o observerOf) Late()                                        { o.add("late", 1) }
func (o observerOf) Leased(bool)                                  { o.add("leases", 1) }

func (o observerOf) Latency(p Path, d time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.latency[p] = append(o.latency[p], d)
}
