package stream

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"sluice/integration/testenv"
	"sluice/pipeline"
)

// behindProxy is a server with n events in lanes and dead letters, opened through a proxy.
func behindProxy(t *testing.T, n int) (*testenv.ProxyServer, *Lanes, *DeadLetters) {
	t.Helper()
	js, cfg := newServer(t)
	l, dlq := openLanes(t, js, cfg), openDeadLetters(t, js, cfg)
	for i := range n {
		ev := event(fmt.Sprint("k", i%3), uint64(i+1), "data")
		ev.Header = pipeline.Header{"Padding": {strings.Repeat("x", 300)}}
		appendEvent(t, l, ev)
		if err := dlq.Bury(t.Context(), ev, pipeline.Rejected, nil); err != nil {
			t.Fatal(err)
		}
	}
	u, err := url.Parse(cfg.URLs)
	if err != nil {
		t.Fatal(err)
	}
	proxy := testenv.Proxy(t, u.Host)
	cfg.URLs = proxy.URL(t, cfg.URLs)
	js = connect(t, cfg)
	return proxy, openLanes(t, js, cfg), openDeadLetters(t, js, cfg)
}

// want are the first n source sequences.
func wantFirst(n int) []uint64 {
	all := make([]uint64, n)
	for i := range all {
		all[i] = uint64(i + 1)
	}
	return all
}

func TestScanGivesAllEventsHoweverLongTheServerStalls(t *testing.T) {
	t.Parallel()
	const events = 300
	for _, stall := range []time.Duration{1300 * time.Millisecond, 3500 * time.Millisecond} { // the second takes it for a loss
		t.Run(stall.String(), func(t *testing.T) {
			t.Parallel()
			proxy, l, dlq := behindProxy(t, events)
			var got []uint64
			proxy.Stall(20_000, stall)
			err := l.Each(t.Context(), func(ev *pipeline.Event, _ uint64) error {
				got = append(got, ev.Source.Seq)
				return nil
			})
			if err != nil || !slices.Equal(got, wantFirst(events)) {
				t.Errorf("%d of %d events of the lanes, error %v", len(got), events, err)
			}
			if stall > 2*time.Second {
				return
			}
			got = nil
			proxy.Stall(20_000, stall)
			err = dlq.Each(t.Context(), DeadSelection{Reasons: []pipeline.DeadReason{pipeline.Rejected, pipeline.Exhausted}}, func(d DeadLetter) error {
				got = append(got, d.Event.Source.Seq)
				return nil
			})
			if err != nil || !slices.Equal(got, wantFirst(events)) {
				t.Errorf("%d of %d dead letters, error %v", len(got), events, err)
			}
		})
	}
}

func TestScanGoesOnAfterAConnectionThatWasLost(t *testing.T) {
	t.Parallel()
	const events = 300
	proxy, l, _ := behindProxy(t, events)
	var got []uint64
	proxy.Stall(20_000, 200*time.Millisecond) // what comes behind that is lost
	err := l.Each(t.Context(), func(ev *pipeline.Event, _ uint64) error {
		if got = append(got, ev.Source.Seq); len(got) == 10 {
			proxy.Cut()
			proxy.Mend()
		}
		return nil
	})
	if err != nil || !slices.Equal(got, wantFirst(events)) {
		t.Errorf("%d of %d events, error %v", len(got), events, err)
	}
}

