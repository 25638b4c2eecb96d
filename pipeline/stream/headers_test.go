package stream

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/nats-io/nats.go"

	"sluice/pipeline"
)

// reserved are the names by which the server and its clients give headers a meaning: those of nats-server 2.15.
var reserved = []string{
	"Nats-Msg-Id", "Nats-Expected-Stream", "Nats-Expected-Last-Sequence", "Nats-Expected-Last-Subject-Sequence",
	"Nats-Expected-Last-Subject-Sequence-Subject", "Nats-Expected-Last-Msg-Id", "Nats-Stream-Source", "Nats-Last-Consumer",
	"Nats-Last-Stream", "Nats-Consumer-Stalled", "Nats-Rollup", "Nats-Msg-Size", "Nats-Response-Type", "Nats-TTL", "Nats-Marker-Reason",
	"Nats-Incr", "Nats-Counter-Sources", "Nats-Batch-Id", "Nats-Batch-Sequence", "Nats-Batch-Commit", "Nats-Schedule",
	"Nats-Schedule-Time-Zone", "Nats-Schedule-TTL", "Nats-Schedule-Rollup", "Nats-Schedule-Target", "Nats-Schedule-Source",
	"Nats-Scheduler", "Nats-Schedule-Next", "Nats-Stream", "Nats-Sequence", "Nats-Time-Stamp", "Nats-Subject", "Nats-Last-Sequence",
	"Nats-Num-Pending", "Nats-UpTo-Sequence", "Nats-Required-Api-Level", "Nats-Stream-Identity", "Nats-Request-Info", "Nats-Server-Xkey",
	"Nats-Pending-Messages", "Nats-Pending-Bytes", "Nats-Pin-Id", "Nats-Trace-Dest", "Nats-Trace-Hop", "Nats-Trace-Origin-Account",
	"Nats-Trace-Only", "Status", "Description",
}

func TestStoredNameOfProducersHeaders(t *testing.T) {
	for name, want := range map[string]string{
		"Nats-Msg-Id":         "Sluice-Was-Nats-Msg-Id",
		"nats-ttl":            "Sluice-Was-nats-ttl",
		"Sluice-Was-Nats-TTL": "Sluice-Was-Sluice-Was-Nats-TTL",
		"sluice-id":           "Sluice-Was-sluice-id",
		"Sluice-Cost":         "Sluice-Cost",
		"Sluice-Expires":      "Sluice-Expires",
		"Sluice-Collapse":     "Sluice-Collapse",
		"Sluice-Tier":         "Sluice-Tier",
		"Content-Type":        "Content-Type",
		"x%y":                 "x%y",
		"a/b c%":              "Sluice-Was-a%2Fb%20c%25",
	} {
		if got := storedName(name); got != want {
			t.Errorf("storedName(%q) = %q, want %q", name, got, want)
		}
		if got := producerName(want); got != name {
			t.Errorf("producerName(%q) = %q, want %q", want, got, name)
		}
	}
	for _, own := range append(slices.Clone(ownHeaders), reserved...) {
		if got := producerName(own); got != "" {
			t.Errorf("producerName(%q) = %q, want none: it isn't the producer's", own, got)
		}
	}
}

func FuzzStoredNameIsSafeAndReversible(f *testing.F) {
	for _, name := range append(slices.Clone(ownHeaders), reserved...) {
		f.Add(name, strings.ToLower(name))
	}
	f.Add("Sluice-Was-%41", "Sluice-Was-A")
	f.Add("é\x00:", "%")
	f.Fuzz(func(t *testing.T, a, b string) {
		if a == "" {
			return
		}
		stored := storedName(a)
		if got := producerName(stored); got != a {
			t.Errorf("%q is stored as %q and read as %q", a, stored, got)
		}
		if a != b && b != "" && storedName(b) == stored {
			t.Errorf("%q and %q are both stored as %q", a, b, stored)
		}
		if hasPrefixFold(stored, "Nats-") || slices.ContainsFunc(ownHeaders, func(own string) bool { return strings.EqualFold(own, stored) }) {
			t.Errorf("%q is stored as %q", a, stored)
		}
		for i := range len(stored) {
			if !nameByte(stored[i]) {
				t.Errorf("%q is stored as %q, which nats.go refuses", a, stored)
			}
		}
	})
}

