package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// startNATS starts a server in this process and makes it the one of SLUICE_NATS_URL, the only variable set.
func startNATS(t *testing.T, opts server.Options) *server.Server {
	t.Helper()
	opts.Host, opts.NoLog, opts.NoSigs, opts.JetStream = "127.0.0.1", true, true, true
	if opts.Port == 0 {
		opts.Port = server.RANDOM_PORT
	}
	if opts.StoreDir == "" {
		opts.StoreDir = t.TempDir()
	}
	s, err := server.NewServer(&opts)
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(10 * time.Second) {
		t.Fatal("the server isn't ready")
	}
	setEnvironment(t, "SLUICE_NATS_URL="+s.ClientURL())
	return s
}

// eventStream makes the stream EVENTS.
func eventStream(t *testing.T, url string) jetstream.Stream {
	t.Helper()
	nc, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "EVENTS", Subjects: []string{"events.>"}})
	if err != nil {
		t.Fatal(err)
	}
	return stream
}

func stored(t *testing.T, stream jetstream.Stream) uint64 {
	t.Helper()
	info, err := stream.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return info.State.Msgs
}

// awaitStored waits until the stream holds n messages.
func awaitStored(t *testing.T, stream jetstream.Stream, n uint64) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); stored(t, stream) < n; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the stream holds %d messages after 20 s, want %d", stored(t, stream), n)
		}
	}
}

