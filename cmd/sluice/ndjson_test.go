package main

import (
	"bytes"
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"sluice/limiter"
)

const testTemplate = subjectTemplate("events.{key}")

func TestDecodeLine(t *testing.T) {
	t.Parallel()
	const ce = `"specversion":"1.0","id":"1","source":"/shop","type":"t"`
	ceHeader := func(more ...string) nats.Header {
		h := nats.Header{"ce-specversion": {"1.0"}, "ce-id": {"1"}, "ce-source": {"/shop"}, "ce-type": {"t"}, "Nats-Msg-Id": {"/shop/1"}}
		for i := 0; i < len(more); i += 2 {
			h[more[i]] = []string{more[i+1]}
		}
		return h
	}
	cases := []struct {
		name, line, subject string
		header              nats.Header
		data                string
	}{
		{"key and text", `{"key":"alice","data":"a\n\"é\""}`, "events.alice", nats.Header{}, "a\n\"é\""},
		{"bytes of JSON as they stand", `{"key":"alice","data": {"n":12345678901234567890, "e":"\u00e9"} }`, "events.alice", nats.Header{}, `{"n":12345678901234567890, "e":"\u00e9"}`},
		{"number", `{"key":"alice","data":1.0e2}`, "events.alice", nats.Header{}, "1.0e2"},
		{"null", `{"key":"alice","data":null}`, "events.alice", nats.Header{}, "null"},
		{"empty text", `{"key":"alice","data":""}`, "events.alice", nats.Header{}, ""},
		{"no data", `{"key":"alice"}`, "events.alice", nats.Header{}, ""},
		{"base64", `{"key":"alice","data_base64":"AP8="}`, "events.alice", nats.Header{}, "\x00\xff"},
		{"subject", `{"subject":"other.x","data":"d"}`, "other.x", nats.Header{}, "d"},
		{"id", `{"key":"a","id":"order 1"}`, "events.a", nats.Header{"Nats-Msg-Id": {"order 1"}}, ""},
		{"headers", `{"key":"a","headers":{"A":"1","b-C":["2","3"]}}`, "events.a", nats.Header{"A": {"1"}, "b-C": {"2", "3"}}, ""},
		{"time", `{"key":"a","time":"2026-01-31T12:00:00.5+01:00"}`, "events.a", nats.Header{"ce-time": {"2026-01-31T12:00:00.5+01:00"}}, ""},
		{"time beside its header", `{"key":"a","time":"2026-01-31T12:00:00Z","headers":{"CE-Time":"x"}}`, "events.a", nats.Header{"CE-Time": {"x"}}, ""},
		{"key with signs of mails", `{"key":"a@b:c"}`, "events.a@b:c", nats.Header{}, ""},
		{"key that breaks a subject", `{"key":"a.b *>\t"}`, "events.a%2Eb%20%2A%3E%09", nats.Header{}, ""},
		{"key with percent", `{"key":"a%2Eb"}`, "events.a%252Eb", nats.Header{}, ""},
		{"key beyond ASCII", `{"key":"zoë"}`, "events.zoë", nats.Header{}, ""},

		{"CloudEvent by source", `{` + ce + `}`, "events./shop", ceHeader(), ""},
		{"CloudEvent by subject", `{` + ce + `,"subject":"bob","datacontenttype":"text/plain","data":"hi"}`, "events.bob", ceHeader("ce-subject", "bob", "Content-Type", "text/plain"), "hi"},
		{"CloudEvent by extension", `{` + ce + `,"subject":"bob","key":"u1","n":5,"ok":true}`, "events.u1", ceHeader("ce-subject", "bob", "ce-key", "u1", "ce-n", "5", "ce-ok", "true"), ""},
		{"CloudEvent with JSON", `{` + ce + `,"data":{"a": 1}}`, "events./shop", ceHeader("Content-Type", "application/json"), `{"a": 1}`},
		{"CloudEvent with a string of JSON", `{` + ce + `,"datacontenttype":"application/x+json; charset=utf-8","data":"s"}`, "events./shop", ceHeader("Content-Type", "application/x+json; charset=utf-8"), `"s"`},
		{"CloudEvent with bytes", `{` + ce + `,"data_base64":"AA=="}`, "events./shop", ceHeader(), "\x00"},
		{"CloudEvent beyond ASCII", `{` + ce + `,"subject":"b","note":"10 % é"}`, "events.b", ceHeader("ce-subject", "b", "ce-note", "10%20%25%20%C3%A9"), ""},
		{"CloudEvent time", `{` + ce + `,"time":"2026-01-31T12:00:00Z"}`, "events./shop", ceHeader("ce-time", "2026-01-31T12:00:00Z"), ""},
		{
			"CloudEvent with null for what it hasn't", `{` + ce + `,"key":null,"subject":null,"time":null,"datacontenttype":null,"dataschema":null,"ext":null,"data_base64":null,"data":null}`,
			"events./shop", ceHeader("Content-Type", "application/json"), "null",
		},
	}
	for _, c := range cases {
		msg, err := decodeLine([]byte(c.line), testTemplate)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if msg.Subject != c.subject || string(msg.Data) != c.data || !reflect.DeepEqual(map[string][]string(msg.Header), map[string][]string(c.header)) {
			t.Errorf("%s: got %s %q %v\nwant %s %q %v", c.name, msg.Subject, msg.Data, msg.Header, c.subject, c.data, c.header)
		}
	}
}

