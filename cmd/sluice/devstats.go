package main

import (
	"math"
	"slices"
	"time"
)

const (
	rateSlot  = 100 * time.Millisecond
	rateSlots = 20 // two seconds
)

// rateWindow counts pushes of the last two seconds by slots of time. The slot that is going on counts later, when it is
// complete.
type rateWindow struct {
	counts [rateSlots + 1]uint32
	newest int64 // number of the slot that is going on, counted from 1970
}

// add counts a push.
func (w *rateWindow) add(now time.Time) {
	w.roll(now)
	w.counts[w.newest%int64(len(w.counts))]++
}

// perSecond is the rate over the last two seconds.
func (w *rateWindow) perSecond(now time.Time) float64 {
	w.roll(now)
	sum := uint32(0)
	for i := int64(1); i <= rateSlots; i++ {
		sum += w.counts[(w.newest-i+int64(len(w.counts)))%int64(len(w.counts))]
	}
	return float64(sum) / (rateSlots * rateSlot).Seconds()
}

// roll empties the slots that began since the newest one.
func (w *rateWindow) roll(now time.Time) {
	slot := now.UnixNano() / int64(rateSlot)
	for n := max(w.newest+1, slot-rateSlots); n <= slot; n++ {
		w.counts[n%int64(len(w.counts))] = 0
	}
	w.newest = max(w.newest, slot)
}

// waitUnit is what waits are kept in: enough for 119 hours in 32 bits.
const waitUnit = 100 * time.Microsecond

// waits keeps how long deliveries took: the last most of them, or all if most is 0.
type waits struct {
	most int
	kept []uint32 // in waitUnit
	next int      // the oldest, once there are most
}

func (w *waits) add(d time.Duration) {
	units := uint32(min(max(0, d/waitUnit), math.MaxUint32))
	if w.most == 0 || len(w.kept) < w.most {
		w.kept = append(w.kept, units)
		return
	}
	w.kept[w.next] = units
	w.next = (w.next + 1) % w.most
}

// summarise fills in what the line says about waits; zeros if there are none.
func (w *waits) summarise(line *userLine) {
	if len(w.kept) == 0 {
		return
	}
	sorted := slices.Clone(w.kept)
	slices.Sort(sorted)
	line.median, line.p99, line.longest = percentile(sorted, 0.5), percentile(sorted, 0.99), percentile(sorted, 1)
}

// percentile is the least of the sorted waits that at least the share p of all of them don't exceed.
func percentile(sorted []uint32, p float64) time.Duration {
	rank := int(math.Ceil(p * float64(len(sorted))))
	return time.Duration(sorted[max(0, rank-1)]) * waitUnit
}
