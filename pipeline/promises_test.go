package pipeline

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func TestHorizonHalvesWhileTokensAreLateAndGrowsBack(t *testing.T) {
	t.Parallel()
	p, now := newPromises(), time.Now()
	second := func(pushed, late int) time.Duration {
		for range pushed {
			p.kept(now)
		}
		for range late {
			p.broken(now)
		}
		now = now.Add(time.Second)
		return p.ahead(now)
	}
	for i, tt := range []struct {
		pushed, late int
		want         time.Duration
	}{
		{100, 0, time.Second},
		{99, 1, time.Second}, // not more than 1 %
		{98, 2, 500 * time.Millisecond},
		{0, 1, 250 * time.Millisecond},
		{10, 10, 125 * time.Millisecond},
		{10, 10, 62500 * time.Microsecond},
		{10, 10, 50 * time.Millisecond},
		{10, 10, 50 * time.Millisecond},
		{100, 0, 62500 * time.Microsecond},
		{0, 0, 78125 * time.Microsecond},
	} {
		if got := second(tt.pushed, tt.late); got != tt.want {
			t.Errorf("second %d, %d pushed and %d late: horizon %s, want %s", i, tt.pushed, tt.late, got, tt.want)
		}
	}
	for range 20 {
		second(1, 0)
	}
	if got := second(1, 0); got != time.Second {
		t.Errorf("horizon at last %s, want 1s", got)
	}
}

func TestPromisesAreBoundedByWhatWasPushedInTheLastSecond(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for _, tt := range []struct {
		pushed int
		after  time.Duration
		made   int
		none   bool
	}{
		{0, 0, 63, false},
		{0, 0, 64, true},
		{500, 0, 499, false},
		{500, 0, 500, true},
		{500, time.Second, 499, false}, // in the second before
		{500, 2 * time.Second, 64, true},
	} {
		p := newPromises()
		for range tt.pushed {
			p.kept(now)
		}
		p.hold(tt.made)
		if got := p.ahead(now.Add(tt.after)); (got == 0) != tt.none {
			t.Errorf("%d pushed, %d promised %s later: horizon %s, want none: %t", tt.pushed, tt.made, tt.after, got, tt.none)
		}
	}
}

func TestWorkerThatHasPromisedEnoughAsksForNoSlots(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, r *rig) {
		const pushed = 100
		l := &decisions{}
		for range pushed {
			l.answers = append(l.answers, goWithin(0))
		}
		for range pushed + 2 {
			l.answers = append(l.answers, holdFor(time.Second))
		}
		r.limiter = l
		stop := r.start()
		for range 2*pushed + 2 {
			r.publish("a", 1)
			synctest.Wait()
		}
		for i, h := range l.horizons {
			if want := i < 2*pushed; (h > 0) != want {
				t.Errorf("reservation %d was made with a horizon of %s, want one: %t", i, h, want)
			}
		}
		_ = stop()
	})
}

// The nearest slots are held as long as there is any room: what goes into a lane for a moment comes out late.
func TestHorizonShrinksWithTheRoomForHeldEvents(t *testing.T) {
	t.Parallel()
	w := &Worker{promises: newPromises(), keys: newKeys(1)}
	w.promises.count(time.Now(), 10*maxHeld, 0)
	for _, tt := range []struct {
		held int64
		want time.Duration
	}{
		{0, time.Second}, {maxHeld / 5, 800 * time.Millisecond}, {maxHeld / 5 * 4, 200 * time.Millisecond}, {maxHeld, 0}, {maxHeld + 50, 0},
	} {
		w.held.Store(tt.held)
		if got := w.horizon("a"); got != tt.want {
			t.Errorf("%d held: horizon %s, want %s", tt.held, got, tt.want)
		}
	}
	w.strain.took(strainOf * (highStrain + time.Millisecond))
	for n := range fewHeld {
		if got := w.horizon("a"); got != time.Second {
			t.Errorf("a key that holds %d while calls take long has a horizon of %s, want 1s", n, got)
		}
		w.keys.hold("a", 1)
	}
	if got := w.horizon("a"); got != 0 {
		t.Errorf("a key that holds %d while calls take long has a horizon of %s, want none without room", fewHeld, got)
	}
	if got := w.horizon("b"); got != time.Second {
		t.Errorf("another key has a horizon of %s, want 1s", got)
	}
}

func TestStrainIsTheTimeThatCallsTakeOnAverage(t *testing.T) {
	t.Parallel()
	var s strain
	calls := func(d time.Duration) (n int) {
		for was := s.high(); s.high() == was && n < 10*strainOf; n++ {
			s.took(d)
		}
		return n
	}
	if s.took(20 * highStrain); s.high() {
		t.Error("one slow call is a strain")
	}
	if n := calls(2 * highStrain); n < strainOf/4 || n > 2*strainOf {
		t.Errorf("%d slow calls are a strain", n)
	}
	calls(2 * highStrain)
	if n := calls(highStrain / 10); n < strainOf/4 || n > 2*strainOf {
		t.Errorf("the strain is over after %d quick calls", n)
	}
}

