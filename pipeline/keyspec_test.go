package pipeline

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"sluice/limiter"
)

// mustSpec parses a spec that is known to be right.
func mustSpec(t testing.TB, text string) KeySpec {
	t.Helper()
	k, err := ParseKeySpec(text)
	if err != nil {
		t.Fatalf("ParseKeySpec(%q): %v", text, err)
	}
	return k
}

func TestKeyIsFoundWhereTheSpecSays(t *testing.T) {
	t.Parallel()
	ev := &Event{
		Subject: "events.user-7.orders",
		Header:  Header{"User": {"ann"}, "Empty": {""}, "Sum": {"a+b%"}, "A+B,C": {"odd"}, "Odd": {" \t\xff "}},
		Data: []byte(`{"user":{"id":12345678901234567890,"name":"Zo\u00eb","a.b":"dot","":"none"},"n":1.50,"t":true,"f":false,` +
			`"null":null,"list":["x",{"id":"y"},[["z"]]],"0":"zero","empty":"","unused":1,"unused":2,` +
			`"*":"star","#":"hash","@this":"at","a|b":"pipe","!x":"bang","{a,b}":"brace","x+y":"plus","e\u0073c":"escaped","\\":"back"}`),
	}
	tests := []struct {
		spec string
		want string // "" if there is no key
	}{
		{"subject:1", "events"},
		{"subject:2", "user-7"},
		{"subject:3", "orders"},
		{"subject:4", ""},
		{"header:User", "ann"},
		{"header:uSER", "ann"},
		{"header:Empty", ""},
		{"header:Missing", ""},
		{"header:Sum", "a+b%"},
		{`header:A\+B\,C`, "odd"},
		{"header:Odd", " \t\xff "},
		{"json:user.id", "12345678901234567890"},
		{"json:user.name", "Zoë"},
		{`json:user.a\.b`, "dot"},
		{"json:user.a.b", ""},
		{"json:n", "1.50"},
		{"json:t", "true"},
		{"json:f", "false"},
		{"json:null", ""},
		{"json:user", ""},
		{"json:list", ""},
		{"json:empty", ""},
		{"json:missing.further", ""},
		{"json:n.further", ""},
		{"json:list.0", "x"},
		{"json:list.1.id", "y"},
		{"json:list.2.0.0", "z"},
		{"json:list.3", ""},
		{"json:list.-1", ""},
		{"json:list.00", ""},
		{`json:list.\+0`, ""},
		{"json:0", "zero"},
		{"json:esc", "escaped"},
		{"json:*", "star"},
		{"json:#", "hash"},
		{"json:list.#", ""},
		{"json:list.#.id", ""},
		{"json:list.@reverse.0", ""},
		{"json:@this", "at"},
		{"json:@this.user.id", ""},
		{"json:a|b", "pipe"},
		{"json:user|id", ""},
		{"json:!x", "bang"},
		{`json:{a\,b}`, "brace"},
		{`json:x\+y`, "plus"},
		{`json:\\`, "back"},
		{"json:us?r.id", ""},
		{"header:Missing,header:Empty,json:empty,subject:2,header:User", "user-7"},
		{" header:Missing ,\tsubject: 2 ", "user-7"},
		{"subject:2+header:User", "user-7+ann"},
		{"subject:2 + header:User", "user-7+ann"},
		{"subject:2+header:Missing", ""},
		{"subject:2+header:Missing,header:User", "ann"},
		{"subject:2+header:Sum", "user-7+a%2Bb%25"},
		{"subject:2+header:Missing,header:Sum", "a%2Bb%25"},
		{"subject:1+subject:2+subject:3", "events+user-7+orders"},
	}
	for _, tt := range tests {
		got, err := mustSpec(t, tt.spec).Key(ev)
		switch {
		case tt.want != "" && (err != nil || got != tt.want):
			t.Errorf("key by %q = %q, %v; want %q", tt.spec, got, err, tt.want)
		case tt.want == "" && (!errors.Is(err, ErrNoKey) || got != ""):
			t.Errorf("key by %q = %q, %v; want ErrNoKey", tt.spec, got, err)
		}
	}
}

