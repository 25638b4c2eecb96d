package pipeline

import (
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"
)

func TestPushesThatFailAreLoggedAFewTimesASecondAndCounted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		lines := &logCounter{}
		d := newDigest(slog.New(lines), "push failed", "more pushes failed")
		want := func(when string, failed, more int) {
			t.Helper()
			lines.mu.Lock()
			defer lines.mu.Unlock()
			if lines.lines["push failed"] != failed || lines.lines["more pushes failed"] != more {
				t.Errorf("%s: %v, want %d lines and %d that count", when, lines.lines, failed, more)
			}
		}
		d.see("a", errStatus503)
		want("the first", 1, 0)
		for range 999 {
			d.see("a", errStatus503)
		}
		want("the same key", 1, 0)
		for i := range 100 {
			d.see(fmt.Sprint("key", i), errStatus503)
		}
		want("many keys", digestTold, 0)
		time.Sleep(digestEvery)
		synctest.Wait()
		want("a second later", digestTold, 1)
		for range 50_000 { // 5 s
			d.see("a", errStatus503)
			time.Sleep(100 * time.Microsecond)
		}
		synctest.Wait()
		want("one key without end", digestTold+5, 6)
		time.Sleep(time.Minute)
		d.end()
		want("long after", digestTold+5, 6)
	})
}
