package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"sluice/pipeline"
	"sluice/pipeline/stream"
)

// letterRig is a server with everything set up, and a hand on what is stored there.
type letterRig struct {
	t       *testing.T
	js      jetstream.JetStream
	cfg     stream.Config
	letters *stream.DeadLetters
	url     string
}

func newLetterRig(t *testing.T, opts server.Options) *letterRig {
	t.Helper()
	r := &letterRig{t: t, url: startNATS(t, opts).ClientURL()}
	t.Setenv("SLUICE_SETUP", "all")
	cfg, err := loadConfig(natsPart, sourcePart, ownPart)
	if err != nil {
		t.Fatal(err)
	}
	r.cfg = cfg.stream()
	nc, err := nats.Connect(r.url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	if r.js, err = jetstream.New(nc); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Setup(t.Context(), r.js, r.cfg); err != nil {
		t.Fatal(err)
	}
	if r.letters, err = stream.OpenDeadLetters(t.Context(), r.js, r.cfg); err != nil {
		t.Fatal(err)
	}
	return r
}

// bury makes a dead letter of an event of key, whose number is n.
func (r *letterRig) bury(reason pipeline.DeadReason, key string, n int, data string) {
	r.t.Helper()
	r.buryEvent(reason, &pipeline.Event{
		ID: fmt.Sprintf("id-%d", n), Key: key, Subject: "events." + key, Header: pipeline.Header{"Nats-Msg-Id": {fmt.Sprintf("id-%d", n)}},
		Data: []byte(data), Time: time.Now(), Source: pipeline.SourceID{Stream: "EVENTS", Created: 1, Seq: uint64(n)}, Attempt: 9, First: time.Now(),
	})
}

func (r *letterRig) buryEvent(reason pipeline.DeadReason, ev *pipeline.Event) {
	r.t.Helper()
	if err := r.letters.Bury(r.t.Context(), ev, reason, errors.New("the receiver answered 400 Bad Request")); err != nil {
		r.t.Fatal(err)
	}
}

func (r *letterRig) held(name string) uint64 {
	r.t.Helper()
	s, err := r.js.Stream(r.t.Context(), name)
	if err != nil {
		r.t.Fatal(err)
	}
	return s.CachedInfo().State.Msgs
}

// next is the next event that a worker would get, and acknowledges it.
func (r *letterRig) next(source *stream.Source) *pipeline.Event {
	r.t.Helper()
	d, err := source.Next(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	d.Ack()
	return d.Event()
}

func (r *letterRig) source() *stream.Source {
	r.t.Helper()
	source, err := stream.OpenSource(r.t.Context(), r.js, r.cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = source.Close(r.t.Context()) })
	return source
}

// dlq runs `sluice dlq` and returns its counts, or whatever it prints as JSON.
func (r *letterRig) dlq(wantCode int, args ...string) (stdout, stderr string) {
	r.t.Helper()
	code, stdout, stderr := execute(r.t, r.t.Context(), "", append([]string{"dlq"}, args...)...)
	if code != wantCode {
		r.t.Errorf("%v: exit %d, want %d; %s%s", args, code, wantCode, stdout, stderr)
	}
	return stdout, stderr
}

func decodeInto[T any](t *testing.T, text string) (v T) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	return v
}

func seqsOf(t *testing.T, lines string) []uint64 {
	t.Helper()
	var seqs []uint64
	for line := range strings.Lines(lines) {
		seqs = append(seqs, decodeInto[letterJSON](t, line).Seq)
	}
	return seqs
}

