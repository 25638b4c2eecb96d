package integration

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"sluice/integration/testenv"
)

// Events of twenty keys that the receiver, or a filter on the way to it, ends without an answer, beside healthy keys and before healthy
// events of their own: nobody but they themselves waits for long.
func TestEventsThatGetNoAnswerDelayNobodyElse(t *testing.T) {
	beside(t)
	w := newWorld(t)
	const healthy, poisoned, rounds = 50, 20, 60
	poison := func(r testenv.Request) bool { return strings.HasPrefix(r.Key, "p") && string(r.Body) == "0" }
	w.receiver.Handle(func(r testenv.Request) testenv.Response { return testenv.Response{Abort: poison(r)} })
	p := w.worker("LIMIT=100/s burst 100")
	p.WaitReady(30 * time.Second)
	for i := range poisoned {
		w.publish(fmt.Sprint("p", i), 3, 0)
	}
	for i := range rounds {
		for k := range healthy / 10 {
			w.publish(fmt.Sprint("k", 10*k+i%10), 1, 0)
		}
		time.Sleep(50 * time.Millisecond)
	}
	w.receiver.WaitForDelivered(2*poisoned+rounds*healthy/10, 10*time.Second)

	others := w.latencies(func(key string) bool { return strings.HasPrefix(key, "k") })
	slices.Sort(others)
	worst, attempts := others[len(others)-1], 0
	for _, r := range w.receiver.Requests() {
		if poison(r) {
			attempts++
		}
	}
	t.Logf("%d events of others: p99 %s, worst %s; %d attempts of the %d events that get no answer", len(others),
		others[len(others)*99/100].Round(time.Millisecond), worst.Round(time.Millisecond), attempts, poisoned)
	if worst > 2*time.Second {
		t.Errorf("an event of another key waited %s", worst)
	}
	if attempts < 2*poisoned || attempts > 20*poisoned {
		t.Errorf("%d attempts of %d events, want some of each", attempts, poisoned)
	}
	if out := p.Output(); strings.Contains(out, "the destination is away") {
		t.Errorf("the destination was taken to be away:\n%s", out)
	}
}
