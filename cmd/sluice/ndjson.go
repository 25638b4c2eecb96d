package main

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"sluice/limiter"
	"sluice/pipeline"
)

// maxLine is the longest line of an NDJSON file, without its end.
const maxLine = 8 << 20

var errLineTooLong = fmt.Errorf("is longer than %d MiB", maxLine>>20)

// lineReader reads the lines of an NDJSON file. It skips blank lines and tolerates a byte order mark and CRLF.
type lineReader struct {
	in     *bufio.Reader
	number int   // of the line read last, from 1
	offset int64 // bytes read
}

func newLineReader(in io.Reader) *lineReader {
	return &lineReader{in: bufio.NewReaderSize(in, 64<<10)}
}

// next returns the next line, which the caller may keep. After [errLineTooLong] the next call goes on with the line
// after it; io.EOF and every other error are final.
func (l *lineReader) next() ([]byte, error) {
	for {
		line, err := l.read()
		if err != nil {
			return nil, err
		}
		// Joined files have a mark where each of them began.
		if line = bytes.TrimSpace(pipeline.WithoutMark(line)); len(line) > 0 {
			return line, nil
		}
	}
}

// read returns one line with its end. A long line is read to its end but not kept.
func (l *lineReader) read() ([]byte, error) {
	var line []byte
	tooLong := false
	for {
		piece, err := l.in.ReadSlice('\n')
		l.offset += int64(len(piece))
		if tooLong = tooLong || len(line)+len(piece) > maxLine+len("\r\n"); tooLong {
			line = line[:0]
		} else {
			line = append(line, piece...)
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case errors.Is(err, io.EOF) && (len(line) > 0 || tooLong):
			// The last line has no end; the next call finds the end of the file.
		case err != nil:
			return nil, err
		}
		l.number++
		if tooLong || len(bytes.TrimRight(line, "\r\n")) > maxLine {
			return nil, errLineTooLong
		}
		return line, nil
	}
}

// object is one line: its fields with their values exactly as they stand there.
type object map[string]json.RawMessage

// parseObject reads one JSON object. In contrast to json.Unmarshal it takes names as they are spelt and refuses one that
// comes twice.
func parseObject(line []byte) (object, error) {
	if !utf8.Valid(line) {
		return nil, errors.New("is not UTF-8; write other bytes as data_base64")
	}
	dec := json.NewDecoder(bytes.NewReader(line))
	if start, err := dec.Token(); err != nil {
		return nil, fmt.Errorf("is not JSON: %w", jsonTrouble(err))
	} else if start != json.Delim('{') {
		return nil, errors.New("is not a JSON object")
	}
	fields := make(object)
	for dec.More() {
		token, err := dec.Token()
		if err != nil {
			return nil, fmt.Errorf("is not JSON: %w", jsonTrouble(err))
		}
		name, _ := token.(string) // the decoder lets nothing else pass here
		if _, twice := fields[name]; twice {
			return nil, fmt.Errorf("%s: stands there twice", name)
		}
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return nil, fmt.Errorf("%s: is not JSON: %w", name, jsonTrouble(err))
		}
		fields[name] = value
	}
	if _, err := dec.Token(); err != nil {
		return nil, fmt.Errorf("is not JSON: %w", jsonTrouble(err))
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("something follows the JSON object; write one event a line")
	}
	return fields, nil
}

// jsonTrouble says an unexpected end in words that fit a line.
func jsonTrouble(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errors.New("it ends too early")
	}
	return err
}

// text returns a field that must be a string; "" if it isn't there.
func (o object) text(name string) (string, error) {
	raw, ok := o[name]
	if !ok {
		return "", nil
	}
	if raw[0] != '"' {
		return "", fmt.Errorf("%s: must be a string", name)
	}
	var s string
	if err := json.Unmarshal(raw, &s); err != nil {
		return "", fmt.Errorf("%s: %w", name, err)
	}
	if s == "" {
		return "", fmt.Errorf("%s: is empty; leave it out", name)
	}
	return s, nil
}

