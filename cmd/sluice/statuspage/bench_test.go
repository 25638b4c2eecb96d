package statuspage

import (
	"testing"
	"time"
)

// BenchmarkUpdate is what a page costs every second, whether somebody watches or not.
func BenchmarkUpdate(b *testing.B) {
	r := newRig(b)
	r.begin()
	r.past(names(1000), 1, 2)
	for b.Loop() {
		r.update(time.Now())
	}
}
