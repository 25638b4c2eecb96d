package stream

import (
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"sluice/pipeline"
)

// take is the next n events, oldest first: number 1 of the stream is the element 0 at a first delivery.
func take(t *testing.T, s *Source, n int) []pipeline.Delivery {
	t.Helper()
	var all []pipeline.Delivery
	for range n {
		all = append(all, next(t, s))
	}
	return all
}

// wantSettled waits until the source is settled up to a place, and fails if it ever is beyond it.
func wantSettled(t *testing.T, s *Source, when string, want uint64) {
	t.Helper()
	var got uint64
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		upTo, _, err := s.Settled(t.Context(), 0)
		if err != nil {
			t.Fatal(err)
		}
		if got = upTo; got > want {
			t.Fatalf("%s: settled up to %d, beyond %d", when, got, want)
		}
		if got == want {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s: settled up to %d, want %d", when, got, want)
		}
	}
}

// This pins what the server's ack floor means: strict order relies on it.
func TestSettledIsJustBelowTheFirstEventThatCanStillCome(t *testing.T) {
	t.Parallel()
	js, cfg := newServer(t)
	s := open(t, js, cfg, usualLimits)
	wantSettled(t, s, "of an empty stream", 0)
	publish(t, js, 6)
	d := take(t, s, 6)
	for i, step := range []struct {
		settle func()
		want   uint64
	}{
		{d[2].Ack, 0},
		{d[1].Ack, 0},
		{d[0].Ack, 3},
		{d[4].Ack, 3},
		{d[3].HandBack, 3},
		{d[5].Ack, 3},
	} {
		step.settle()
		time.Sleep(20 * time.Millisecond)
		wantSettled(t, s, fmt.Sprintf("after step %d", i), step.want)
	}
	again := next(t, s)
	if again.Event().Source.Seq != 4 || !again.Redelivered() {
		t.Fatalf("%+v came, want the fourth again", again.Event().Source)
	}
	wantSettled(t, s, "while the fourth is delivered again", 3)
	again.Ack()
	wantSettled(t, s, "when all are acked", 6)
}

func TestSettledWaitsForTheEventsOfADeadWorker(t *testing.T) {
	t.Parallel()
	js, cfg := setUp(t, time.Second)
	s := open(t, js, cfg, quick)
	publish(t, js, 4)
	d := take(t, s, 4)
	s.mu.Lock()
	s.held.remove(d[1].(*delivery)) // forgotten: nobody keeps it, nobody settles it
	d[1].(*delivery).settled = true
	s.mu.Unlock()
	for _, i := range []int{0, 2, 3} {
		d[i].Ack()
	}
	wantSettled(t, s, "while the second is nobody's", 1)
	again := next(t, s)
	wantSettled(t, s, "while the second is somebody's again", 1)
	again.Ack()
	wantSettled(t, s, "when the second is acked", 4)
}

func TestSettledPassesWhatIsNotForTheConsumer(t *testing.T) {
	t.Parallel()
	cfg := testConfig(startServer(t, serverOptions(t)))
	cfg.Subjects = []string{"events.*"}
	js := connect(t, cfg)
	_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "EVENTS", Subjects: []string{"events.>", "other.>"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Setup(t.Context(), js, cfg); err != nil {
		t.Fatal(err)
	}
	s := open(t, js, cfg, usualLimits)
	for _, subject := range []string{"events.1", "other.2", "events.3", "other.4", "other.5"} {
		if _, err := js.PublishMsg(t.Context(), &nats.Msg{Subject: subject}); err != nil {
			t.Fatal(err)
		}
	}
	d := take(t, s, 2)
	d[0].Ack()
	time.Sleep(20 * time.Millisecond)
	if upTo, last, err := s.Settled(t.Context(), 9); err != nil || upTo >= 3 || last != 5 {
		t.Errorf("settled up to %d of %d, %v, want less than 3 of 5", upTo, last, err)
	}
	d[1].Ack()
	eventually(t, "all of the stream is settled", func() bool {
		upTo, last, err := s.Settled(t.Context(), 4)
		return err == nil && upTo == 5 && last == 5
	})
}

func TestSettledSaysNothingWhileTheConsumerIsInDoubt(t *testing.T) {
	t.Parallel()
	js, cfg := newServer(t)
	s := open(t, js, cfg, quick)
	publish(t, js, 3)
	drainAll(t, s, 3)
	wantSettled(t, s, "before", 3)
	if err := js.DeleteStream(t.Context(), "EVENTS"); err != nil {
		t.Fatal(err)
	}
	if upTo, _, err := s.Settled(t.Context(), 0); err == nil {
		t.Errorf("settled up to %d of a stream that is gone", upTo)
	}
	eventually(t, "the new stream is known", func() bool {
		upTo, _, err := s.Settled(t.Context(), 0)
		return err == nil && upTo == 0
	})
	publish(t, js, 1)
	next(t, s).Ack()
	wantSettled(t, s, "of the new stream", 1)
}
