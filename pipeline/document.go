package pipeline

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/tidwall/gjson"
)

// document is the data of an event, read as JSON when the first part asks for it.
type document struct {
	data []byte
	read bool
	root gjson.Result // doesn't exist if the data isn't JSON
	near bool         // a name on a path was there in another case only
	fold bool         // such a name counts
}

// value is the scalar at path as text; "" if there is none. A number is its text exactly, whatever its size.
//
// The path is walked name by name instead of being handed to gjson, to which "#", "@this" or "*" in it would be queries.
func (d *document) value(path []string) (string, error) {
	if !d.read {
		d.read = true
		if data := WithoutMark(d.data); validJSON(data) {
			d.root = gjson.ParseBytes(data)
		}
	}
	at := d.root
	for _, name := range path {
		var err error
		if at, err = d.member(at, name); err != nil {
			return "", err
		}
	}
	switch at.Type {
	case gjson.String:
		return strings.Clone(at.Str), nil // a part of it would keep all the data in memory for as long as the key
	case gjson.Number:
		return strings.Clone(at.Raw), nil
	case gjson.True:
		return "true", nil
	case gjson.False:
		return "false", nil
	}
	return "", nil
}

// member is the field of that name, or the element of that number; a result that doesn't exist if there is none. A name that
// is there twice, in one case or another, is an error: parsers differ in which of the two they take.
func (d *document) member(parent gjson.Result, name string) (found gjson.Result, err error) {
	switch {
	case parent.IsObject():
		matches, exact := 0, false
		parent.ForEach(func(key, value gjson.Result) bool {
			if !strings.EqualFold(key.Str, name) {
				return true
			}
			matches++
			found, exact = value, key.Str == name
			return matches == 1
		})
		if matches > 1 {
			return gjson.Result{}, fmt.Errorf("the JSON name %.80q is there more than once, or in several cases", name)
		}
		if matches == 1 && !exact {
			d.near = true
			if !d.fold {
				return gjson.Result{}, nil
			}
		}
	case parent.IsArray():
		index, err := strconv.Atoi(name)
		if err != nil || strconv.Itoa(index) != name { // "01" is a name, not a number
			return gjson.Result{}, nil
		}
		parent.ForEach(func(_, value gjson.Result) bool {
			if index == 0 {
				found = value
			}
			index--
			return index >= 0
		})
	}
	return found, nil
}

// WithoutMark is data without the byte order mark that some writers begin JSON with.
func WithoutMark(data []byte) []byte { return bytes.TrimPrefix(data, []byte("\uFEFF")) }

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
