package statuspage

import (
	"fmt"
	"testing"
	"time"

	"sluice/pipeline"
)

// BenchmarkUpdate is what a page costs every second, whether somebody watches or not. It doesn't grow with the number of keys.
func BenchmarkUpdate(b *testing.B) {
	for _, keys := range []int{3, 1000, 1_000_000} {
		b.Run(fmt.Sprint(keys, "keys"), func(b *testing.B) {
			r := newRig(b)
			r.begin()
			for i := range keys {
				r.event(fmt.Sprint("user", i), pipeline.Direct, time.Millisecond)
			}
			for b.Loop() {
				r.update(time.Now())
			}
		})
	}
}