func TestEmptySubjectTokenIsNoKey(t *testing.T) {
	t.Parallel()
	for _, subject := range []string{"", "events", "events.", "events..x"} {
		if key, err := mustSpec(t, "subject:2").Key(&Event{Subject: subject}); !errors.Is(err, ErrNoKey) {
			t.Errorf("key of subject %q = %q, %v; want ErrNoKey", subject, key, err)
		}
	}
}

func TestDataThatIsNotJSONHasNoKey(t *testing.T) {
	t.Parallel()
	for _, data := range []string{
		"", " ", `{"a":"x"`, `{"a":"x"}}`, `{"a":"x"} {}`, `{a:"x"}`, `{"a":'x'}`, `{"a":"x",}`, "{\"a\":\"x\n\"}", `{"a":01}`, `{"a":NaN}`,
		`"a"`, `["x"]`, "null", "\xff", `{"b":"x"}`,
	} {
		if key, err := mustSpec(t, "json:a").Key(&Event{Data: []byte(data)}); !errors.Is(err, ErrNoKey) {
			t.Errorf("key of data %q = %q, %v; want ErrNoKey", data, key, err)
		}
	}
}

func TestDeeplyNestedDataDoesNotEndTheProcess(t *testing.T) {
	t.Parallel()
	k := mustSpec(t, "json:a")
	for _, data := range [][]byte{
		bytes.Repeat([]byte("["), 32<<20),
		bytes.Repeat([]byte(`{"a":`), 8<<20),
		append(append([]byte(`{"a":"x","b":`), bytes.Repeat([]byte("["), 20_000)...), append(bytes.Repeat([]byte("]"), 20_000), '}')...),
	} {
		if key, err := k.Key(&Event{Data: data}); !errors.Is(err, ErrNoKey) {
			t.Errorf("key of deeply nested data = %q, %v; want ErrNoKey", key, err)
		}
	}
	broad := []byte(`{"b":[` + strings.Repeat("[],", 50_000) + `{}],"a":"x"}`)
	if key, err := k.Key(&Event{Data: broad}); err != nil || key != "x" {
		t.Errorf("key of broad data = %q, %v; want x", key, err)
	}
}

func TestTooLongKeyIsRefusedByItsLength(t *testing.T) {
	t.Parallel()
	tests := []struct {
		spec, user string
		length     int // of a key that is refused; 0 if it is accepted
	}{
		{"header:User", strings.Repeat("k", limiter.MaxKey), 0},
		{"header:User", strings.Repeat("k", limiter.MaxKey+1), 257},
		{"header:User,subject:1", strings.Repeat("k", 300), 300}, // the first hit rules, whatever follows
		{"subject:1+header:User", strings.Repeat("k", limiter.MaxKey-2), 0},
		{"subject:1+header:User", strings.Repeat("k", limiter.MaxKey-1), 257},
		{"subject:1+header:User", strings.Repeat("+", 100), 302}, // as joined, escapes and all
	}
	for _, tt := range tests {
		key, err := mustSpec(t, tt.spec).Key(&Event{Subject: "s", Header: Header{"User": {tt.user}}})
		if tt.length == 0 {
			if err != nil || len(key) != limiter.MaxKey {
				t.Errorf("%s of %d bytes: key of %d bytes, %v; want it accepted", tt.spec, len(tt.user), len(key), err)
			}
			continue
		}
		if !errors.Is(err, ErrBadKey) || key != "" {
			t.Errorf("%s of %d bytes: key %q, %v; want ErrBadKey", tt.spec, len(tt.user), key, err)
			continue
		}
		if text := err.Error(); !strings.Contains(text, fmt.Sprint(tt.length)) || strings.Contains(text, "kkk") || strings.Contains(text, "++") {
			t.Errorf("the error %q should tell the length, %d, and not the key", text, tt.length)
		}
	}
}

