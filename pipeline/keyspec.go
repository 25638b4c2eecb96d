package pipeline

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"sluice/limiter"
)

// The errors of [KeySpec.Key]. Both are final for the event: it is dead-lettered.
var (
	ErrNoKey  = errors.New("no key")       // nothing in the event answers the spec
	ErrBadKey = errors.New("unusable key") // longer than limiter.MaxKey, or others may read another one in the event
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
//
// A key that the receiver might read otherwise is [ErrBadKey], for else an event could take the tokens of one key and act on
// another: headers of one name with different values; a name on the path that its JSON object has twice, however escaped; and
// names that differ in case only, which some parsers, such as Go's encoding/json, take for one: where they lead to another key
// than exact names do.
func (k KeySpec) Key(ev *Event) (string, error) {
	doc := document{data: ev.Data}
	key, err := k.find(ev, &doc)
	if err == nil && doc.near {
		doc.fold = true
		if other, err := k.find(ev, &doc); err != nil || other != key {
			return "", fmt.Errorf("%w: where parsers ignore the case of JSON names %s finds another one", ErrBadKey, k)
		}
	}
	return key, err
}

func (k KeySpec) find(ev *Event, doc *document) (string, error) {
	for _, parts := range k.alternatives {
		key, err := k.join(parts, ev, doc)
		switch {
		case err != nil:
			return "", fmt.Errorf("%w: %w", ErrBadKey, err)
		case key == "":
			continue
		case len(key) > limiter.MaxKey:
			return "", fmt.Errorf("%w: what %s finds has %d bytes; a key has at most %d",
				ErrBadKey, KeySpec{alternatives: [][]keyPart{parts}}, len(key), limiter.MaxKey)
		}
		return key, nil
	}
	return "", fmt.Errorf("%w: %s finds nothing in the event of subject %.100q", ErrNoKey, k, ev.Subject)
}

// join gives the key of one alternative, or "" if a part has no value. An error means that a part has several.
func (k KeySpec) join(parts []keyPart, ev *Event, doc *document) (string, error) {
	if !k.joined {
		return parts[0].value(ev, doc)
	}
	var b strings.Builder
	for i, part := range parts {
		value, err := part.value(ev, doc)
		if value == "" || err != nil {
			return "", err
		}
		if i > 0 {
			b.WriteByte('+')
		}
		_, _ = joinEscaper.WriteString(&b, value)
	}
	return b.String(), nil
}

var joinEscaper = strings.NewReplacer("%", "%25", "+", "%2B")

// value is what stands at the part's place in ev; "" if nothing. An error means that it depends on the reader.
func (p keyPart) value(ev *Event, doc *document) (string, error) {
	switch p.form {
	case fromHeader:
		return ev.Header.only(p.name)
	case fromSubject:
		return subjectToken(ev.Subject, p.token), nil
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