func TestDeadLettersAreSelected(t *testing.T) {
	r := newLetterRig(t, server.Options{})
	if stdout, _ := r.dlq(0, "ls"); stdout != "there are no dead letters\n" {
		t.Errorf("without any it prints %q", stdout)
	}
	r.bury(pipeline.Rejected, "alice", 1, "")
	r.bury(pipeline.MaxWait, "alice", 2, "")
	r.bury(pipeline.Rejected, "b.*\xff", 3, "")
	r.bury(pipeline.Rejected, "alice", 4, "")
	r.bury(pipeline.NoKey, "", 5, "")
	for _, c := range []struct {
		args []string
		want []uint64
	}{
		{nil, []uint64{1, 2, 3, 4, 5}},
		{[]string{"--reason", "rejected"}, []uint64{1, 3, 4}},
		{[]string{"--reason", "no_key", "--reason", "max_wait"}, []uint64{2, 5}},
		{[]string{"--key", "alice"}, []uint64{1, 2, 4}},
		{[]string{"--key", "b.*\xff"}, []uint64{3}},
		{[]string{"--key", "*"}, nil},
		{[]string{"--key", "alice", "--reason", "rejected", "--limit", "1"}, []uint64{1}},
		{[]string{"--id", "id-4", "--id", "id-5"}, []uint64{4, 5}},
		{[]string{"--id", "id-4", "--key", "bob"}, nil},
		{[]string{"--limit", "2"}, []uint64{1, 2}},
		{[]string{"--newer", "1d"}, []uint64{1, 2, 3, 4, 5}},
		{[]string{"--older", "1h"}, nil},
		{[]string{"--newer", "0s"}, nil},
		{[]string{"--older", "0s", "--newer", "1d12h"}, []uint64{1, 2, 3, 4, 5}},
	} {
		stdout, stderr := r.dlq(0, append([]string{"ls", "--json"}, c.args...)...)
		if got := seqsOf(t, stdout); !slices.Equal(got, c.want) {
			t.Errorf("%q selects %v, want %v", c.args, got, c.want)
		}
		if c.want == nil && stderr != "no dead letter fits\n" {
			t.Errorf("%q: stderr is %q", c.args, stderr)
		}
	}
	stdout, _ := r.dlq(0, "ls", "--summary", "--json", "--reason", "rejected")
	first, second, _ := strings.Cut(stdout, "\n")
	if sum := decodeInto[letterSum](t, first); sum.Count != 2 || sum.Key != "alice" || sum.Reason != "rejected" {
		t.Errorf("the first sum is %s", first)
	}
	if sum := decodeInto[letterSum](t, second); sum.Count != 1 || string(sum.KeyBase64) != "b.*\xff" {
		t.Errorf("the second sum is %s", second)
	}
	if stdout, _ = r.dlq(0, "ls", "--summary"); !strings.HasSuffix(stdout, "\n5 dead letters (1 max_wait, 1 no_key, 3 rejected)\n") {
		t.Errorf("the summary is\n%s", stdout)
	}
}

func TestAgeOfDeadLettersIsThatOfTheirBurial(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for _, c := range []struct {
		older, newer string
		want         string // of those buried 1, 2 and 3 hours ago
	}{{"90m", "", "2 3"}, {"", "90m", "1"}, {"90m", "150m", "2"}, {"2h", "", "3"}, {"1d", "", ""}} {
		var f letterFlags
		flags := newDLQListCommand().Flags()
		f.flags = flags
		for name, value := range map[string]string{"older": c.older, "newer": c.newer} {
			if value != "" {
				_ = flags.Set(name, value)
			}
		}
		f.older, f.newer = c.older, c.newer
		s, err := f.parse(now)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for hours := range 3 {
			l := stream.DeadLetter{Event: &pipeline.Event{}, Buried: now.Add(-time.Duration(hours+1) * time.Hour)}
			if s.fits(l, 0) {
				got = append(got, fmt.Sprint(hours+1))
			}
		}
		if text := strings.Join(got, " "); text != c.want {
			t.Errorf("older %q, newer %q: %q, want %q", c.older, c.newer, text, c.want)
		}
	}
}

func TestWrongFlagsOfDLQAreUsageErrors(t *testing.T) {
	setEnvironment(t, "SLUICE_NATS_URL=nats://127.0.0.1:1") // nobody is asked
	for _, c := range []struct{ args, want string }{
		{"ls --reason nonsense", `--reason "nonsense" is not known; use no_key, bad_key, `},
		{"ls --older 7", `--older "7" has no unit; use one such as 36h or 7d`},
		{"ls --newer -1h", `--newer "-1h" is negative`},
		{"ls --key=", "--key is empty; events without a key have the reason no_key"},
		{"ls --key " + strings.Repeat("k", 257), "--key has 257 bytes"},
		{"ls --limit 0", "--limit 0: use at least 1"},
		{"show x", `"x" is not the number of a dead letter`},
		{"show 1 --json --body", "--json and --body exclude each other"},
		{"show", "accepts 1 arg(s), received 0"},
		{"replay", "nothing narrows the selection; give --yes"},
		{"replay --key a --rate 0", "--rate: a rate of 0 publishes nothing"},
		{"purge --key a", "purged events are lost for good; give --yes"},
		{"nonsense", `unknown command "nonsense" for "sluice dlq"`},
	} {
		code, _, stderr := execute(t, t.Context(), "", append([]string{"dlq"}, strings.Fields(c.args)...)...)
		if code != exitUsage || !strings.HasPrefix(stderr, "sluice: "+c.want) {
			t.Errorf("%s: exit %d, %s", c.args, code, stderr)
		}
	}
}