// Many keys have one event at once that could soon go, more than there is room for.
func TestEventsThatCouldSoonGoAreHeldWhileCallsTakeLong(t *testing.T) {
	for _, slow := range []bool{false, true} {
		t.Run(fmt.Sprint("slow ", slow), func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, r *rig) {
				const keys = maxHeld + 250
				r.index.fallback, r.index.allowance = limit{every: time.Second, burst: 1}, time.Second
				if slow {
					r.index.took = 2 * highStrain
				}
				stop := r.start()
				for range 2 {
					for k := range keys {
						r.publish(fmt.Sprint(k), 1)
						if k%100 == 0 {
							pass(time.Millisecond)
						}
					}
				}
				pass(2 * time.Second)
				if n := r.count("parked"); slow && n > 0 || !slow && n == 0 {
					t.Errorf("%d of %d events were parked, want some: %t", n, 2*keys, !slow)
				}
				if n := len(r.sink.starts); n != 2*keys {
					t.Errorf("%d pushes, want %d", n, 2*keys)
				}
				r.wantRest(t)
				_ = stop()
			})
		})
	}
}

// asked notes how many events lanes are asked for, by whether the worker has their lease.
type asked struct {
	Index
	first, further []int
}

func (a *asked) Lease(ctx context.Context, r LeaseRequest) (Lease, error) {
	if r.Token == 0 {
		a.first = append(a.first, r.Max)
	} else {
		a.further = append(a.further, r.Max)
	}
	return a.Index.Lease(ctx, r)
}

// What a lane is asked for is promised until it has answered, and most lanes have one event. A full one is asked for more at once.
func TestLaneThatWasJustClaimedIsAskedForFewEvents(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, r *rig) {
		r.index.fallback = limit{every: time.Millisecond, burst: 100}
		r.parkWithoutWorker("a", 40)
		a := &asked{}
		begin := time.Now()
		stop := r.start(func(w *Worker) { a.Index, w.Index = w.Index, a })
		pass(time.Second)
		if len(a.first) == 0 || slices.Max(a.first) > firstLease {
			t.Errorf("lanes without a lease were asked for %v events, want at most %d", a.first, firstLease)
		}
		if len(a.further) == 0 || a.further[0] <= firstLease {
			t.Errorf("the lane that has more was asked for %v events next", a.further)
		}
		if at := r.sink.after("a", begin); len(at) != 40 || at[39] > 200*time.Millisecond {
			t.Errorf("pushes at %v, want 40 at once", at)
		}
		r.wantRest(t)
		_ = stop()
	})
}

func TestKeyThatIsKnownToWaitIsNotAskedFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const most, cap = 4000 * time.Minute, 4000
		k := newKeys(4)
		queued := func() bool { return k.queued("a", 1, most, cap) }
		if queued() {
			t.Error("an unknown key is believed to have a lane")
		}
		k.parked("a", LaneInfo{Waiting: 1, Each: time.Minute})
		if queued() {
			t.Error("a lane of one event is believed to last")
		}
		k.parked("a", LaneInfo{Waiting: 2})
		if queued() {
			t.Error("a lane whose wait isn't known is believed to be within the longest wait")
		}
		k.parked("a", LaneInfo{Waiting: 2, Each: time.Minute})
		if !queued() {
			t.Error("the limiter is asked about a key with a lane of 2")
		}
		for queued() {
			if k.state("a").waiting > cap {
				t.Fatal("the limiter isn't asked near the longest wait")
			}
		}
		if n, want := k.state("a").waiting, int64(cap/2-maxHandedOut); n != want {
			t.Errorf("%d events wait when the limiter is asked again, want %d", n, want)
		}
		k.parked("a", LaneInfo{Waiting: 1_000_000, Each: 24 * time.Hour})
		if k.queued("a", 1, most, 0) {
			t.Error("a lane that takes longer than a duration can tell is believed to be within the longest wait")
		}
		k.parked("a", LaneInfo{Waiting: 2, Each: time.Minute})
		k.parked("a", LaneInfo{Waiting: 1, Each: time.Minute})
		if queued() {
			t.Error("a lane that has turned out to be all but empty is believed to last")
		}
	})
}