func TestMissingKeyErrorNamesSpecAndSubject(t *testing.T) {
	t.Parallel()
	_, err := mustSpec(t, "header:User,json:user.id").Key(&Event{Subject: "events.x"})
	for _, part := range []string{"header:User,json:user.id", `"events.x"`} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("the error %q does not say %s", err, part)
		}
	}
	if _, err := (KeySpec{}).Key(&Event{Subject: "a.b"}); !errors.Is(err, ErrNoKey) {
		t.Errorf("the zero spec gives %v, want ErrNoKey", err)
	}
}

func TestJoinedKeysNeverCollide(t *testing.T) {
	t.Parallel()
	k := mustSpec(t, "header:A+header:B,header:A")
	values := []string{"", "a", "b", "+", "a+b", "b+c", "%", "%2B", "%25", "a%2Bb", "+a", "a+", "++"}
	seen := map[string]string{}
	for _, a := range values[1:] {
		for _, b := range values {
			key, err := k.Key(&Event{Header: Header{"A": {a}, "B": {b}}})
			if err != nil {
				t.Fatalf("key of %q and %q: %v", a, b, err)
			}
			pair := fmt.Sprintf("%q and %q", a, b)
			if other, taken := seen[key]; taken {
				t.Errorf("%s have the same key %q as %s", pair, key, other)
			}
			seen[key] = pair
		}
	}
}

func TestSpecTextIsCanonical(t *testing.T) {
	t.Parallel()
	tests := []struct{ in, want string }{
		{"subject:2", "subject:2"},
		{" subject:02 ", "subject:2"},
		{"header: X-User , json:a.b", "header:X-User,json:a.b"},
		{`header:A\+B\.C`, `header:A\+B.C`},
		{`json:a\.b.c\,d\+e\\f+subject:1`, `json:a\.b.c\,d\+e\\f+subject:1`},
		{"json:a:b", "json:a:b"},
	}
	for _, tt := range tests {
		if got := mustSpec(t, tt.in).String(); got != tt.want {
			t.Errorf("text of %q = %q, want %q", tt.in, got, tt.want)
		}
	}
}

