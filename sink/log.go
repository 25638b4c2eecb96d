package sink

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"sync"
	"time"
	"unicode/utf8"

	"sluice/pipeline"
)

// Log is a sink that writes each event as a line of JSON.
type Log struct {
	mu sync.Mutex // one line at a time
	w  io.Writer
}

// NewLog returns a sink that writes to w, with one call of Write for each event.
func NewLog(w io.Writer) *Log { return &Log{w: w} }

// Name is the value of the metrics' label sink.
func (l *Log) Name() string { return "log" }

// line is an event as it is written. A key or data that JSON can't hold stands in base64.
type line struct {
	Time       time.Time       `json:"time"`
	ID         string          `json:"id"`
	Key        *string         `json:"key,omitempty"`
	KeyBase64  []byte          `json:"key_base64,omitempty"`
	Subject    string          `json:"subject"`
	Attempt    int             `json:"attempt"`
	Data       json.RawMessage `json:"data,omitempty"`
	DataBase64 []byte          `json:"data_base64,omitempty"`
}

// Push writes ev. An error of the writer concerns all events, so that the key waits before the next attempt.
func (l *Log) Push(_ context.Context, ev *pipeline.Event) error {
	encoded, err := encodeLine(ev)
	if err != nil {
		return fmt.Errorf("encoding the event: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, err := l.w.Write(encoded); err != nil {
		return pipeline.Unavailable(fmt.Errorf("writing the event: %w", err))
	}
	return nil
}

func encodeLine(ev *pipeline.Event) ([]byte, error) {
	out := line{Time: ev.Time, ID: ev.ID, Subject: ev.Subject, Attempt: ev.Attempt}
	if utf8.ValidString(ev.Key) {
		out.Key = &ev.Key
	} else {
		out.KeyBase64 = []byte(ev.Key)
	}
	switch {
	case isJSON(ev.Data):
		out.Data = ev.Data
	case utf8.Valid(ev.Data):
		text, err := marshal(string(ev.Data))
		if err != nil {
			return nil, err
		}
		out.Data = text
	default:
		out.DataBase64 = ev.Data
	}
	return marshal(out)
}

// marshal is json.Marshal without the escapes meant for HTML, and with a line's end.
func marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(v); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}
