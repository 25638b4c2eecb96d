package pipeline

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/tidwall/gjson"

	"sluice/limiter"
)

// The errors of [KeySpec.Key]. Both are final for the event: it is dead-lettered.
var (
	ErrNoKey  = errors.New("no key")       // nothing in the event answers the spec
	ErrBadKey = errors.New("unusable key") // longer than limiter.MaxKey
)

// KeySpec says where in an event its key stands. The zero KeySpec finds none.
type KeySpec struct {
	alternatives [][]keyPart // the first whose parts all have a value gives the key
	joined       bool        // some alternative has several parts, so that values are escaped
}

// keyPart is one place in an event.
type keyPart struct {
	form  keyForm
	name  string   // of the header
	token int      // of the subject, from 1
	path  []string // in the JSON data
}

type keyForm string

const (
	fromHeader  keyForm = "header"
	fromSubject keyForm = "subject"
	fromJSON    keyForm = "json"
)

const keyForms = "the forms are header:NAME, subject:N (N from 1) and json:path.to.field; a comma parts alternatives, " +
	"+ joins parts, and a backslash takes the meaning from a comma, plus, point or backslash in a name"

// ParseKeySpec reads alternatives parted by commas, each of parts joined by "+": header:NAME, subject:N, json:path.
func ParseKeySpec(s string) (KeySpec, error) {
	var k KeySpec
	for _, alternative := range splitUnescaped(s, ',') {
		var parts []keyPart
		for _, text := range splitUnescaped(alternative, '+') {
			text = strings.TrimSpace(text)
			part, err := parseKeyPart(text)
			if err != nil {
				return KeySpec{}, fmt.Errorf("the part %.80q of the key: %w; %s", text, err, keyForms)
			}
			parts = append(parts, part)
		}
		k.alternatives = append(k.alternatives, parts)
		k.joined = k.joined || len(parts) > 1
	}
	return k, nil
}

func parseKeyPart(s string) (keyPart, error) {
	form, arg, found := strings.Cut(s, ":")
	arg = strings.TrimSpace(arg)
	switch {
	case s == "":
		return keyPart{}, errors.New("is empty")
	case !found:
		return keyPart{}, errors.New("has no colon")
	case arg == "":
		return keyPart{}, errors.New("nothing follows the colon")
	}
	switch keyForm(form) {
	case fromHeader:
		name, err := unescapeName(arg)
		if err == nil && strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r == ':' || r > '~' }) {
			err = errors.New("no header has such a name")
		}
		return keyPart{form: fromHeader, name: name}, err
	case fromSubject:
		n, err := strconv.Atoi(arg)
		if err != nil || n < 1 || arg[0] == '+' {
			return keyPart{}, errors.New("the number of a subject's token is a whole number from 1")
		}
		return keyPart{form: fromSubject, token: n}, nil
	case fromJSON:
		var path []string
		for _, text := range splitUnescaped(arg, '.') {
			name, err := unescapeName(text)
			if err != nil {
				return keyPart{}, err
			}
			if name == "" {
				return keyPart{}, errors.New("a name in the path is empty")
			}
			path = append(path, name)
		}
		return keyPart{form: fromJSON, path: path}, nil
	}
	return keyPart{}, fmt.Errorf("the form %.40q is unknown", form)
}

// splitUnescaped splits at each separator that no backslash stands before. It leaves the backslashes in.
func splitUnescaped(s string, separator byte) []string {
	var parts []string
	start := 0
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case separator:
			parts = append(parts, s[start:i])
			start = i + 1
		}
	}
	return append(parts, s[start:])
}

// specialInName are the bytes with a meaning in a spec.
const specialInName = `\.,+`

func unescapeName(s string) (string, error) {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' {
			i++
			if i == len(s) || strings.IndexByte(specialInName, s[i]) < 0 {
				return "", errors.New("a backslash stands before something without a meaning")
			}
		}
		b.WriteByte(s[i])
	}
	return b.String(), nil
}

