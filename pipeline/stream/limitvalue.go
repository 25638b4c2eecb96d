package stream

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"sluice/limiter"
)

// The rules of limits lie in the KV bucket sluice_limits, one place a key:
//
//	all               the brake
//	default           instead of SLUICE_LIMIT
//	tier.<name>       of a tier
//	pattern.<text>    of keys that match
//	key.<key>         of a key
//
// Names are encoded as keys are in subjects, but with = instead of %, which KV keys can't hold. A value is the limits as people
// write them ("10/s burst 20"), or JSON:
//
//	{"limits": "10/s burst 20", "tier": "gold", "paused": true, "by": "alice@host", "comment": "why"}
//
// with at least one of limits, tier (of a key only) and paused; or {"removed": true} with by and comment, which says what a deleted
// key says, but also who did it. When it was written is when the bucket stored it.

// LimitsBucket is the KV bucket of the limits: sluice_limits.
func (n Names) LimitsBucket() string { return n.name + "_limits" }

func (n Names) limitsStream() string { return "KV_" + n.LimitsBucket() }

// maxLimitValue bounds a value in bytes.
const maxLimitValue = 4096

// StoredRule is a rule as the bucket holds it.
type StoredRule struct {
	Place    limiter.Place
	Rule     limiter.Rule
	Removed  bool // there was a rule; there is none any more
	By       string
	Comment  string
	At       time.Time // when it was stored
	Revision uint64
	Key      string // in the bucket
	Value    string // as it is stored
	Fault    error  // the entry can't be understood; Place is zero if its key can't
}

// ruleValue is the JSON of a value.
type ruleValue struct {
	Limits  string `json:"limits,omitempty"`
	Tier    string `json:"tier,omitempty"`
	Paused  bool   `json:"paused,omitempty"`
	Removed bool   `json:"removed,omitempty"`
	By      string `json:"by,omitempty"`
	Comment string `json:"comment,omitempty"`
}

func limitKey(p limiter.Place) string {
	if p.Name == "" {
		return string(p.Source)
	}
	return string(p.Source) + "." + kvToken(p.Name)
}

// kvToken is a name as it stands in a KV key.
func kvToken(name string) string { return strings.ReplaceAll(limiter.EncodeKey(name), "%", "=") }

func placeOf(key string) (limiter.Place, error) {
	source, token, named := strings.Cut(key, ".")
	place := limiter.Place{Source: limiter.RulingSource(source)}
	if named {
		name, err := limiter.DecodeKey(strings.ReplaceAll(token, "=", "%"))
		if err != nil || name == "" || strings.Contains(token, "%") {
			return limiter.Place{}, fmt.Errorf("%.80q isn't an encoded name", token)
		}
		place.Name = name
	}
	return place, place.Validate()
}

// encodeRule is the value of a rule; a rule that says nothing is a removed one.
func encodeRule(r limiter.Rule, by, comment string) ([]byte, error) {
	v := ruleValue{Tier: r.Tier, Paused: r.Paused, Removed: r.None(), By: by, Comment: comment}
	if r.Limits != nil {
		v.Limits = r.Limits.String()
	}
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, fmt.Errorf("encoding a rule: %w", err)
	}
	value := bytes.TrimSuffix(out.Bytes(), []byte("\n"))
	if len(value) > maxLimitValue {
		return nil, fmt.Errorf("the rule with its comment takes %d bytes, more than the most, %d", len(value), maxLimitValue)
	}
	return value, nil
}

// storedRule reads an entry of the bucket.
func storedRule(e jetstream.KeyValueEntry) StoredRule {
	s := StoredRule{Key: e.Key(), Value: string(e.Value()), At: e.Created(), Revision: e.Revision()}
	if s.Place, s.Fault = placeOf(e.Key()); s.Fault != nil {
		s.Place = limiter.Place{}
		s.Removed = e.Operation() != jetstream.KeyValuePut
		return s
	}
	if e.Operation() != jetstream.KeyValuePut {
		s.Removed = true
		return s
	}
	v, err := parseRuleValue(e.Value())
	if err == nil {
		s.By, s.Comment, s.Removed = v.By, v.Comment, v.Removed
		s.Rule, err = v.rule()
	}
	if err == nil {
		err = s.Rule.Validate(s.Place)
	}
	if err != nil {
		s.Rule, s.Fault = limiter.Rule{}, err
	}
	return s
}

func parseRuleValue(value []byte) (v ruleValue, err error) {
	value = bytes.TrimSpace(value)
	if len(value) == 0 || value[0] != '{' {
		return ruleValue{Limits: string(value)}, nil
	}
	d := json.NewDecoder(bytes.NewReader(value))
	d.DisallowUnknownFields() // one that this version doesn't know may change what is meant
	if err := d.Decode(&v); err != nil {
		return v, fmt.Errorf("isn't the JSON of a rule: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return v, errors.New("isn't the JSON of one rule")
	}
	if v.Limits == "" && v.Tier == "" && !v.Paused && !v.Removed {
		return v, errors.New("says nothing; write limits, a tier, paused or removed")
	}
	return v, nil
}

func (v ruleValue) rule() (r limiter.Rule, err error) {
	if v.Removed {
		if v.Limits != "" || v.Tier != "" || v.Paused {
			return r, errors.New("is removed, and says something")
		}
		return r, nil
	}
	r.Tier, r.Paused = v.Tier, v.Paused
	if v.Limits != "" || v.Tier == "" && !v.Paused {
		r.Limits, err = limiter.ParseLimits(v.Limits)
	}
	return r, err
}
