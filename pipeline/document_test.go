package pipeline

import (
	"encoding/json"
	"errors"
	"maps"
	"strings"
	"testing"
	"time"
)

func TestKeyThatAReceiverMayReadOtherwiseIsRefused(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		why, spec, data string
		header          Header
		want            string // "" if the key is refused
	}{
		{"twice", "json:user", `{"user":"k1","user":"alice"}`, nil, ""},
		{"twice, the second without a value", "json:user", `{"user":"k1","user":null}`, nil, ""},
		{"twice, escaped", "json:user", `{"user":"k1","\u0075ser":"alice"}`, nil, ""},
		{"twice above the value", "json:user.id", `{"user":{"id":"k1"},"user":{"id":"alice"}}`, nil, ""},
		{"twice above the value, which one lacks", "json:user.id", `{"user":{"id":"k1"},"user":{}}`, nil, ""},
		{"twice in a list", "json:list.1.id", `{"list":[1,{"id":"k1","id":"alice"}]}`, nil, ""},
		{"twice with another hit behind", "json:user,json:other", `{"user":"","user":"alice","other":"k1"}`, nil, ""},
		{"twice in a joined key", "subject:1+json:user", `{"user":"k1","user":"alice"}`, nil, ""},
		{"two cases", "json:user", `{"user":"k1","USER":"alice"}`, nil, ""},
		{"two cases, the other first", "json:user", `{"User":"alice","user":"k1"}`, nil, ""},
		{"two cases beyond ASCII", "json:user", "{\"user\":\"k1\",\"u\u017fer\":\"alice\"}", nil, ""},
		{"only another case, and another hit", "json:user,subject:1", `{"USER":"alice"}`, nil, ""},
		{"only another case above the value", "json:user.id,subject:1", `{"USER":{"id":"alice"}}`, nil, ""},
		{"only another case of the list", "json:l.0,subject:1", `{"L":["alice"]}`, nil, ""},

		{"both cases named, one there", "json:userId,json:UserId", `{"UserId":"alice"}`, nil, "alice"},
		{"only another case, without a value", "json:user,subject:1", `{"USER":null}`, nil, "events"},
		{"another case that is never looked at", "subject:1,json:user", `{"USER":"alice"}`, nil, "events"},
		{"another name twice", "json:user", `{"a":1,"user":"alice","a":2,"A":{"user":1,"user":2}}`, nil, "alice"},
		{"the same name elsewhere", "json:user.id", `{"id":"x","user":{"id":"alice","z":{"id":"y"}}}`, nil, "alice"},

		{"header in two spellings", "header:user", "", Header{"user": {"k1"}, "User": {"alice"}}, ""},
		{"header in two others", "header:user", "", Header{"USER": {"k1"}, "User": {"alice"}}, ""},
		{"header twice", "header:user", "", Header{"User": {"k1", "alice"}}, ""},
		{"header twice, one empty", "header:user,subject:1", "", Header{"User": {"", "alice"}}, ""},
		{"header twice with one value", "header:user", "", Header{"User": {"alice", "alice"}, "USER": {"alice"}}, "alice"},
	} {
		key, err := mustSpec(t, tt.spec).Key(&Event{Subject: "events.x", Header: tt.header, Data: []byte(tt.data)})
		switch {
		case tt.want != "" && (err != nil || key != tt.want):
			t.Errorf("%s: key %q, %v; want %q", tt.why, key, err, tt.want)
		case tt.want == "" && (!errors.Is(err, ErrBadKey) || key != ""):
			t.Errorf("%s: key %q, %v; want ErrBadKey", tt.why, key, err)
		}
	}
}

// A body with 1,000 keys of its own must not reach a receiver that reads one user in all of them.
func TestDeadLetterOfAnAmbiguousKeyIsABadKey(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, r *rig) {
		r.cfg.Key = mustSpec(t, "json:user")
		stop := r.start()
		r.publish("a", 3, func(d *delivery) { d.ev.Data = []byte(`{"user":"k` + d.ev.ID + `","user":"alice"}`) })
		pass(time.Second)
		if want := (map[uint64]DeadReason{1: BadKey, 2: BadKey, 3: BadKey}); !maps.Equal(r.dead, want) {
			t.Errorf("dead letters %v, want %v", r.dead, want)
		}
		_ = stop()
	})
}

func TestByteOrderMarkBeforeJSONIsSkipped(t *testing.T) {
	t.Parallel()
	k := mustSpec(t, "json:user")
	if key, err := k.Key(&Event{Data: []byte("\uFEFF" + `{"user":"alice"}`)}); err != nil || key != "alice" {
		t.Errorf("key behind a byte order mark: %q, %v", key, err)
	}
	if key, err := k.Key(&Event{Data: []byte("\uFEFF\uFEFF" + `{"user":"alice"}`)}); !errors.Is(err, ErrNoKey) {
		t.Errorf("key behind two byte order marks: %q, %v; want ErrNoKey", key, err)
	}
}

func TestHeaderInSeveralSpellingsIsReadTheSameEachTime(t *testing.T) {
	t.Parallel()
	h := Header{"CE-ID": {"1"}, "Ce-Id": {"2"}, "ce-ID": {"3"}, "cE-iD": nil}
	for range 50 {
		if got := h.Get("ce-id"); got != "1" {
			t.Fatalf("the first in byte order is 1, read %q", got)
		}
		if got := h.Get("Ce-Id"); got != "2" {
			t.Fatalf("the spelling asked for has 2, read %q", got)
		}
	}
}

func TestHeadersToSluiceWithDifferentValuesAreRefused(t *testing.T) {
	t.Parallel()
	for _, h := range []Header{
		{"Sluice-Cost": {"1"}, "sluice-cost": {"2"}}, {"Sluice-Cost": {"1", "2"}},
		{"Sluice-Expires": {"1s"}, "SLUICE-EXPIRES": {"2s"}}, {"Sluice-Collapse": {"a"}, "sluice-collapse": {"b"}},
	} {
		if err := CheckHeader(h); err == nil || !strings.Contains(err.Error(), "different values") {
			t.Errorf("%v: %v, want that its values differ", h, err)
		}
	}
	if err := CheckHeader(Header{"Sluice-Cost": {"2"}, "sluice-cost": {"2"}, "Sluice-Expires": {"2d"}, "Sluice-Collapse": {"a"}}); err != nil {
		t.Error(err)
	}
	if tier := TierOf(Header{"Sluice-Tier": {"free"}, "sluice-tier": {"gold"}}); tier != "" {
		t.Errorf("two tiers are %q, want none", tier)
	}
}

func BenchmarkKeyFromJSON(b *testing.B) {
	user := map[string]any{"id": "user-42", "name": "Zoë"}
	items := make([]map[string]any, 12)
	for i := range items {
		items[i] = map[string]any{"sku": "A-1", "count": i, "price": 12.5, "note": strings.Repeat("text ", 8)}
	}
	for _, name := range []string{"first", "last"} {
		fields := map[string]any{"items": items, "a": user, "z": user}
		data, err := json.Marshal(fields)
		if err != nil {
			b.Fatal(err)
		}
		ev, k := &Event{Data: data}, mustSpec(b, map[string]string{"first": "json:a.id", "last": "json:z.id"}[name])
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(data)))
			for b.Loop() {
				if _, err := k.Key(ev); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
