package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"mime"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"

	"sluice/sink"
)

// attributeName is what CloudEvents allows as the name of an attribute or extension.
var attributeName = regexp.MustCompile(`^[a-z0-9]+$`)

// decodeCloudEvent makes the message of a CloudEvent in binary mode: attributes and extensions become ce- headers, the
// data becomes the body. An attribute that is null is absent, as the JSON format has it. The key is the extension "key", else
// the subject, else the source.
func decodeCloudEvent(o object, subjects subjectTemplate) (*nats.Msg, error) {
	maps.DeleteFunc(o, func(name string, value json.RawMessage) bool { return name != "data" && string(value) == "null" })
	header, err := ceHeaders(o)
	if err != nil {
		return nil, err
	}
	keyField := "source"
	for _, name := range []string{"key", "subject"} {
		if _, ok := o[name]; ok {
			keyField = name
			break
		}
	}
	key, err := o.text(keyField)
	if err != nil {
		return nil, err
	}
	subject, err := subjects.of(key)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", keyField, err)
	}
	if err := checkSubject(subject); err != nil {
		return nil, fmt.Errorf("%s: %w", keyField, err)
	}

	if err := setID(header, ceMsgID(o)); err != nil {
		return nil, fmt.Errorf("id: %w", err)
	}

	contentType, err := o.text("datacontenttype")
	if err != nil {
		return nil, err
	}
	_, hasData := o["data"]
	if contentType == "" && hasData {
		contentType = "application/json" // what the absence means in this form of CloudEvents, and only in this one
	}
	if contentType != "" {
		if err := addHeader(header, "Content-Type", contentType); err != nil {
			return nil, fmt.Errorf("datacontenttype: %w", err)
		}
	}
	data, err := o.body(isJSON(contentType))
	if err != nil {
		return nil, err
	}
	return &nats.Msg{Subject: subject, Header: header, Data: data}, nil
}

// ceHeaders returns the attributes and extensions as ce- headers.
func ceHeaders(o object) (nats.Header, error) {
	for _, name := range []string{"specversion", "id", "source", "type"} {
		s, err := o.text(name)
		switch {
		case err != nil:
			return nil, err
		case s == "":
			return nil, fmt.Errorf("%s: is missing; CloudEvents need it", name)
		case name == "specversion" && s != "1.0":
			return nil, fmt.Errorf("specversion: %q is not supported; use 1.0", s)
		}
	}
	if _, err := o.timestamp("time"); err != nil {
		return nil, err
	}
	header := nats.Header{}
	for _, name := range slices.Sorted(maps.Keys(o)) {
		if name == "data" || name == "data_base64" || name == "datacontenttype" {
			continue
		}
		if !attributeName.MatchString(name) {
			return nil, fmt.Errorf("%s: unknown field; names of extensions are lower case letters and digits", name)
		}
		value, err := ceValue(o[name])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		header.Set("ce-"+name, sink.EncodeAttribute(value))
	}
	return header, nil
}

// ceMsgID is the id by which JetStream drops copies: source and id, which together tell CloudEvents apart. A slash within
// the id is encoded, so that the last one is the one between them.
func ceMsgID(o object) string {
	source, _ := o.text("source") // both were checked
	id, _ := o.text("id")
	return source + "/" + strings.NewReplacer("%", "%25", "/", "%2F").Replace(id)
}

// ceValue is the text of an attribute: a string, a boolean or a whole number of 32 bits.
func ceValue(raw json.RawMessage) (string, error) {
	if raw[0] == '"' {
		var s string
		err := json.Unmarshal(raw, &s)
		return s, err
	}
	text := string(raw)
	if text == "true" || text == "false" {
		return text, nil
	}
	if _, err := strconv.ParseInt(text, 10, 32); err == nil {
		return text, nil
	}
	return "", errors.New("must be a string, a boolean or a whole number")
}

// isJSON says whether a body of this type is JSON, so that a string in it keeps its quotes.
func isJSON(contentType string) bool {
	media, _, err := mime.ParseMediaType(contentType)
	return err == nil && (media == "application/json" || media == "text/json" || strings.HasSuffix(media, "+json"))
}