func TestPublishOneEvent(t *testing.T) {
	stream := eventStream(t, startNATS(t, server.Options{}).ClientURL())
	code, stdout, stderr := execute(t, t.Context(), "",
		"publish", "events.alice", `{"n":1}`, "--id", "order-17", "--header", "Content-Type: application/json", "--header", "X:a:b")
	if code != 0 || stderr != "" || !strings.HasPrefix(stdout, "published 1 event, 0 duplicates, 0 bad lines, 0 failed in ") {
		t.Fatalf("exit %d, %q, %q", code, stdout, stderr)
	}
	msg, err := stream.GetMsg(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	if msg.Subject != "events.alice" || string(msg.Data) != `{"n":1}` || msg.Header.Get("Nats-Msg-Id") != "order-17" ||
		msg.Header.Get("Content-Type") != "application/json" || msg.Header.Get("X") != "a:b" {
		t.Errorf("stored %s %q %v", msg.Subject, msg.Data, msg.Header)
	}

	code, stdout, _ = execute(t, t.Context(), "", "publish", "events.alice", "again", "--id", "order-17")
	if code != 0 || !strings.HasPrefix(stdout, "published 0 events, 1 duplicate,") {
		t.Errorf("the same id again: exit %d, %q", code, stdout)
	}
}

func TestPublishTakesStandardInputWhole(t *testing.T) {
	stream := eventStream(t, startNATS(t, server.Options{}).ClientURL())
	const text = "line 1\r\nline 2\n"
	for i, args := range [][]string{{"publish", "events.a"}, {"publish", "events.a", "-"}} {
		if code, _, stderr := execute(t, t.Context(), text, args...); code != 0 {
			t.Fatalf("%v: exit %d, %s", args, code, stderr)
		}
		msg, err := stream.GetMsg(t.Context(), uint64(i+1))
		if err != nil || string(msg.Data) != text {
			t.Errorf("%v: stored %q, %v", args, msg.Data, err)
		}
	}
}

func TestPublishTenThousandLines(t *testing.T) {
	stream := eventStream(t, startNATS(t, server.Options{}).ClientURL())
	var file strings.Builder
	for i := range 10_000 {
		fmt.Fprintf(&file, `{"key":"user-%d","id":"e%d","data":{"n":%d}}`+"\n", i%100, i, i)
	}
	path := writeFile(t, "events.ndjson", file.String())
	code, stdout, stderr := execute(t, t.Context(), "", "publish", "-f", path, "--json")
	if code != 0 || stderr != "" {
		t.Fatalf("exit %d, %s", code, stderr)
	}
	got := counts(t, stdout)
	if got != (publishCounts{Published: 10_000}) || stored(t, stream) != 10_000 {
		t.Errorf("got %+v, stored %d", got, stored(t, stream))
	}

	code, stdout, _ = execute(t, t.Context(), file.String()+`{"key":"new"}`, "publish", "-f", "-", "--json")
	if got := counts(t, stdout); code != 0 || got != (publishCounts{Published: 1, Duplicates: 10_000}) {
		t.Errorf("the same file again and one event: exit %d, %+v", code, got)
	}
}

func counts(t *testing.T, stdout string) publishCounts {
	t.Helper()
	var c publishCounts
	if err := json.Unmarshal([]byte(stdout), &c); err != nil {
		t.Fatalf("%q: %v", stdout, err)
	}
	return c
}

const mixedLines = "\uFEFF" + `{"key":"a","data":"1"}` + "\r\n" +
	`{"key":"a","body":"2"}` + "\n\n" +
	`{"key":"b","data":"3","data_base64":"AA=="}` + "\n" +
	`{"subject":"events.c.d","data":"4"}`

func TestBadLinesAreNumberedAndDontStopTheOthers(t *testing.T) {
	stream := eventStream(t, startNATS(t, server.Options{}).ClientURL())
	code, stdout, stderr := execute(t, t.Context(), mixedLines, "publish", "-f", "-", "--header", "X: y")
	if code != 1 || !strings.HasPrefix(stdout, "published 2 events, 0 duplicates, 2 bad lines, 0 failed in ") {
		t.Errorf("exit %d, %q", code, stdout)
	}
	const want = "line 2: body: unknown field; known are key, subject, id, headers, data, data_base64, time\n" +
		"line 4: data_base64: stands beside data; give one of them\n" +
		"sluice: 2 events not published\n"
	if stderr != want {
		t.Errorf("got\n%s\nwant\n%s", stderr, want)
	}
	msg, err := stream.GetMsg(t.Context(), 2)
	if err != nil || msg.Subject != "events.c.d" || msg.Header.Get("X") != "y" {
		t.Errorf("stored %+v, %v", msg, err)
	}
}

// What a worker would dead-letter at once is told to whoever publishes it.
func TestEventsWithUnreadableHeadersAreNotPublished(t *testing.T) {
	s := startNATS(t, server.Options{})
	stream := eventStream(t, s.ClientURL())
	for header, want := range map[string]string{
		"Sluice-Expires: 2026-12-24T5:00:00Z": "Sluice-Expires is", "sluice-expires: soon": "Sluice-Expires is",
		"Sluice-Cost: nonsense": `Sluice-Cost is "nonsense"`, "Sluice-Collapse:": "Sluice-Collapse has 0 bytes",
	} {
		name, value, _ := strings.Cut(header, ":")
		line := fmt.Sprintf("\uFEFF{\"key\":\"a\",\"headers\":{%q:%q}}\n", name, strings.TrimSpace(value))
		if code, _, stderr := execute(t, t.Context(), line, "publish", "-f", "-"); code != 1 || !strings.Contains(stderr, "line 1: headers: "+want) {
			t.Errorf("%s in a file: exit %d, %s", header, code, stderr)
		}
		if code, _, stderr := execute(t, t.Context(), `{"key":"a"}`, "publish", "-f", "-", "--header", header); code != 1 || !strings.Contains(stderr, want) {
			t.Errorf("%s for all of a file: exit %d, %s", header, code, stderr)
		}
		if code, _, stderr := execute(t, t.Context(), "", "publish", "events.a", "x", "--header", header); code != 2 || !strings.Contains(stderr, want) {
			t.Errorf("%s as a flag: exit %d, %s", header, code, stderr)
		}
	}
	good := "{\"key\":\"a\"}\n\uFEFF{\"key\":\"a\",\"headers\":{\"Sluice-Expires\":\"2d\",\"Sluice-Cost\":\"3\"}}\n"
	if code, _, stderr := execute(t, t.Context(), good, "publish", "-f", "-"); code != 0 || stored(t, stream) != 2 {
		t.Errorf("good lines: exit %d, %d stored, %s", code, stored(t, stream), stderr)
	}
}

func TestStrictStopsAtTheFirstBadLine(t *testing.T) {
	stream := eventStream(t, startNATS(t, server.Options{}).ClientURL())
	code, stdout, stderr := execute(t, t.Context(), mixedLines, "publish", "-f", "-", "--strict")
	if code != 1 || !strings.HasPrefix(stdout, "published 1 event, 0 duplicates, 1 bad line, 0 failed") {
		t.Errorf("exit %d, %q", code, stdout)
	}
	if !strings.Contains(stderr, "stopped at line 2") || stored(t, stream) != 1 {
		t.Errorf("stored %d, %s", stored(t, stream), stderr)
	}
}

func TestEventWithoutStreamFailsWithARemedy(t *testing.T) {
	startNATS(t, server.Options{})
	code, stdout, stderr := execute(t, t.Context(), "", "publish", "nowhere.a", "x")
	if code != 1 || !strings.HasPrefix(stdout, "published 0 events, 0 duplicates, 0 bad lines, 1 failed") {
		t.Errorf("exit %d, %q", code, stdout)
	}
	for _, want := range []string{`no stream takes the subject "nowhere.a"`, "SLUICE_STREAM", "'sluice setup'", "SLUICE_SETUP=all"} {
		if !strings.Contains(stderr, want) {
			t.Errorf("stderr lacks %q: %s", want, stderr)
		}
	}
}

func TestEventTooLargeForTheServerFailsAlone(t *testing.T) {
	stream := eventStream(t, startNATS(t, server.Options{MaxPayload: 1000}).ClientURL())
	lines := `{"key":"a","data":"` + strings.Repeat("x", 2000) + `"}` + "\n" + `{"key":"a","data":"y"}`
	code, stdout, stderr := execute(t, t.Context(), lines, "publish", "-f", "-")
	if code != 1 || !strings.HasPrefix(stdout, "published 1 event, 0 duplicates, 0 bad lines, 1 failed") || stored(t, stream) != 1 {
		t.Errorf("exit %d, %q", code, stdout)
	}
	if !strings.Contains(stderr, "line 1: the event has 2000 bytes, more than the server takes (max_payload 1000)") {
		t.Error(stderr)
	}
}

func TestRateSpacesEvents(t *testing.T) {
	eventStream(t, startNATS(t, server.Options{}).ClientURL())
	var lines strings.Builder
	for range 31 {
		lines.WriteString(`{"key":"a"}` + "\n")
	}
	started := time.Now()
	code, _, stderr := execute(t, t.Context(), lines.String(), "publish", "-f", "-", "--rate", "100/s")
	if took := time.Since(started); code != 0 || took < 300*time.Millisecond {
		t.Errorf("31 events at 100/s: exit %d after %v, want at least 300ms; %s", code, took, stderr)
	}
}

func TestParsePace(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{"500/s": "500 5", "50/s": "50 1", "500/s burst 2": "500 2", "60/m": "1 1", "1000000/s": "1e+06 10000"} {
		pace, err := parsePace(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if got := fmt.Sprintf("%g %d", float64(pace.Limit()), pace.Burst()); got != want {
			t.Errorf("%s: got rate and burst %s, want %s", text, got, want)
		}
	}
	if pace, err := parsePace("unlimited"); pace != nil || err != nil {
		t.Errorf("unlimited: got %v, %v", pace, err)
	}
}

func TestInterruptedPublishCountsWhatIsConfirmed(t *testing.T) {
	stream := eventStream(t, startNATS(t, server.Options{}).ClientURL())
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	in, lines := io.Pipe() // never closed: its reader waits for more
	defer in.Close()
	var stdout, stderr bytes.Buffer
	done := make(chan int, 1)
	go func() { done <- run(ctx, []string{"publish", "-f", "-"}, in, &stdout, &stderr) }()

	_, _ = io.WriteString(lines, strings.Repeat(`{"key":"a"}`+"\n", 3))
	awaitStored(t, stream, 3)
	interrupt()
	select {
	case code := <-done:
		if code != 1 || !strings.HasPrefix(stdout.String(), "published 3 events, 0 duplicates, 0 bad lines, 0 failed") ||
			!strings.Contains(stderr.String(), "sluice: stopped: ") {
			t.Errorf("exit %d, %q, %q", code, stdout.String(), stderr.String())
		}
	case <-time.After(20 * time.Second):
		t.Fatal("it doesn't end")
	}
}

func TestEventsWithAnIDSurviveARestartOfTheServer(t *testing.T) {
	dir := t.TempDir()
	first := startNATS(t, server.Options{StoreDir: dir})
	port := first.ClientURL()[strings.LastIndexByte(first.ClientURL(), ':')+1:]
	stream := eventStream(t, first.ClientURL())
	in, lines := io.Pipe()
	var stdout, stderr bytes.Buffer
	done := make(chan int, 1)
	go func() { done <- run(t.Context(), []string{"publish", "-f", "-"}, in, &stdout, &stderr) }()

	_, _ = io.WriteString(lines, `{"key":"a","id":"e"}`+"\n")
	awaitStored(t, stream, 1)
	first.Shutdown() // perhaps before it has answered
	first.WaitForShutdown()
	go func() {
		for i := range 100 {
			_, _ = fmt.Fprintf(lines, `{"key":"a","id":"e%d"}`+"\n", i)
		}
		_ = lines.Close()
	}()
	var n int
	_, _ = fmt.Sscan(port, &n)
	startNATS(t, server.Options{StoreDir: dir, Port: n})
	select {
	case code := <-done:
		if code != 0 || !strings.HasPrefix(stdout.String(), "published 101 events,") {
			t.Errorf("exit %d, %q, %q", code, stdout.String(), stderr.String())
		}
	case <-time.After(30 * time.Second):
		t.Fatal("it doesn't end")
	}
}

// lossyJetStream stores what is published, and loses the first answers.
type lossyJetStream struct {
	jetstream.JetStream
	losses int
}

func (l *lossyJetStream) PublishMsgAsync(msg *nats.Msg, opts ...jetstream.PublishOpt) (jetstream.PubAckFuture, error) {
	future, err := l.JetStream.PublishMsgAsync(msg, opts...)
	if err != nil || l.losses == 0 {
		return future, err
	}
	l.losses--
	<-future.Ok()
	lost := lostAnswer{future, make(chan error, 1)}
	lost.err <- nats.ErrDisconnected
	return lost, nil
}

type lostAnswer struct {
	jetstream.PubAckFuture
	err chan error
}

func (l lostAnswer) Ok() <-chan *jetstream.PubAck { return nil }
func (l lostAnswer) Err() <-chan error            { return l.err }

func TestLostConfirmationIsAskedForAgainOnlyWithAnID(t *testing.T) {
	s := startNATS(t, server.Options{})
	stream := eventStream(t, s.ClientURL())
	nc, err := nats.Connect(s.ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	var troubles []error
	p, err := newPublisher(t.Context(), nc, "", nil, func(err error) { troubles = append(troubles, err) })
	if err != nil {
		t.Fatal(err)
	}
	p.js = &lossyJetStream{JetStream: p.js, losses: 2}
	if err := p.publish(t.Context(), "line 1", &nats.Msg{Subject: "events.a", Header: nats.Header{"Nats-Msg-Id": {"1"}}}); err != nil {
		t.Fatal(err)
	}
	p.waiting.Wait()
	if n := stored(t, stream); p.published.Load() != 1 || p.duplicates.Load() != 0 || len(troubles) != 0 || n != 1 {
		t.Errorf("with an id: %d published, stored %d, troubles %v", p.published.Load(), n, troubles)
	}

	p.js.(*lossyJetStream).losses = 1
	if err := p.publish(t.Context(), "line 2", &nats.Msg{Subject: "events.a"}); err != nil {
		t.Fatal(err)
	}
	p.finish()
	if n := stored(t, stream); p.failed.Load() != 1 || n != 2 || len(troubles) != 1 || !strings.Contains(troubles[0].Error(), "may be stored or not") {
		t.Errorf("without an id: %d failed, stored %d, troubles %v", p.failed.Load(), n, troubles)
	}
}

func TestPublishWithoutServerGivesUpSoon(t *testing.T) {
	setEnvironment(t, "SLUICE_NATS_URL=nats://u:hunter2@127.0.0.1:1")
	started := time.Now()
	code, _, stderr := execute(t, t.Context(), "", "publish", "events.a", "x")
	if code != 1 || !strings.Contains(stderr, "cannot reach NATS at nats://127.0.0.1:1 ") || !strings.Contains(stderr, "connection refused") ||
		!strings.Contains(stderr, "SLUICE_NATS_URL") || strings.Contains(stderr, "hunter2") {
		t.Errorf("exit %d, %s", code, stderr)
	}
	if took := time.Since(started); took > 15*time.Second {
		t.Errorf("it took %v", took)
	}
}

func TestPublishAuthenticates(t *testing.T) {
	s := startNATS(t, server.Options{Username: "u", Password: "right"})
	t.Setenv("SLUICE_NATS_USER", "u")
	t.Setenv("SLUICE_NATS_PASSWORD", "wrong-hunter2")
	code, _, stderr := execute(t, t.Context(), "", "publish", "events.a", "x")
	if code != 1 || !strings.Contains(stderr, "Authorization Violation") || strings.Contains(stderr, "hunter2") {
		t.Errorf("wrong password: exit %d, %s", code, stderr)
	}
	stream := eventStream(t, strings.Replace(s.ClientURL(), "://", "://u:right@", 1))
	t.Setenv("SLUICE_NATS_PASSWORD", "")
	t.Setenv("SLUICE_NATS_PASSWORD_FILE", writeFile(t, "password", "right\n"))
	t.Setenv("SLUICE_NATS_INBOX_PREFIX", "_MINE")
	if code, _, stderr := execute(t, t.Context(), "", "publish", "events.a", "x"); code != 0 || stored(t, stream) != 1 {
		t.Errorf("right password: exit %d, %s", code, stderr)
	}
}

func TestReportsAreBounded(t *testing.T) {
	t.Parallel()
	var w bytes.Buffer
	p := newProgress(&w, 1000)
	for i := range 3 * maxReports {
		p.report(fmt.Errorf("line %d", i))
	}
	p.close()
	if n := strings.Count(w.String(), "\n"); n != maxReports+1 || !strings.HasSuffix(w.String(), "only counted\n") {
		t.Errorf("%d lines were written, want %d", n, maxReports+1)
	}
}

func TestNoProgressBarBesideATerminal(t *testing.T) {
	t.Parallel()
	file, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	p := newProgress(file, 1000)
	p.set(500)
	p.close()
	if info, _ := file.Stat(); info.Size() != 0 {
		t.Errorf("%d bytes were written", info.Size())
	}
}