func TestLaneIsRememberedForAsLongAsItSurelyLasts(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		info LaneInfo
		want time.Duration
	}{
		"limits are unknown":             {LaneInfo{Waiting: 1000}, laneMemory},
		"all may be leased":              {LaneInfo{Waiting: 10, Each: 100 * time.Millisecond}, laneMemory},
		"takes 2.5 s":                    {LaneInfo{Waiting: 25, Each: 100 * time.Millisecond}, 1500 * time.Millisecond},
		"takes 2.5 s, some cost more":    {LaneInfo{Waiting: 20, Extra: 5, Each: 100 * time.Millisecond}, 1500 * time.Millisecond},
		"takes long":                     {LaneInfo{Waiting: 1000, Each: time.Second}, maxLaneMemory},
		"two take long":                  {LaneInfo{Waiting: 2, Each: time.Hour}, maxLaneMemory},
		"more than time can be told for": {LaneInfo{Waiting: 1 << 40, Each: 24 * time.Hour}, maxLaneMemory},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				k := newKeys(4)
				k.parked("a", test.info)
				time.Sleep(test.want - time.Millisecond)
				if !k.queued("a", 1, 0, 0) {
					t.Errorf("forgotten before %s", test.want)
				}
				time.Sleep(time.Millisecond)
				if k.queued("a", 1, 0, 0) {
					t.Errorf("remembered after %s", test.want)
				}
				k.sweep()
				if k.state("a") != nil {
					t.Error("a lane is remembered for longer than its time")
				}
				k.parked("a", test.info)
				k.limitsChanged()
				if k.queued("a", 1, 0, 0) {
					t.Error("remembered although limits have changed")
				}
			})
		})
	}
}

// state is what is known of key; nil: nothing.
func (k *keys) state(key string) (found *keyState) {
	k.known(key, func(s *keyState) { found = s })
	return found
}

func TestKeyIsForgottenWhenNothingOfItIsInFlight(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		k := newKeys(2)
		for i, want := range []bool{true, true, false} {
			if got := k.enter("a"); got != want {
				t.Errorf("push %d of a key of which two may be in flight: %t", i+1, got)
			}
		}
		k.leave("a")
		k.book("a", 1)
		if n := k.room("a"); n != 0 {
			t.Errorf("room for %d with one in flight and one leased, want 0", n)
		}
		k.leave("a")
		k.book("a", -1)
		if n := k.room("a"); n != 2 || k.state("a") != nil {
			t.Errorf("room for %d at rest, want 2 and nothing remembered", n)
		}
		k.cool("a", time.Second)
		k.cool("a", time.Millisecond) // a shorter one takes nothing back
		time.Sleep(999 * time.Millisecond)
		if !k.cooling("a") || k.room("a") != 0 {
			t.Error("a key that cools for a second is awake after 999ms")
		}
		time.Sleep(time.Millisecond)
		if k.cooling("a") || k.room("a") != 2 {
			t.Error("a key that cools for a second sleeps after a second")
		}
	})
}

// A worker that is late with what it leased leases less, down to a few, and more again when it keeps its promises.
func TestLateWorkerLeasesFewEvents(t *testing.T) {
	t.Parallel()
	p, now := newPromises(), time.Now()
	leased := func(want int) {
		t.Helper()
		n, lanes := 0, 0
		for more := -1; more != 0; lanes++ {
			before := p.spare(now)
			more = p.take(now, 1000)
			if more > max(fewEvents, before/8) {
				t.Fatalf("lane %d leased %d of %d", lanes, more, before)
			}
			n += more
		}
		if n > want || n <= want-fewEvents {
			t.Fatalf("%d lanes leased %d, want all but a few of %d", lanes, n, want)
		}
		p.give(-n)
	}
	leased(minPromises)
	for range 10 {
		now = now.Add(time.Second)
		p.count(now, 10, 100)
	}
	leased(leastPromises)
	for range 30 {
		now = now.Add(time.Second)
		p.count(now, 500, 0)
	}
	leased(500) // after half a minute of so many a second in time
}

// Many lanes that fall due together don't wait for one another, although most could hold more than there is in them.
func TestManyLanesDueAtOnceAreLeasedAtOnce(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, r *rig) {
		const keys, each = 300, 5
		r.index.fallback = limit{every: 500 * time.Millisecond, burst: 1}
		r.index.took = 3 * time.Millisecond
		stop := r.start()
		begin := time.Now()
		for range each {
			for i := range keys {
				r.publish(fmt.Sprint("key", i), 1)
			}
		}
		pass(5 * time.Second)
		for i := range keys {
			at := r.sink.after(fmt.Sprint("key", i), begin)
			if len(at) != each || at[each-1] > 2*time.Second+100*time.Millisecond {
				t.Errorf("pushes at %v, want %d within 2 s", at, each)
			}
		}
		r.wantRest(t)
		_ = stop()
	})
}
