package pipeline

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestCrewDoesEachJobOnceAndAllAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c crew
		var done [50]atomic.Int32
		gate := make(chan struct{})
		give := func(i int) {
			c.give(func() {
				<-gate
				done[i].Add(1)
			})
		}
		for i := range 30 {
			give(i) // would hang if any had to wait for another
		}
		synctest.Wait()
		close(gate)
		synctest.Wait()
		gate = make(chan struct{})
		for i := 30; i < 50; i++ {
			give(i)
		}
		if n := len(c.idle); n != 10 {
			t.Errorf("%d goroutines wait for a job, want 10 of 30: 20 have one again", n)
		}
		close(gate)
		c.end()
		for i := range done {
			if n := done[i].Load(); n != 1 {
				t.Errorf("job %d was done %d times", i, n)
			}
		}
	})
}

func TestJobsOfACrewMayGiveOthersAndTheEndWaitsForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c crew
		done := 0
		gate := make(chan struct{})
		c.give(func() {}) // leaves a goroutine that waits
		synctest.Wait()
		c.give(func() {
			<-gate
			c.give(func() {
				c.give(func() { done++ })
			})
		})
		time.AfterFunc(time.Second, func() { close(gate) }) // once end waits
		c.end()
		if done != 1 {
			t.Error("the end came before the last job")
		}
	})
}