func TestScanEndsWithWhatTheLeaderHas(t *testing.T) {
	t.Parallel()
	js, cfg := newServer(t)
	l := openLanes(t, js, cfg)
	for i := range 20 {
		appendEvent(t, l, event("k", uint64(i+1), "data"))
	}
	last, err := l.Last(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	read := 0
	err = l.Each(t.Context(), func(_ *pipeline.Event, seq uint64) error {
		read++
		if read == 10 { // the others go, and new ones come, which the scan isn't for
			for gone := seq + 1; gone <= last; gone++ {
				if err := l.store.deleteMessage(t.Context(), gone); err != nil {
					t.Error(err)
				}
			}
			appendEvent(t, l, event("k", 21, "data"))
		}
		return nil
	})
	if err != nil || read < 10 || read > 20 {
		t.Errorf("read %d events, error %v", read, err)
	}
	wrong := errors.New("enough")
	if err := l.Each(t.Context(), func(*pipeline.Event, uint64) error { return wrong }); !errors.Is(err, wrong) {
		t.Errorf("got %v, want the error of who reads", err)
	}
	if err := js.DeleteStream(t.Context(), cfg.names().LanesStream()); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	err = l.Between(t.Context(), 0, last, func(*pipeline.Event, uint64) error { return nil })
	if !errors.Is(err, jetstream.ErrStreamNotFound) && codeOf(err) != jetstream.JSErrCodeStreamNotFound || time.Since(began) > 5*time.Second {
		t.Errorf("without a stream: %v, want that said at once", err)
	}
}

// What another pulls from the scan's consumer stands for what is lost on the way.
func TestScanNoticesMessagesThatAreMissing(t *testing.T) {
	t.Parallel()
	js, cfg := newServer(t)
	l := openLanes(t, js, cfg)
	const events = 1200 // more than are asked for at a time
	storeMany(t, js, l, events)
	other := rawConn(t, cfg.URLs)
	var got []uint64
	stolen := 0
	err := l.Each(t.Context(), func(ev *pipeline.Event, _ uint64) error {
		if got = append(got, ev.Source.Seq); len(got) != 100 {
			return nil
		}
		for name := range l.store.stream.ConsumerNames(t.Context()).Name() {
			for range 5 {
				if _, err := other.Request("$JS.API.CONSUMER.MSG.NEXT.SLUICE_LANES."+name, nil, 5*time.Second); err == nil {
					stolen++
				}
			}
		}
		return nil
	})
	if err != nil || stolen != 5 || !slices.Equal(got, wantFirst(events)) {
		t.Errorf("%d of %d events, error %v, %d of 5 were missing", len(got), events, err, stolen)
	}
}

// A scan gives what it reads to callers that may be slow; the server ends what it asked for, and its consumer, meanwhile.
func TestScanThatFindsItsConsumerGoneGoesOn(t *testing.T) {
	t.Parallel()
	js, cfg := newServer(t)
	l := openLanes(t, js, cfg)
	const events = 1200 // more than are asked for at a time
	storeMany(t, js, l, events)
	var got []uint64
	err := l.Each(t.Context(), func(ev *pipeline.Event, _ uint64) error {
		if got = append(got, ev.Source.Seq); len(got) == 700 {
			for name := range l.store.stream.ConsumerNames(t.Context()).Name() {
				if err := l.store.stream.DeleteConsumer(t.Context(), name); err != nil {
					t.Error(err)
				}
			}
		}
		return nil
	})
	if err != nil || !slices.Equal(got, wantFirst(events)) {
		t.Errorf("%d of %d events, error %v", len(got), events, err)
	}
	eventually(t, "its consumers are gone", func() bool {
		info, err := l.store.stream.Info(t.Context())
		return err == nil && info.State.Consumers == 0
	})
}

// storeMany puts n events into the lane of k.
func storeMany(t *testing.T, js jetstream.JetStream, l *Lanes, n int) {
	t.Helper()
	for i := range n {
		if _, err := js.PublishMsgAsync(storedMessage(l, event("k", uint64(i+1), "data"))); err != nil {
			t.Fatal(err)
		}
	}
	<-js.PublishAsyncComplete()
}

func storedMessage(l *Lanes, ev *pipeline.Event) *nats.Msg {
	return &nats.Msg{Subject: l.names.Lane(ev.Key), Header: storedHeader(ev), Data: ev.Data}
}

func TestStoredEventThatLooksLikeAStatusIsReadLikeOthers(t *testing.T) {
	t.Parallel()
	js, cfg := newServer(t)
	l := openLanes(t, js, cfg)
	statuses := []string{"404", "100", "503", "409", "any"}
	for i, status := range statuses {
		msg := storedMessage(l, event("k", uint64(2*i+1), ""))
		msg.Header["Status"], msg.Header["Description"] = []string{status}, []string{"Consumer Deleted"} // by whoever restored the stream
		if _, err := js.PublishMsg(t.Context(), msg); err != nil {
			t.Fatal(err)
		}
		ev := event("k", uint64(2*i+2), "")
		ev.Header = pipeline.Header{"Status": {status}}
		appendEvent(t, l, ev)
	}
	var got []uint64
	err := l.Each(t.Context(), func(ev *pipeline.Event, seq uint64) error {
		got = append(got, ev.Source.Seq)
		full, err := readLane(t, l, "k", seq)
		if err != nil || full.Source != ev.Source {
			t.Errorf("event %d is read as %v, error %v", ev.Source.Seq, full, err)
		} else if status := full.Header.Get("Status"); ev.Source.Seq%2 == 0 && !slices.Contains(statuses, status) {
			t.Errorf("event %d lost its header Status: %q", ev.Source.Seq, status)
		}
		return nil
	})
	if err != nil || !slices.Equal(got, wantFirst(2*len(statuses))) {
		t.Errorf("events %v, error %v", got, err)
	}
}