// body returns the event's bytes: those of data_base64, or of data, where a string stands for its text unless asJSON.
func (o object) body(asJSON bool) ([]byte, error) {
	raw, hasData := o["data"]
	encoded, hasBase64 := o["data_base64"]
	switch {
	case hasData && hasBase64:
		return nil, errors.New("data_base64: stands beside data; give one of them")
	case hasBase64:
		var s string
		if err := json.Unmarshal(encoded, &s); err != nil || encoded[0] != '"' {
			return nil, errors.New("data_base64: must be a string")
		}
		data, err := base64.StdEncoding.DecodeString(s)
		if err != nil {
			return nil, errors.New("data_base64: is not standard base64")
		}
		return data, nil
	case !hasData:
		return nil, nil
	case raw[0] == '"' && !asJSON:
		var s string
		if err := json.Unmarshal(raw, &s); err != nil {
			return nil, fmt.Errorf("data: %w", err)
		}
		return []byte(s), nil
	}
	return raw, nil
}

// timestamp returns a field that must be an RFC 3339 time, as it is written; "" if it isn't there.
func (o object) timestamp(name string) (string, error) {
	s, err := o.text(name)
	if err != nil || s == "" {
		return "", err
	}
	if _, err := pipeline.ParseTime(s); err != nil {
		return "", fmt.Errorf("%s: is not an RFC 3339 time, such as 2026-01-31T12:00:00Z", name)
	}
	return s, nil
}

// decodeLine makes the message of one line: sluice's own form, or a CloudEvent in JSON. subjects makes subjects of keys.
// The error names the field.
func decodeLine(line []byte, subjects subjectTemplate) (*nats.Msg, error) {
	fields, err := parseObject(line)
	if err != nil {
		return nil, err
	}
	if _, ok := fields["specversion"]; ok {
		return decodeCloudEvent(fields, subjects)
	}
	return decodeEvent(fields, subjects)
}

var eventFields = []string{"key", "subject", "id", "headers", "data", "data_base64", "time"}

func decodeEvent(o object, subjects subjectTemplate) (*nats.Msg, error) {
	for _, name := range slices.Sorted(maps.Keys(o)) {
		if !slices.Contains(eventFields, name) {
			return nil, fmt.Errorf("%s: unknown field; known are %s", name, strings.Join(eventFields, ", "))
		}
	}
	key, err1 := o.text("key")
	subject, err2 := o.text("subject")
	id, err3 := o.text("id")
	stamp, err4 := o.timestamp("time")
	header, err5 := o.headers()
	data, err6 := o.body(false)
	for _, err := range []error{err1, err2, err3, err4, err5, err6} {
		if err != nil {
			return nil, err
		}
	}
	switch {
	case key != "" && subject != "":
		return nil, errors.New("key: stands beside subject; give one of them")
	case key != "":
		if subject, err1 = subjects.of(key); err1 != nil {
			return nil, fmt.Errorf("key: %w", err1)
		}
	case subject == "":
		return nil, errors.New("key: is missing; give key or subject")
	}
	if err := checkSubject(subject); err != nil {
		return nil, fmt.Errorf("subject: %w", err)
	}
	if err := setID(header, id); err != nil {
		return nil, fmt.Errorf("id: %w", err)
	}
	if stamp != "" && !hasHeader(header, "ce-time") {
		header.Set("ce-time", stamp)
	}
	return &nats.Msg{Subject: subject, Header: header, Data: data}, nil
}

