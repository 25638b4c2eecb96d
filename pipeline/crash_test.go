package pipeline

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// steps are the calls between which a worker can die, or whose answer can be lost.
var steps = []string{
	"reserve", "append", "park", "ack", "claim", "lease", "read", "push", "delete", "settle", "bury", "forget",
}

// everyWay publishes events of one key that go all ways there are: at once, through the lane, superseded by a newer one of
// their name, rejected, tried again, and too dear.
func everyWay(r *rig) {
	r.index.limits["a"] = limit{2 * time.Second, 1}
	r.mayDrop = true // the third gives way to the fourth
	r.sink.answer = func(_ string, ev *Event) answer {
		switch {
		case ev.Source.Seq == 5 || ev.Source.Seq == 8:
			return answer{err: errStatus410}
		case ev.Source.Seq == 6 && ev.Attempt == 1:
			return answer{err: errStatus500}
		}
		return answer{}
	}
	r.one("a")
	r.one("a")
	r.one("a", called("position"))
	r.one("a", called("position"))
	r.one("a") // rejected
	r.one("a") // tried twice
	r.one("a", costing(2))
	r.one("b") // rejected at once
	pass(20 * time.Second)
}

// wantEveryEnd checks what has become of the events of everyWay, and that at most so many deliveries were repeated.
func (r *rig) wantEveryEnd(t *testing.T, repeated int) {
	t.Helper()
	for src := uint64(1); src <= 8; src++ {
		times, dead := r.sink.times(src), r.dead[src]
		want := map[uint64]DeadReason{5: Rejected, 7: Cost, 8: Rejected}[src]
		if dead != want || (times > 0) == (dead != "") && src != 3 {
			t.Errorf("event %d was delivered %d times, its dead letter is for %q, want %q", src, times, dead, want)
		}
		repeated -= max(0, times-1)
	}
	if repeated < 0 {
		t.Errorf("%d deliveries more were repeated than may be", -repeated)
	}
	r.wantRest(t)
	r.checkBound(t, "a", 1)
}

// maxStep is how often a call is made at most with the events of everyWay that decides anything.
const maxStep = 8

func TestWorkerMayDieAfterAnyStep(t *testing.T) {
	for _, step := range steps {
		for nth := 1; nth <= maxStep; nth++ {
			t.Run(fmt.Sprint(step, " ", nth), func(t *testing.T) {
				inVirtualTime(t, func(t *testing.T, r *rig) {
					bury := r.doomed(step, nth)
					everyWay(r)
					if died := bury(); !died && nth == 1 {
						t.Errorf("there was no call of %s", step)
					}
					stop := r.start()
					pass(time.Minute)
					repeated := 0
					if step == "push" {
						repeated = 1
					}
					r.wantEveryEnd(t, repeated)
					_ = stop()
				})
			})
		}
	}
}

func TestAnswerToAnyStepMayBeLost(t *testing.T) {
	for _, step := range steps {
		if step == "ack" || step == "push" || step == "read" { // no answer, or nothing was done
			continue
		}
		for nth := int32(1); nth <= maxStep; nth++ {
			t.Run(fmt.Sprint(step, " ", nth), func(t *testing.T) {
				inVirtualTime(t, func(t *testing.T, r *rig) {
					var calls atomic.Int32
					r.faults = func(call string) fault {
						if call == step && calls.Add(1) == nth {
							return replyLost
						}
						return noFault
					}
					r.index.fault = r.faults
					stop := r.start()
					everyWay(r)
					if calls.Load() < 1 {
						t.Errorf("there was no call of %s", step)
					}
					pass(time.Minute)
					r.wantEveryEnd(t, 0)
					_ = stop()
				})
			})
		}
	}
}

// Its worker died over the ack after it had tried the event and put it back: it is indexed once more, as a new one.
func TestEventWithTwoPlacesIsPushedOnce(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, r *rig) {
		r.index.limits["a"] = limit{2 * time.Second, 1}
		r.parkWithoutWorker("a", 1)
		tried := Entry{BodyID: laneBody(1), Order: 1, Cost: 1, Attempt: 1, First: time.Now()}
		if info, err := r.index.Park(t.Context(), ParkRequest{Key: "a", Entry: tried}); err != nil || info.Waiting != 2 {
			t.Fatalf("%+v, %v, want two places", info, err)
		}
		stop := r.start()
		pass(10 * time.Second)
		if n := r.sink.times(1); n != 1 {
			t.Errorf("delivered %d times, want once", n)
		}
		r.wantRest(t)
		_ = stop()
	})
}

// The lanes are full, and the worker dies between the dead letter and the ack: by the time the event comes again there may be
// room, and then it is delivered as well.
func TestDeadLetterOfAnEventThatFoundNoRoomIsKeptThoughTheEventComesAgain(t *testing.T) {
	for _, room := range []int{0, 10} {
		t.Run(fmt.Sprint("room for ", room), func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, r *rig) {
				r.enlarge(0, 10)
				bury := r.doomed("bury", 1)
				pass(time.Millisecond)
				r.park("a", 1)
				pass(time.Second)
				if !bury() {
					t.Fatal("there was no dead letter")
				}
				r.enlarge(room, 10)
				stop := r.start()
				pass(10 * time.Second)
				if r.dead[1] != LanesFull || len(r.dead) != 1 || r.sink.times(1) != min(1, room) || r.acked[1].IsZero() {
					t.Errorf("dead letters %v, delivered %d times, acked at %s", r.dead, r.sink.times(1), r.acked[1])
				}
				r.wantRest(t)
				_ = stop()
			})
		})
	}
}

// rowOfTable is what a row begins with: the others are continued, or name tests, or are headings.
var rowOfTable = regexp.MustCompile(`^ {4}\S.{0,27}`)

// Every row of the table in doc.go names tests that exist.
func TestCrashPointsNameTheirTests(t *testing.T) {
	t.Parallel()
	tests := map[string]bool{}
	for _, pattern := range []string{"*_test.go", "stream/*_test.go", "../limiter/redisstore/*_test.go"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %d files, %v", pattern, len(files), err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range regexp.MustCompile(`(?m)^func (Test\w+)\(`).FindAllSubmatch(text, -1) {
				tests[string(m[1])] = true
			}
		}
	}
	text, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := strings.Cut(string(text), "A crash between two steps leaves:")
	if !found {
		t.Fatal("doc.go has no table")
	}
	rows, row, named := 0, "", true
	for line := range strings.Lines(table) {
		text, is := strings.CutPrefix(strings.TrimRight(line, "\n"), "//\t")
		if !is {
			continue
		}
		if name := strings.TrimSpace(text); strings.HasPrefix(name, "Test") {
			named = true
			for name := range strings.FieldsSeq(name) {
				if !tests[strings.TrimSuffix(name, ",")] {
					t.Errorf("%s: there is no test %s", row, name)
				}
			}
			continue
		}
		if begun := rowOfTable.FindString(text); begun != "" {
			if !named {
				t.Errorf("%s: no test is named", row)
			}
			rows, row, named = rows+1, begun, false
		}
	}
	if !named || rows < 10 {
		t.Errorf("%d rows, the last with a test: %t", rows, named)
	}
}
