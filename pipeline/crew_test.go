package pipeline

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
)

func TestCrewDoesEachJobOnceAndAllAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var running sync.WaitGroup
		var done [50]atomic.Int32
		gate := make(chan struct{})
		c := newCrew(&running, func(i int) {
			<-gate
			done[i].Add(1)
		})
		for i := range 30 {
			c.give(i) // would hang if any had to wait for another
		}
		synctest.Wait()
		close(gate)
		synctest.Wait()
		for i := 30; i < 50; i++ {
			c.give(i)
		}
		c.dismiss()
		running.Wait()
		for i := range done {
			if n := done[i].Load(); n != 1 {
				t.Errorf("job %d was done %d times", i, n)
			}
		}
	})
}
