package httplimit

import (
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"sluice/limiter"
)

// item is an item of a structured field: a string with integers as parameters.
type item struct {
	name   string
	values map[string]int64
}

var itemForm = regexp.MustCompile(`^"((?:[ !#-\[\]-~]|\\["\\])*)"((?:;[a-z*][a-z0-9_.*-]*=-?[0-9]{1,15})*)$`)

// parseList reads a list of such items as RFC 9651 has it.
func parseList(field string) (items []item, err error) {
	for text := range strings.SplitSeq(field, ",") { // the names here have no comma
		found := itemForm.FindStringSubmatch(strings.Trim(text, " \t"))
		if found == nil {
			return nil, fmt.Errorf("no item: %q of %q", text, field)
		}
		it := item{strings.NewReplacer(`\"`, `"`, `\\`, `\`).Replace(found[1]), map[string]int64{}}
		for parameter := range strings.SplitSeq(strings.TrimPrefix(found[2], ";"), ";") {
			name, value, _ := strings.Cut(parameter, "=")
			if it.values[name], err = strconv.ParseInt(value, 10, 64); err != nil {
				return nil, err
			}
		}
		items = append(items, it)
	}
	return items, nil
}

func TestFieldsTellPolicyAndRest(t *testing.T) {
	t.Parallel()
	refused := limiter.Decision{Verdict: limiter.Park, Wait: 1200 * time.Millisecond}
	left := func(n int64, place int) limiter.Decision { return limiter.Decision{Remaining: n, Scarcest: place} }
	for _, tt := range []struct {
		limits   string
		decision limiter.Decision
		policy   string
		rest     string
	}{
		{"10/s burst 20", left(7, 0), `"default";q=20;w=2`, `"default";r=7;t=1`},
		{"10/s burst 20", left(20, 0), `"default";q=20;w=2`, `"default";r=20`},
		{"10/s burst 20", refused, `"default";q=20;w=2`, `"default";r=0;t=2`},
		{"10/m", left(3, 0), `"default";q=10;w=60`, `"default";r=3;t=6`},
		{"1000/100ms", left(3, 0), `"default";q=1000;w=1`, `"default";r=3;t=1`},
		{"7/3s burst 5", left(3, 0), `"default";q=5;w=3`, `"default";r=3;t=1`},
		{"2/s leaky", left(0, 0), `"default";q=1;w=1`, `"default";r=0;t=1`},
		{"100/m burst 150 window", left(3, 0), `"default";q=150;w=120`, `"default";r=3`},
		{"100/d sliding", left(3, 0), `"default";q=100;w=86400`, `"default";r=3`},
		{"100/d sliding", refused, `"default";q=100;w=86400`, `"default";r=0;t=2`},
		{"10/s, 100/d sliding", left(3, 1), `"default-bucket/1s";q=10;w=1, "default-sliding/1d";q=100;w=86400`, `"default-sliding/1d";r=3`},
		{"10/s, 100/d sliding", left(3, 0), `"default-bucket/1s";q=10;w=1, "default-sliding/1d";q=100;w=86400`, `"default-bucket/1s";r=3;t=1`},
		{"10/s", left(3, 4), `"default";q=10;w=1`, `"default";r=3;t=1`},
		{"1/365d burst 100", refused, `"default";q=100;w=3153600000`, `"default";r=0;t=2`},
		{"0", limiter.Decision{Verdict: limiter.Park}, `"default";q=0`, `"default";r=0;t=60`},
		{"1/s", limiter.Decision{Verdict: limiter.Never}, `"default";q=1;w=1`, ``},
		{"1/s", limiter.Decision{Verdict: limiter.Park, Reason: limiter.Damaged}, `"default";q=1;w=1`, ``},
		{"unlimited", limiter.Decision{Remaining: 1 << 62}, ``, ``},
	} {
		limits, err := limiter.ParseLimits(tt.limits)
		if err != nil {
			t.Fatal(err)
		}
		h := http.Header{}
		tell(h, "default", limits, tt.decision)
		if got := h.Get("RateLimit-Policy"); got != tt.policy {
			t.Errorf("%s: policy %s, want %s", tt.limits, got, tt.policy)
		}
		if got := h.Get("RateLimit"); got != tt.rest {
			t.Errorf("%s: rest %s, want %s", tt.limits, got, tt.rest)
		}
	}
}

// All 20 are there for the next request: who reads r=0 waits for nothing.
func TestRequestThatCostsTooMuchIsToldThePolicyAndNoRest(t *testing.T) {
	t.Parallel()
	l := local(t, "10/s burst 20")
	w, _ := ask(request(), l, Cost(func(*http.Request) int64 { return 21 }))
	if got := w.Header().Values("RateLimit"); len(got) > 0 || w.Header().Get("RateLimit-Policy") != `"default";q=20;w=2` || w.Code != 429 {
		t.Errorf("%d, %v, want the policy alone", w.Code, w.Header())
	}
	if w, _ := ask(request(), l); w.Header().Get("RateLimit") != `"default";r=19;t=1` {
		t.Errorf("the next one is told %q", w.Header().Get("RateLimit"))
	}
}

func FuzzFieldsAreStructured(f *testing.F) {
	f.Add("default", "10/s burst 20, 100/d sliding", int64(7), int64(1), uint8(0))
	f.Add(`a "b" \c`+"\r\nx: y\x00ü", "31535999999999/365d burst 1", int64(1)<<62, int64(limiter.Forever), uint8(2))
	f.Fuzz(func(t *testing.T, name, text string, remaining, wait int64, verdict uint8) {
		limits, err := limiter.ParseLimits(text)
		if err != nil || limits.Unlimited() || strings.Contains(name, ",") {
			return
		}
		d := limiter.Decision{Verdict: limiter.Verdict(verdict % 5), Remaining: remaining, Wait: time.Duration(wait)}
		h := http.Header{}
		tell(h, name, limits, d)
		policies, err := parseList(h.Get("RateLimit-Policy"))
		if err != nil {
			t.Fatal(err)
		}
		if d.Verdict == limiter.Never {
			if rest := h.Values("RateLimit"); len(rest) > 0 || len(policies) != len(limits) {
				t.Errorf("%v, %q of what is never allowed", policies, rest)
			}
			return
		}
		rest, err := parseList(h.Get("RateLimit"))
		if err != nil {
			t.Fatal(err)
		}
		if len(policies) != len(limits) || len(rest) != 1 || rest[0].name != policies[0].name || rest[0].values["r"] < 0 {
			t.Errorf("%v, %v", policies, rest)
		}
		for _, p := range policies {
			if w, ok := p.values["w"]; p.values["q"] < 0 || ok && w < 1 {
				t.Errorf("%v", p)
			}
		}
	})
}
