package testenv

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// BoundExcess says by how many pushes the promise "at most burst + ratePerSecond x (T + allowance) in any window T" was
// broken: the greatest, over all windows [times[i], times[j]] with both ends counted, of
//
//	(j - i + 1) - burst - ratePerSecond x (times[j] - times[i] + allowance)
//
// It is 0 or less when the promise was kept; how far below tells the room left. The times needn't be sorted.
func BoundExcess(times []time.Time, ratePerSecond float64, burst int, allowance time.Duration) float64 {
	allowed := float64(burst) + ratePerSecond*allowance.Seconds()
	if len(times) == 0 {
		return -allowed
	}
	sorted := sortedTimes(times)
	// With f(k) = k - rate x times[k] the window's excess is f(j) - f(i) + 1 - allowed: keep the least f seen.
	least, worst := math.Inf(1), math.Inf(-1)
	for k, at := range sorted {
		f := float64(k) - ratePerSecond*at.Sub(sorted[0]).Seconds()
		least = min(least, f)
		worst = max(worst, f-least)
	}
	return worst + 1 - allowed
}

// Utilisation says how much of its rate a key with a backlog got: the time that its events need at best, which is
// (n - burst) / ratePerSecond from a full bucket, divided by the time from the first to the last. It is 1 for events
// that the burst covers, and above 1 when they came faster than allowed.
func Utilisation(times []time.Time, ratePerSecond float64, burst int) float64 {
	if len(times) <= max(burst, 1) {
		return 1
	}
	sorted := sortedTimes(times)
	ideal := float64(len(times)-burst) / ratePerSecond
	return ideal / sorted[len(sorted)-1].Sub(sorted[0]).Seconds()
}

func sortedTimes(times []time.Time) []time.Time {
	return slices.SortedFunc(slices.Values(times), time.Time.Compare)
}

// Inversions counts the events that come after one with a higher order. Give it first attempts only: a repeated push is
// no inversion.
func Inversions(orders []uint64) int {
	var highest uint64
	count := 0
	for _, order := range orders {
		if order < highest {
			count++
		}
		highest = max(highest, order)
	}
	return count
}

// Percentile is the least of the values that p percent of them don't exceed (nearest rank); zero if there are none.
func Percentile[T cmp.Ordered](values []T, p float64) T {
	if len(values) == 0 {
		var zero T
		return zero
	}
	sorted := slices.Sorted(slices.Values(values))
	rank := int(math.Ceil(p / 100 * float64(len(sorted))))
	return sorted[min(max(rank, 1), len(sorted))-1]
}

// Missing returns what is in want and not in got, sorted, each once.
func Missing(want, got []string) []string {
	have := make(map[string]bool, len(got))
	for _, s := range got {
		have[s] = true
	}
	var lacking []string
	for _, s := range want {
		if !have[s] {
			lacking = append(lacking, s)
		}
	}
	slices.Sort(lacking)
	return slices.Compact(lacking)
}
