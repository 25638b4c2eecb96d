//go:build !race

package testenv

// RaceEnabled says whether the race detector watches this process; figures of speed mean little then.
const RaceEnabled = false