// headers reads an object of strings or lists of strings.
func (o object) headers() (nats.Header, error) {
	header := nats.Header{}
	raw, ok := o["headers"]
	if !ok {
		return header, nil
	}
	fields, err := parseObject(raw)
	if err != nil {
		return nil, fmt.Errorf("headers: %w", err)
	}
	for name, raw := range fields {
		var values []string
		switch raw[0] {
		case '"':
			values = make([]string, 1)
			err = json.Unmarshal(raw, &values[0])
		case '[':
			err = json.Unmarshal(raw, &values)
			if bytes.Contains(raw, []byte("null")) && slices.Contains(values, "") {
				err = errors.New("null in a list") // which Unmarshal takes for ""
			}
		default:
			err = errors.New("neither string nor list")
		}
		if err != nil {
			return nil, fmt.Errorf("headers: %s must be a string or a list of strings", name)
		}
		for _, value := range values {
			if err := addHeader(header, name, value); err != nil {
				return nil, fmt.Errorf("headers: %w", err)
			}
		}
	}
	return header, nil
}

// addHeader adds a header that arrives as it is written.
func addHeader(header nats.Header, name, value string) error {
	if name == "" || strings.ContainsFunc(name, func(c rune) bool { return c <= ' ' || c == ':' || c >= 0x7f }) {
		return fmt.Errorf("%q is not the name of a header", name)
	}
	if strings.ContainsAny(value, "\r\n\x00") || strings.TrimSpace(value) != value {
		return fmt.Errorf("the value of %s holds a line end or begins or ends with a space", name)
	}
	header[name] = append(header[name], value)
	return nil
}

// hasHeader looks for name in any spelling.
func hasHeader(header nats.Header, name string) bool {
	for k := range header {
		if strings.EqualFold(k, name) {
			return true
		}
	}
	return false
}

// setID makes id the one by which JetStream drops copies and by which receivers know the event.
func setID(header nats.Header, id string) error {
	if id == "" {
		return nil
	}
	if hasHeader(header, jetstream.MsgIDHeader) {
		return errors.New("stands beside a header " + jetstream.MsgIDHeader + "; give one of them")
	}
	return addHeader(header, jetstream.MsgIDHeader, id)
}

// keyPlace stands for the encoded key in a subject template.
const keyPlace = "{key}"

// subjectTemplate makes subjects of keys: a subject with {key} in it. The empty template makes none.
type subjectTemplate string

// defaultTemplate derives the template from the first filter of SLUICE_SUBJECTS: its one wildcard is the key's place.
func defaultTemplate(filters []string) subjectTemplate {
	if len(filters) == 0 {
		return ""
	}
	tokens := strings.Split(filters[0], ".")
	wildcards := 0
	for i, token := range tokens {
		if token == "*" || token == ">" {
			tokens[i] = keyPlace
			wildcards++
		}
	}
	if wildcards != 1 {
		return ""
	}
	return subjectTemplate(strings.Join(tokens, "."))
}

func (t subjectTemplate) check() error {
	if !strings.Contains(string(t), keyPlace) {
		return fmt.Errorf("%q has no {key}; write one such as events.{key}", string(t))
	}
	if err := checkSubject(strings.ReplaceAll(string(t), keyPlace, "k")); err != nil {
		return fmt.Errorf("%q: %w", string(t), err)
	}
	return nil
}

// of returns the subject of a key. A key that can stand as one token of a subject stays as it is; every other one is
// encoded, and so is one with a percent sign: no two keys make the same subject.
func (t subjectTemplate) of(key string) (string, error) {
	switch {
	case len(key) > limiter.MaxKey:
		return "", fmt.Errorf("is longer than %d bytes", limiter.MaxKey)
	case t == "":
		return "", errors.New("no subject follows from SLUICE_SUBJECTS; use --subject 'events.{key}', or give subject instead")
	}
	if strings.ContainsAny(key, ".*>%") || strings.ContainsFunc(key, subjectBreaker) {
		key = limiter.EncodeKey(key)
	}
	return strings.ReplaceAll(string(t), keyPlace, key), nil
}

// checkSubject says why nothing can be published to subject.
func checkSubject(subject string) error {
	if !validSubject(subject) {
		return fmt.Errorf("%q is not a subject: tokens separated by dots, without spaces", subject)
	}
	if strings.ContainsAny(subject, "*>") {
		return fmt.Errorf("%q holds a wildcard; publish to one subject", subject)
	}
	return nil
}
