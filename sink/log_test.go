package sink

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"

	"sluice/pipeline"
)

var _ pipeline.Sink = (*Log)(nil)

func TestLogWritesEachEventAsALine(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, key, data, want string }{
		{"JSON stays as it is, on one line", "u", "{\"id\": 12345678901234567890,\n\"a\":\"\\u00e9<\"}", `"key":"u","subject":"events.u","attempt":2,"data":{"id":12345678901234567890,"a":"\u00e9<"}`},
		{"text", "u", "a\n<b>", `"key":"u","subject":"events.u","attempt":2,"data":"a\n<b>"`},
		{"empty", "u", "", `"key":"u","subject":"events.u","attempt":2,"data":""`},
		{"bytes", "u", "\xff\x00", `"key":"u","subject":"events.u","attempt":2,"data_base64":"/wA="`},
		{"broken UTF-8 in JSON", "u", "\"\xff\"", `"key":"u","subject":"events.u","attempt":2,"data_base64":"Iv8i"`},
		{"key of any bytes", "\xff", "1", `"key_base64":"/w==","subject":"events.u","attempt":2,"data":1`},
	}
	for _, tt := range tests {
		var out bytes.Buffer
		ev := &pipeline.Event{ID: "EVENTS:7", Key: tt.key, Subject: "events.u", Data: []byte(tt.data), Time: testNow, Attempt: 2}
		if err := NewLog(&out).Push(t.Context(), ev); err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
		want := `{"time":"2026-11-30T12:00:00Z","id":"EVENTS:7",` + tt.want + "}\n"
		if out.String() != want {
			t.Errorf("%s:\n got %s want %s", tt.name, out.String(), want)
		}
	}
}

// writes keeps what each call of Write got, without a lock of its own: the race detector watches.
type writes []string

func (w *writes) Write(p []byte) (int, error) {
	*w = append(*w, string(p))
	return len(p), nil
}

func TestLogWritesOneLineAtATime(t *testing.T) {
	t.Parallel()
	var out writes
	l := NewLog(&out)
	var pushes sync.WaitGroup
	for range 50 {
		pushes.Go(func() { _ = l.Push(context.Background(), testEvent()) })
	}
	pushes.Wait()
	if len(out) != 50 {
		t.Errorf("%d writes for 50 events", len(out))
	}
	for _, line := range out {
		if !strings.HasSuffix(line, "\n") || !json.Valid([]byte(line)) {
			t.Errorf("%q is no line of JSON", line)
		}
	}
}

type brokenWriter struct{ err error }

func (b brokenWriter) Write([]byte) (int, error) { return 0, b.err }

func TestLogsWriteErrorConcernsTheReceiver(t *testing.T) {
	t.Parallel()
	broken := errors.New("pipe closed")
	if err := NewLog(brokenWriter{broken}).Push(t.Context(), testEvent()); !isUnavailable(err) || !errors.Is(err, broken) {
		t.Errorf("got %#v", err)
	}
}