func TestFaultInSpecNamesThePartAndTheForms(t *testing.T) {
	t.Parallel()
	tests := []struct{ spec, part, why string }{
		{"", `""`, "is empty"},
		{"subject:2,", `""`, "is empty"},
		{"subject:2++header:X", `""`, "is empty"},
		{"user", `"user"`, "no colon"},
		{"subject:2,hdr:X", `"hdr:X"`, `"hdr" is unknown`},
		{"Header:X", `"Header:X"`, `"Header" is unknown`},
		{"header:", `"header:"`, "nothing follows"},
		{"header: ", `"header:"`, "nothing follows"},
		{"header:a b", `"header:a b"`, "no header"},
		{"header:a:b", `"header:a:b"`, "no header"},
		{"header:é", `"header:é"`, "no header"},
		{"subject:0", `"subject:0"`, "from 1"},
		{"subject:-1", `"subject:-1"`, "from 1"},
		{"subject:1.5", `"subject:1.5"`, "from 1"},
		{"subject:two", `"subject:two"`, "from 1"},
		{"subject:99999999999999999999", `"subject:99999999999999999999"`, "from 1"},
		{"json:", `"json:"`, "nothing follows"},
		{"json:a..b", `"json:a..b"`, "name in the path is empty"},
		{"json:.a", `"json:.a"`, "name in the path is empty"},
		{"json:a.", `"json:a."`, "name in the path is empty"},
		{`json:a\b`, `"json:a\\b"`, "backslash"},
		{`subject:2+json:a\`, `"json:a\\"`, "backslash"},
	}
	for _, tt := range tests {
		k, err := ParseKeySpec(tt.spec)
		if err == nil {
			t.Errorf("ParseKeySpec(%q) = %s, want an error", tt.spec, k)
			continue
		}
		for _, part := range []string{"part " + tt.part, tt.why, "header:NAME", "subject:N", "json:path"} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("ParseKeySpec(%q): the error %q does not say %s", tt.spec, err, part)
			}
		}
	}
}

func TestKeyFromSubjectOrHeaderAllocatesNothing(t *testing.T) {
	for _, spec := range []string{"subject:2", "header:user,subject:2"} {
		k, ev := mustSpec(t, spec), &Event{Subject: "events.user-7.orders", Header: Header{"user": {"ann"}}}
		if n := testing.AllocsPerRun(100, func() { _, _ = k.Key(ev) }); n > 0 {
			t.Errorf("finding a key by %q allocates %v times, want 0", spec, n)
		}
	}
}

func FuzzKeySpecRoundTrip(f *testing.F) {
	for _, s := range []string{
		"subject:2", "header:X-User,subject:2+header:Type", `json:a\.b.c\,d\+e\\f`, "json: a. b ", "subject:+1", `header:\\`, ",", "+", `\`,
	} {
		f.Add(s)
	}
	ev := &Event{Subject: "a.b.c", Header: Header{"X": {"y"}}, Data: []byte(`{"a":{"b":[1]}}`)}
	f.Fuzz(func(t *testing.T, s string) {
		k, err := ParseKeySpec(s)
		if err != nil {
			return
		}
		again, err := ParseKeySpec(k.String())
		if err != nil || again.String() != k.String() {
			t.Fatalf("%q has the text %q, which is read as %q, %v", s, k, again, err)
		}
		key, err := k.Key(ev)
		if keyAgain, errAgain := again.Key(ev); keyAgain != key || (err == nil) != (errAgain == nil) {
			t.Fatalf("%q finds %q, %v; its text %q finds %q, %v", s, key, err, k, keyAgain, errAgain)
		}
	})
}

// standardValue is the first scalar at path as encoding/json's tokens show it in valid data; "" if there is none.
func standardValue(from *json.Decoder, path []string) string {
	token, _ := from.Token()
	if len(path) == 0 {
		switch value := token.(type) {
		case string:
			return value
		case json.Number:
			return value.String()
		case bool:
			return fmt.Sprint(value)
		}
		return ""
	}
	if token != json.Delim('{') {
		return ""
	}
	for from.More() {
		if name, _ := from.Token(); name == path[0] {
			return standardValue(from, path[1:])
		}
		var skipped json.RawMessage
		if from.Decode(&skipped) != nil {
			return ""
		}
	}
	return ""
}

func FuzzKeyFromJSON(f *testing.F) {
	for _, s := range []string{
		`{"a":{"b":"x"}}`, `{"a":{"b":12345678901234567890}}`, `{"a":{"b":-1.5e+30}}`, `{"a":{"b":true}}`, `{"a":{"b":null}}`,
		` { "z" : [ { } , "\"" ] , "\u0061" : { "b" : "\ud83d\ude42\ud800x\n" } } `, `{"a":{"b":"x"}`, `{"a":[1]}`, `[]`,
		`{"a":{"b":"\\"}}`, `{"a":{"b":1,"b":2}}`, `{"a":{},"a":{"b":1}}`,
	} {
		f.Add([]byte(s))
	}
	k := mustSpec(f, "json:a.b")
	f.Fuzz(func(t *testing.T, data []byte) {
		key, err := k.Key(&Event{Data: data})
		if !utf8.Valid(data) || errors.Is(err, ErrBadKey) { // encoding/json changes bytes that aren't UTF-8; a key keeps them
			return
		}
		want := ""
		if data = WithoutMark(data); json.Valid(data) {
			from := json.NewDecoder(bytes.NewReader(data))
			from.UseNumber()
			want = standardValue(from, []string{"a", "b"})
		}
		if key != want {
			t.Fatalf("key of %q = %q, %v; encoding/json finds %q", data, key, err, want)
		}
		var receiver struct {
			A struct{ B any }
		}
		if from := json.NewDecoder(bytes.NewReader(data)); err == nil {
			from.UseNumber()
			if err := from.Decode(&receiver); err != nil || fmt.Sprint(receiver.A.B) != key {
				t.Fatalf("key of %q = %q; a receiver in Go reads %v, %v", data, key, receiver.A.B, err)
			}
		}
	})
}