func TestStoredEventIsReadUnchanged(t *testing.T) {
	ev := &pipeline.Event{
		ID: "id-1", Key: "a.b\x00é", Subject: "events.1",
		Header: pipeline.Header{
			"Foo": {"1", "2"}, "foo": {"3"}, "Sluice-Id": {"theirs"}, "Sluice-Source": {"theirs"}, "sluice-attempt": {"9"}, "Sluice-Cost": {"3"},
			"Sluice-Part": {"body"}, "Sluice-Was-Nats-Msg-Id": {"x"}, "odd name/": {"y"}, "Status": {"404"},
		},
		Time: time.Unix(1, 2).UTC(), Source: pipeline.SourceID{Stream: "EVENTS", Created: 5, Seq: 6}, Attempt: 3, First: time.Unix(3, 4).UTC(),
	}
	h := storedHeader(ev)
	if h.Get(headerID) != "id-1" || h.Get(headerSource) != "EVENTS:5:6" || h.Get(headerAttempt) != "3" || h.Get(headerPart) != "" {
		t.Errorf("our own headers don't win: %v", h)
	}
	got, err := parseEvent("sluice.lane.s00.x", h)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, ev) {
		t.Errorf("read\n%+v, want\n%+v", got, ev)
	}
}

func TestEventWithoutKeyIsReadWithoutKey(t *testing.T) {
	ev := &pipeline.Event{ID: "1", Source: pipeline.SourceID{Stream: "E", Seq: 1}, Header: pipeline.Header{}}
	h := storedHeader(ev)
	got, err := parseEvent("sluice.dlq.no_key.%", h)
	if err != nil || got.Key != "" {
		t.Errorf("key %q, error %v, want none", got.Key, err)
	}
	delete(h, headerKey)
	if got, err = parseEvent("sluice.lane.s00.a%2Eb", h); err != nil || got.Key != "a.b" {
		t.Errorf("key from the subject %q, error %v, want a.b", got.Key, err)
	}
}

func TestDamagedHeadersAreAnError(t *testing.T) {
	good := storedHeader(&pipeline.Event{ID: "1", Key: "k", Source: pipeline.SourceID{Stream: "E", Seq: 1}, Attempt: 1, First: time.Unix(1, 0)})
	for _, name := range []string{headerSource, headerTime, headerAttempt, headerFirst, headerKey} {
		h := nats.Header(maps.Clone(good))
		h.Set(name, "%%")
		if _, err := parseEvent("sluice.lane.s00.k", h); err == nil {
			t.Errorf("%s: %%%% is accepted", name)
		}
	}
}

func TestHeaderSizeIsTheSizeOnTheWire(t *testing.T) {
	h := nats.Header{"A": {"1", " 22 "}, "Bcd": {""}}
	msg := nats.Msg{Header: h}
	if got, want := headerSize(h), msg.Size(); got != want {
		t.Errorf("headerSize = %d, want %d", got, want)
	}
}

func TestErrorTextBecomesOneShortPrintableLine(t *testing.T) {
	for text, want := range map[string]string{
		"plain é": "plain é", "a\r\nb\x00c\xff": "a  b c", "": "", " x\n": "x",
	} {
		if got := printable(text); got != want {
			t.Errorf("printable(%q) = %q, want %q", text, got, want)
		}
	}
	got := printable(strings.Repeat("é", 300))
	if len(got) > maxErrorText || !utf8.ValidString(got) || len(got) < maxErrorText-1 {
		t.Errorf("300 letters of two bytes become %d bytes, valid %v", len(got), utf8.ValidString(got))
	}
}