func TestDecodeLineRefuses(t *testing.T) {
	t.Parallel()
	const ce = `"specversion":"1.0","id":"1","source":"/shop","type":"t"`
	cases := map[string]string{ // line: start of the error
		`nonsense`:                         "is not JSON: ",
		`[1]`:                              "is not a JSON object",
		`"x"`:                              "is not a JSON object",
		`{"key":"a"`:                       "is not JSON: it ends too early",
		`{"key":}`:                         "key: is not JSON: ",
		`{"key":"a"} {"key":"b"}`:          "something follows",
		`{"key":"a","key":"b"}`:            "key: stands there twice",
		`{"key":"a","Data":"x"}`:           "Data: unknown field; known are key, subject, id,",
		`{"key":"a","body":"x"}`:           "body: unknown field",
		`{"data":"x"}`:                     "key: is missing; give key or subject",
		`{"key":"a","subject":"events.a"}`: "key: stands beside subject",
		`{"key":7}`:                        "key: must be a string",
		`{"key":""}`:                       "key: is empty",
		`{"key":"` + strings.Repeat("k", 257) + `"}`:             "key: is longer than 256 bytes",
		`{"subject":"events.*"}`:                                 `subject: "events.*" holds a wildcard`,
		`{"subject":"a b"}`:                                      `subject: "a b" is not a subject`,
		`{"subject":".a"}`:                                       "subject: ",
		`{"key":"a","id":null}`:                                  "id: must be a string",
		`{"key":"a","id":"x\ny"}`:                                "id: the value of Nats-Msg-Id holds a line end",
		`{"key":"a","id":"1","headers":{"nats-msg-id":"2"}}`:     "id: stands beside a header",
		`{"key":"a","data":1,"data_base64":"AA=="}`:              "data_base64: stands beside data",
		`{"key":"a","data_base64":"A"}`:                          "data_base64: is not standard base64",
		`{"key":"a","data_base64":1}`:                            "data_base64: must be a string",
		`{"key":"a","headers":[]}`:                               "headers: is not a JSON object",
		`{"key":"a","headers":{"A":1}}`:                          "headers: A must be a string or a list",
		`{"key":"a","headers":{"A":["x",null]}}`:                 "headers: A must be a string or a list",
		`{"key":"a","headers":{"A b":"x"}}`:                      `headers: "A b" is not the name of a header`,
		`{"key":"a","headers":{"A":"x\r\nB: y"}}`:                "headers: the value of A holds a line end",
		`{"key":"a","time":"yesterday"}`:                         "time: is not an RFC 3339 time",
		`{"key":"a","time":"2026-01-31T12:00:00,5Z"}`:            "time: is not an RFC 3339 time",
		`{` + ce + `,"time":"2026-01-31T12:00:00+24:00"}`:        "time: is not an RFC 3339 time",
		`{"specversion":"1.0","id":null,"source":"s"}`:           "id: is missing; CloudEvents need it",
		"{\"key\":\"a\",\"data\":\"\xff\"}":                      "is not UTF-8",
		`{"specversion":"1.0","id":"1","type":"t"}`:              "source: is missing; CloudEvents need it",
		`{"specversion":"0.3","id":"1","source":"s","type":"t"}`: `specversion: "0.3" is not supported`,
		`{` + ce + `,"dataSchema":"x"}`:                          "dataSchema: unknown field",
		`{` + ce + `,"ext":{}}`:                                  "ext: must be a string, a boolean or a whole number",
		`{` + ce + `,"ext":1.5}`:                                 "ext: must be a string, a boolean or a whole number",
		`{` + ce + `,"time":"x"}`:                                "time: is not an RFC 3339 time",
		`{` + ce + `,"key":5}`:                                   "key: must be a string",
	}
	for line, want := range cases {
		if _, err := decodeLine([]byte(line), testTemplate); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s\ngot  %v\nwant %s…", line, err, want)
		}
	}
	if _, err := decodeLine([]byte(`{"key":"a"}`), ""); err == nil || !strings.Contains(err.Error(), "--subject") {
		t.Errorf("without a template got %v, want an error that names --subject", err)
	}
}

func TestDifferentKeysMakeDifferentSubjects(t *testing.T) {
	t.Parallel()
	keys := []string{"a.b", "a%2Eb", "a%252Eb", "*", ">", "a b", "\t", "{x}", "🙂", "A", "a", "{key}", "%"}
	seen := map[string]string{}
	for _, key := range keys {
		subject, err := testTemplate.of(key)
		if err != nil || checkSubject(subject) != nil {
			t.Errorf("%q became %q: %v, %v", key, subject, err, checkSubject(subject))
		}
		if other, ok := seen[subject]; ok {
			t.Errorf("%q and %q both became %s", key, other, subject)
		}
		seen[subject] = key
	}
}