// escapeName is the inverse of unescapeName; special are the bytes that need it.
func escapeName(s, special string) string {
	var b strings.Builder
	for i := range len(s) {
		if strings.IndexByte(special, s[i]) >= 0 {
			b.WriteByte('\\')
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// String is the spec in the form that [ParseKeySpec] reads.
func (k KeySpec) String() string {
	var b strings.Builder
	for i, parts := range k.alternatives {
		if i > 0 {
			b.WriteByte(',')
		}
		for j, part := range parts {
			if j > 0 {
				b.WriteByte('+')
			}
			b.WriteString(part.String())
		}
	}
	return b.String()
}

func (p keyPart) String() string {
	switch p.form {
	case fromHeader:
		return "header:" + escapeName(p.name, `\,+`)
	case fromSubject:
		return "subject:" + strconv.Itoa(p.token)
	}
	names := make([]string, len(p.path))
	for i, name := range p.path {
		names[i] = escapeName(name, specialInName)
	}
	return "json:" + strings.Join(names, ".")
}

// Key finds the key of ev: 1 to limiter.MaxKey bytes, or [ErrNoKey] or [ErrBadKey]. An empty value counts as missing. If
// some alternative joins parts, "%" and "+" in every value are escaped, so that two different lists of values never make
// the same key.
func (k KeySpec) Key(ev *Event) (string, error) {
	doc := document{data: ev.Data}
	for _, parts := range k.alternatives {
		key, found := k.join(parts, ev, &doc)
		if !found {
			continue
		}
		if len(key) > limiter.MaxKey {
			return "", fmt.Errorf("%w: what %s finds has %d bytes; a key has at most %d",
				ErrBadKey, KeySpec{alternatives: [][]keyPart{parts}}, len(key), limiter.MaxKey)
		}
		return key, nil
	}
	return "", fmt.Errorf("%w: %s finds nothing in the event of subject %.100q", ErrNoKey, k, ev.Subject)
}

// join gives the key of one alternative; found is false if a part has no value.
func (k KeySpec) join(parts []keyPart, ev *Event, doc *document) (key string, found bool) {
	if !k.joined {
		key = parts[0].value(ev, doc)
		return key, key != ""
	}
	var b strings.Builder
	for i, part := range parts {
		value := part.value(ev, doc)
		if value == "" {
			return "", false
		}
		if i > 0 {
			b.WriteByte('+')
		}
		_, _ = joinEscaper.WriteString(&b, value)
	}
	return b.String(), true
}

var joinEscaper = strings.NewReplacer("%", "%25", "+", "%2B")

// value is what stands at the part's place in ev; "" if nothing.
func (p keyPart) value(ev *Event, doc *document) string {
	switch p.form {
	case fromHeader:
		return ev.Header.Get(p.name)
	case fromSubject:
		return subjectToken(ev.Subject, p.token)
	}
	return doc.value(p.path)
}

// subjectToken is the nth token of a subject, from 1, or "".
func subjectToken(subject string, n int) string {
	for ; n > 1; n-- {
		_, rest, found := strings.Cut(subject, ".")
		if !found {
			return ""
		}
		subject = rest
	}
	token, _, _ := strings.Cut(subject, ".")
	return token
}

// document is the data of an event, read as JSON when the first part asks for it.
type document struct {
	data []byte
	read bool
	root gjson.Result // doesn't exist if the data isn't JSON
}

// value is the scalar at path as text; "" if there is none. A number is its text exactly, whatever its size.
//
// The path is walked name by name instead of being handed to gjson, to which "#", "@this" or "*" in it would be queries.
func (d *document) value(path []string) string {
	if !d.read {
		d.read = true
		if validJSON(d.data) {
			d.root = gjson.ParseBytes(d.data)
		}
	}
	at := d.root
	for _, name := range path {
		at = member(at, name)
	}
	switch at.Type {
	case gjson.String:
		return strings.Clone(at.Str) // a part of it would keep all the data in memory for as long as the key
	case gjson.Number:
		return strings.Clone(at.Raw)
	case gjson.True:
		return "true"
	case gjson.False:
		return "false"
	}
	return ""
}

// member is the first field of that name, or the element of that number; a result that doesn't exist if there is none.
func member(parent gjson.Result, name string) (found gjson.Result) {
	switch {
	case parent.IsObject():
		parent.ForEach(func(key, value gjson.Result) bool {
			if key.Str != name {
				return true
			}
			found = value
			return false
		})
	case parent.IsArray():
		index, err := strconv.Atoi(name)
		if err != nil || strconv.Itoa(index) != name { // "01" is a name, not a number
			return found
		}
		parent.ForEach(func(_, value gjson.Result) bool {
			if index == 0 {
				found = value
			}
			index--
			return index >= 0
		})
	}
	return found
}

// maxDepth is how deeply nested data is still read; the same as in encoding/json.
const maxDepth = 10_000

// validJSON checks data that anybody may have published. gjson's check is the faster one, but goes as deep as the data
// does: a few megabytes of "[" would end the process. The one that stops in time is asked where there are enough brackets.
func validJSON(data []byte) bool {
	if bytes.Count(data, []byte("["))+bytes.Count(data, []byte("{")) > maxDepth {
		return json.Valid(data)
	}
	return gjson.ValidBytes(data)
}