func TestTableOfDeadLettersAtWidth80(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	list := newLetterList(&out, false, false)
	at := time.Date(2026, 3, 1, 15, 4, 5, 0, time.FixedZone("", 3600))
	for i, l := range []stream.DeadLetter{
		{BodyID: pipeline.BodyID{Seq: 7}, Reason: pipeline.Rejected, Cause: "receiver.example answered 400 Bad Request: no such order",
			Event: &pipeline.Event{Key: "alice", ID: "order-17", Attempt: 1}},
		{BodyID: pipeline.BodyID{Seq: 1234567}, Reason: pipeline.NoKey, Event: &pipeline.Event{ID: "EVENTS:1234567890123"}},
		{BodyID: pipeline.BodyID{Seq: 12}, Reason: pipeline.BadHeader, Cause: "x", Event: &pipeline.Event{Key: "a\x1b[31m\xff", ID: "ü", Attempt: 120}},
	} {
		l.Buried = at.Add(time.Duration(i) * time.Hour)
		if err := list.add(l); err != nil {
			t.Fatal(err)
		}
	}
	list.oldest = time.Now().Add(-73 * time.Hour)
	if err := list.end(); err != nil {
		t.Fatal(err)
	}
	const want = `
    seq  when (UTC)   reason      key        id         try  error
      7  03-01 14:04  rejected    alice      order-17     1  receiver.example a…
1234567  03-01 15:04  no_key      -          EVENTS:1…    0
     12  03-01 16:04  bad_header  "a\x1b[3…  ü          120  x
3 dead letters (1 bad_header, 1 no_key, 1 rejected), the oldest 3 days ago
`
	if got := "\n" + out.String(); got != want {
		t.Errorf("got%swant%s", got, want)
	}
	for line := range strings.Lines(out.String()) {
		if n := len([]rune(strings.TrimSuffix(line, "\n"))); n > 80 {
			t.Errorf("%d columns: %s", n, line)
		}
	}
}

func TestLongTableHasOneHeader(t *testing.T) {
	t.Parallel()
	const n = 2*pageRows + 1
	var out bytes.Buffer
	list := newLetterList(&out, false, false)
	for i := range n {
		if err := list.add(stream.DeadLetter{BodyID: pipeline.BodyID{Seq: uint64(i + 1)}, Event: &pipeline.Event{Key: "k"}, Reason: pipeline.Cost}); err != nil {
			t.Fatal(err)
		}
	}
	if err := list.end(); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(out.String(), "\n")
	if len(lines) != 1+n+1+1 || strings.Count(out.String(), "reason") != 1 || strings.Index(lines[1], "cost") != strings.Index(lines[n], "cost") {
		t.Errorf("%d lines, such as\n%s\n%s", len(lines), lines[1], lines[n])
	}
}