func TestCloudEventsWithDifferentSourceAndIDAreNotDropped(t *testing.T) {
	t.Parallel()
	ids := map[string]bool{}
	for _, pair := range [][2]string{{"s", "a/b"}, {"s/a", "b"}, {"s", "a%2Fb"}, {"s", "a%252Fb"}} {
		ids[ceMsgID(object{"source": []byte(`"` + pair[0] + `"`), "id": []byte(`"` + pair[1] + `"`)})] = true
	}
	if len(ids) != 4 {
		t.Errorf("four events have the ids %v", ids)
	}
}

func TestDefaultTemplate(t *testing.T) {
	t.Parallel()
	for filters, want := range map[string]subjectTemplate{
		"events.>": "events.{key}", "events.*": "events.{key}", "events.*.created": "events.{key}.created",
		"a.>,b.>": "a.{key}", "events": "", "a.*.*": "", "a.*.>": "", ">": "{key}",
	} {
		if got := defaultTemplate(strings.Split(filters, ",")); got != want {
			t.Errorf("%s: got %q, want %q", filters, got, want)
		}
	}
}

func TestLineReader(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", maxLine)
	input := "\uFEFF{1}\r\n\n  \t\r\n{2}\n" + long + "\n" + long + "y\r\n{3}\n" + long + "y"
	lines := newLineReader(strings.NewReader(input))
	type seen struct {
		number int
		text   string
	}
	var got []seen
	for {
		text, err := lines.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if len(text) > 10 {
			text = text[:1]
		}
		if err != nil {
			text = []byte(err.Error())
		}
		got = append(got, seen{lines.number, string(text)})
	}
	want := []seen{{1, "{1}"}, {4, "{2}"}, {5, "x"}, {6, "is longer than 8 MiB"}, {7, "{3}"}, {8, "is longer than 8 MiB"}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v\nwant %v", got, want)
	}
	if lines.offset != int64(len(input)) {
		t.Errorf("offset %d, want %d", lines.offset, len(input))
	}
}

func TestLineReaderTellsAReadError(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	lines := newLineReader(io.MultiReader(strings.NewReader("{1}\n{2"), errReader{broken}))
	if text, err := lines.next(); string(text) != "{1}" || err != nil {
		t.Errorf("got %q, %v", text, err)
	}
	if text, err := lines.next(); !errors.Is(err, broken) {
		t.Errorf("half a line became %q, %v", text, err)
	}
}

type errReader struct{ err error }

func (r errReader) Read([]byte) (int, error) { return 0, r.err }

func FuzzDecodeLine(f *testing.F) {
	for _, s := range []string{
		`{"key":"alice","data":{"a":1},"headers":{"A":["b"]},"id":"1","time":"2026-01-31T12:00:00Z"}`,
		`{"specversion":"1.0","id":"1","source":"/shop","type":"t","data":"x","ext":true}`,
		`{"subject":"a.b","data_base64":"AA=="}`, `{"key":"a.b*> %"}`, `{`, `{"headers":{"A":null}}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		msg, err := decodeLine(line, testTemplate)
		if err != nil {
			if err.Error() == "" {
				t.Error("the error says nothing")
			}
			return
		}
		if err := checkSubject(msg.Subject); err != nil {
			t.Errorf("%q: published to a wrong subject: %v", line, err)
		}
		for name, values := range msg.Header {
			for _, value := range values {
				if strings.ContainsAny(name+value, "\r\n") {
					t.Errorf("%q: header %q: %q holds a line end", line, name, value)
				}
			}
		}
	})
}

func FuzzKeyInSubject(f *testing.F) {
	f.Add("a.b", "a%2Eb")
	f.Fuzz(func(t *testing.T, a, b string) {
		one, err1 := testTemplate.of(a)
		two, err2 := testTemplate.of(b)
		if err1 == nil && err2 == nil && a != b && one == two {
			t.Errorf("%q and %q both became %s", a, b, one)
		}
		if err1 != nil && len(a) <= limiter.MaxKey {
			t.Errorf("%q: %v", a, err1)
		}
	})
}

func FuzzLineReader(f *testing.F) {
	f.Add([]byte("\uFEFFa\r\nb\n\nc"))
	f.Fuzz(func(t *testing.T, input []byte) {
		lines := newLineReader(bytes.NewReader(input))
		for {
			text, err := lines.next()
			if err != nil {
				break
			}
			if len(text) == 0 || bytes.ContainsRune(text, '\n') {
				t.Errorf("%q gave the line %q", input, text)
			}
		}
		if lines.offset != int64(len(input)) {
			t.Errorf("%q: read %d bytes of %d", input, lines.offset, len(input))
		}
	})
}
