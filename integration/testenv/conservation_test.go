package testenv

import (
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

type message struct{ subject, header, id string }

func (m message) msg() *nats.Msg {
	msg := nats.NewMsg(m.subject)
	msg.Data = []byte("{}")
	if m.header != "" {
		msg.Header.Set(m.header, m.id)
	}
	return msg
}

func createStream(t *testing.T, js jetstream.JetStream, config jetstream.StreamConfig) jetstream.Stream {
	t.Helper()
	stream, err := js.CreateStream(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	return stream
}

// publish publishes all messages and waits until they are stored.
func publish(t *testing.T, server *NATSServer, messages ...message) {
	t.Helper()
	js, err := jetstream.New(server.Conn(), jetstream.WithPublishAsyncMaxPending(len(messages)))
	if err != nil {
		t.Fatal(err)
	}
	acks := make([]jetstream.PubAckFuture, len(messages))
	for i, m := range messages {
		if acks[i], err = js.PublishMsgAsync(m.msg()); err != nil {
			t.Fatal(err)
		}
	}
	for _, ack := range acks {
		select {
		case <-ack.Ok():
		case err := <-ack.Err():
			t.Fatal(err)
		case <-time.After(startTimeout):
			t.Fatal("no ack")
		}
	}
}

func TestSnapshotFindsEventsWhereverTheyAre(t *testing.T) {
	t.Parallel()
	server, receiver := NATS(t), Receiver(t)
	js := server.JetStream()
	source := createStream(t, js, jetstream.StreamConfig{
		Name: "EVENTS", Subjects: []string{"events.>"}, Retention: jetstream.WorkQueuePolicy, AllowDirect: true,
	})
	createStream(t, js, jetstream.StreamConfig{Name: "SLUICE_LANES", Subjects: []string{"sluice.lane.>"}, AllowDirect: true})
	createStream(t, js, jetstream.StreamConfig{Name: "SLUICE_DLQ", Subjects: []string{"sluice.dlq.>"}}) // no direct get

	const many = 10000
	var messages []message
	var published []string
	for i := range many {
		id := fmt.Sprintf("order:%d", i)
		published = append(published, id)
		messages = append(messages, message{"events.u", nats.MsgIdHdr, id})
	}
	messages = append(messages,
		message{subject: "events.u"}, // named by its place in the source
		message{"sluice.lane.s01.u", "Sluice-Id", "waits"},
		message{"sluice.lane.s01.u", "Sluice-Id", "waits"},
		message{"sluice.lane.s01.u", "Sluice-Id", "waits-too"},
		message{"sluice.dlq.rejected.u", "Sluice-Id", "dead"},
		message{"sluice.dlq.rejected.u", "Sluice-Id", "dead-too"},
	)
	publish(t, server, messages...)
	// A consumer that has acked the first events, among others that it hasn't.
	worker, err := source.CreateConsumer(t.Context(), jetstream.ConsumerConfig{Durable: "w", AckPolicy: jetstream.AckExplicitPolicy})
	if err != nil {
		t.Fatal(err)
	}
	batch, err := worker.Fetch(100)
	if err != nil {
		t.Fatal(err)
	}
	delivered := 0
	for msg := range batch.Messages() {
		if delivered++; delivered%2 == 0 {
			continue
		}
		if err := msg.DoubleAck(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	push(t, receiver, "pushed", nil)
	receiver.Handle(func(Request) Response { return Response{Status: http.StatusTooManyRequests} })
	push(t, receiver, "refused", nil)

	start := time.Now()
	snapshot := Snapshot(t, server, receiver, Streams{})
	t.Logf("%s in %v", snapshot, time.Since(start))

	if got, want := snapshot.String(), "source 9951, lanes 2, dead letters 2, delivered 1"; got != want {
		t.Errorf("found %s, want %s", got, want)
	}
	if snapshot.Lanes["waits"] != 2 {
		t.Errorf("found a waiting event %d times, want 2", snapshot.Lanes["waits"])
	}
	published = append(published, "EVENTS:10001", "waits", "waits-too", "dead", "dead-too", "pushed", "refused")
	var want []string // what was acked though it is nowhere else, and what the receiver refused
	for i := 0; i < 100; i += 2 {
		want = append(want, fmt.Sprintf("order:%d", i))
	}
	want = append(want, "refused")
	slices.Sort(want)
	if got := snapshot.Missing(published); !slices.Equal(got, want) {
		t.Errorf("missing %v, want %v", got, want)
	}
}

func TestSnapshotTakesAbsentStreamsAsEmpty(t *testing.T) {
	t.Parallel()
	server, receiver := NATS(t), Receiver(t)
	createStream(t, server.JetStream(), jetstream.StreamConfig{
		Name: "OTHER", Subjects: []string{"other.>"}, Retention: jetstream.WorkQueuePolicy, AllowDirect: true,
	})
	snapshot := Snapshot(t, server, receiver, Streams{Source: "OTHER"})
	if got, want := snapshot.String(), "source 0, lanes 0, dead letters 0, delivered 0"; got != want {
		t.Errorf("found %s, want %s", got, want)
	}
	if got := snapshot.Missing([]string{"a"}); !slices.Equal(got, []string{"a"}) {
		t.Errorf("missing %v, want [a]", got)
	}
}