func TestShowTellsEverything(t *testing.T) {
	r := newLetterRig(t, server.Options{})
	ev := &pipeline.Event{
		ID: "order%2017", Key: "alice", Subject: "events.alice", Header: pipeline.Header{"Nats-Msg-Id": {"order 17"}, "X": {"1", "2"}, "Sluice-Id": {"theirs"}},
		Data: []byte("{\"n\": 1}\n"), Time: time.Unix(1e9, 0), Source: pipeline.SourceID{Stream: "EVENTS", Created: 7, Seq: 3}, Attempt: 2, First: time.Unix(1e9+1, 0),
	}
	r.buryEvent(pipeline.Rejected, ev)
	binary := *ev
	binary.Source.Seq, binary.Data = 4, []byte("\x00\xff")
	r.buryEvent(pipeline.Rejected, &binary)

	stdout, _ := r.dlq(0, "show", "1")
	for _, want := range []string{
		"dead letter  1\n", "reason       rejected\n", "error        the receiver answered 400 Bad Request\n", "key          alice\n",
		"id           order%2017\n", "attempts     2, the first at 2001-09-09 01:46:41.000 UTC\n", "subject      events.alice\n",
		"source       EVENTS:7:3\n", "published    2001-09-09 01:46:40.000 UTC\n",
		"\n\nNats-Msg-Id: order 17\nSluice-Id: theirs\nX: 1\nX: 2\n\n9 bytes\n{\"n\": 1}\n",
	} {
		if !strings.Contains(stdout, want) {
			t.Errorf("%q isn't in\n%s", want, stdout)
		}
	}
	if stdout, _ := r.dlq(0, "show", "2"); !strings.HasSuffix(stdout, "\n2 bytes, in base64\nAP8=\n") {
		t.Errorf("a binary body is shown as\n%s", stdout)
	}
	if stdout, _ := r.dlq(0, "show", "2", "--body"); stdout != "\x00\xff" {
		t.Errorf("--body prints %q", stdout)
	}
	type shown struct {
		letterJSON
		Headers    pipeline.Header `json:"headers"`
		Data       string          `json:"data"`
		DataBase64 []byte          `json:"data_base64"`
	}
	stdout, _ = r.dlq(0, "show", "1", "--json")
	got := decodeInto[shown](t, stdout)
	if got.ID != ev.ID || got.Attempts != 2 || got.Data != string(ev.Data) || got.Headers.Get("Nats-Msg-Id") != "order 17" || got.Source != "EVENTS:7:3" {
		t.Errorf("as JSON: %s", stdout)
	}
	stdout, _ = r.dlq(0, "show", "2", "--json")
	if got := decodeInto[shown](t, stdout); string(got.DataBase64) != "\x00\xff" {
		t.Errorf("as JSON: %s", stdout)
	}
	if _, stderr := r.dlq(1, "show", "9"); stderr != "sluice: there is no dead letter 9\n" {
		t.Errorf("of one that isn't there it says %q", stderr)
	}
}

// Dead letters and events are dated by NATS. What is purged for good mustn't depend on the clock of whoever asks for it.
func TestAgesAreByTheClockOfNATS(t *testing.T) {
	r := newLetterRig(t, server.Options{MaxPayload: 8 << 10})
	t.Setenv("SLUICE_NATS_URL", r.url)
	r.bury(pipeline.Rejected, "alice", 1, strings.Repeat("x", 8<<10-100)) // too large for the source with its id
	b, err := openLetters(t.Context(), func(error) {}, sourcePart)
	if err != nil {
		t.Fatal(err)
	}
	defer b.nc.Close()
	if b.ahead.Abs() > time.Second {
		t.Errorf("one machine's clock is %s ahead of itself", b.ahead)
	}
	b.ahead = 48 * time.Hour // as this machine has it
	here := time.Now().Add(-b.ahead)
	for _, c := range []struct {
		name string
		s    letterSelection
		want int
	}{
		{"older than a day", letterSelection{before: here.Add(-24 * time.Hour)}, 0},
		{"within a day", letterSelection{after: here.Add(-24 * time.Hour)}, 1},
	} {
		if letters, _, err := b.gather(t.Context(), c.s); err != nil || len(letters) != c.want {
			t.Errorf("%s: %d dead letters, %v, want %d", c.name, len(letters), err, c.want)
		}
	}
	b.ahead = -30 * 24 * time.Hour
	replay, err := newReplay(t.Context(), b, nil, newProgress(io.Discard, 0))
	if err != nil {
		t.Fatal(err)
	}
	letter, err := b.letters.Read(t.Context(), pipeline.BodyID{Created: b.letters.Created(), Seq: 2})
	if err != nil {
		t.Fatal(err)
	}
	replay.park(t.Context(), "it", letter)
	replay.finish()
	ev, err := replay.lanes.Read(t.Context(), "alice", lastBody(t, replay.lanes))
	if err != nil || time.Since(ev.Time) < 29*24*time.Hour {
		t.Errorf("the event in its lane is dated %v, %v: want by NATS' clock", ev, err)
	}
}

// lastBody names what was stored last.
func lastBody(t *testing.T, lanes *stream.Lanes) pipeline.BodyID {
	t.Helper()
	last, err := lanes.Last(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return pipeline.BodyID{Created: lanes.Created(), Seq: last}
}
