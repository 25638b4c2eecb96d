package limiter

import (
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

func limitsOf(t *testing.T, text string) Limits {
	t.Helper()
	if text == "" {
		return nil
	}
	limits, err := ParseLimits(text)
	if err != nil {
		t.Fatal(err)
	}
	return limits
}

// change reads "PLACE RULE", the rule as [Rule.String] writes it or "-".
func changeOf(t *testing.T, text string) Change {
	t.Helper()
	where, what, _ := strings.Cut(text, " ")
	place, err := ParsePlace(where)
	if err != nil {
		t.Fatal(err)
	}
	c := Change{Place: place}
	if inner, ok := strings.CutPrefix(what, "paused"); ok {
		c.Rule.Paused, what = true, strings.Trim(inner, " ()")
	}
	for part := range strings.SplitSeq(what, "; ") {
		if tier, ok := strings.CutPrefix(part, "tier:"); ok {
			c.Rule.Tier = tier
		} else if part != "-" {
			c.Rule.Limits = limitsOf(t, part)
		}
	}
	return c
}

func apply(t *testing.T, b *Book, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if err := b.Apply(changeOf(t, text)); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
	}
}

func TestBookAsksTheMostSpecificRuleFirst(t *testing.T) {
	t.Parallel()
	b := NewBook(limitsOf(t, "1/s"))
	tests := []struct {
		change    string
		key, tier string
		want      string // limits source name
	}{
		{"tier:nobody 9/s", "alice", "", "1/s default "},
		{"default 2/s", "alice", "", "2/s default "},
		{"default 2/s", "alice", "unknown", "2/s default "},
		{"tier:free 3/s", "alice", "free", "3/s tier free"},
		{"pattern:a* 4/s", "alice", "free", "4/s pattern a*"},
		{"pattern:a* 4/s", "bob", "free", "3/s tier free"},
		{"tier:gold 5/s", "alice", "free", "4/s pattern a*"},
		{"alice tier:gold", "alice", "free", "5/s tier gold"},
		{"alice tier:missing", "alice", "free", "4/s pattern a*"},
		{"alice 6/s; tier:gold", "alice", "free", "6/s key "},
		{"alice paused (6/s; tier:gold)", "alice", "free", "0 key "},
		{"tier:gold paused (5/s)", "alice", "free", "0 key "},
		{"alice tier:gold", "alice", "", "0 tier gold"},
		{"all paused", "bob", "", "0 all "},
		{"all -", "bob", "", "2/s default "},
		{"alice -", "alice", "", "4/s pattern a*"},
		{"pattern:a* -", "alice", "", "2/s default "},
		{"pattern:a* paused", "alice", "", "0 pattern a*"},
		{"default -", "bob", "", "1/s default "},
		{"default paused", "bob", "", "0 default "},
	}
	for _, tt := range tests {
		apply(t, b, tt.change)
		r := b.Resolve(tt.key, tt.tier)
		if got := fmt.Sprintf("%s %s %s", r.Limits, r.Source, r.Name); got != tt.want {
			t.Errorf("after %q %s with tier %q has %q, want %q", tt.change, tt.key, tt.tier, got, tt.want)
		}
	}
}

func TestMostSpecificPatternRules(t *testing.T) {
	t.Parallel()
	b := NewBook(limitsOf(t, "1/s"))
	for _, p := range []string{"*", "team-*", "team-a*", "team-*-eu", "*-eu", "*x*y*", "t*m-b", "tea*m-b", "a*a", "b*1", "b*2*", "b*0*"} {
		apply(t, b, "pattern:"+p+" 2/s")
	}
	for key, want := range map[string]string{
		"z": "*", "team-": "team-*", "team-bx": "team-*", "team-ab": "team-a*", "team-b-eu": "team-*-eu", "team-a-eu": "team-a*",
		"x-eu": "*-eu", "1x2y3": "*x*y*", "yx": "*", "team-b": "team-*", "teaXm-b": "tea*m-b", "tm-b": "t*m-b",
		"a": "*", "aa": "a*a", "aba": "a*a", "b1": "b*1", "b02": "b*0*", "b201": "b*0*", "b21": "b*1", "b210": "b*0*", "xy": "*x*y*",
	} {
		if got := b.Resolve(key, "").Name; got != want {
			t.Errorf("%s is ruled by %s, want %s", key, got, want)
		}
	}
}

func TestRulingStaysTheSameWhileItsLimitsDo(t *testing.T) {
	t.Parallel()
	b := NewBook(limitsOf(t, "1/s"))
	all := []string{"default 2/s", "tier:gold 3/s", "pattern:a* 4/s", "alice 5/s", "bob 5/s; tier:gold", "carol tier:gold"}
	apply(t, b, all...)
	keys := []string{"x", "carol", "anna", "alice", "bob"}
	before := map[string]*Ruling{}
	for _, key := range keys {
		before[key] = b.Resolve(key, "")
	}
	if before["alice"] != before["bob"] {
		t.Error("keys with equal limits don't share their ruling")
	}
	apply(t, b, all...)
	apply(t, b, "tier:other 1/s", "pattern:z* 1/s", "zoe 1/s")
	d := b.Draft()
	for _, text := range all {
		if err := d.Set(changeOf(t, text)); err != nil {
			t.Fatal(err)
		}
	}
	b.Replace(d)
	for _, key := range keys {
		if b.Resolve(key, "") != before[key] {
			t.Errorf("%s has another ruling with the same limits", key)
		}
	}
	for _, key := range []string{"zoe", "zack"} {
		if got := b.Resolve(key, ""); got.Limits.String() != "2/s" {
			t.Errorf("%s kept %s over the replacement", key, got.Limits)
		}
	}
}

func TestBookTakesAllOfAChangeOrNothing(t *testing.T) {
	t.Parallel()
	b := NewBook(limitsOf(t, "1/s"))
	for _, bad := range []Change{
		{Place{SourceKey, ""}, Rule{Paused: true}},
		{Place{SourceKey, strings.Repeat("k", MaxKey+1)}, Rule{Paused: true}},
		{Place{SourceKey, "k"}, Rule{Tier: "no tier"}},
		{Place{SourceTier, "gold"}, Rule{Tier: "silver"}},
		{Place{SourceTier, "a b"}, Rule{Paused: true}},
		{Place{SourcePattern, "none"}, Rule{Paused: true}},
		{Place{SourcePattern, "a**"}, Rule{Paused: true}},
		{Place{SourceAll, ""}, Rule{Limits: limitsOf(t, "1/s")}},
		{Place{SourceDefault, "x"}, Rule{Paused: true}},
		{Place{"other", "x"}, Rule{Paused: true}},
	} {
		if err := b.Apply(changeOf(t, "alice 2/s"), bad); err == nil {
			t.Errorf("%+v is taken", bad)
		}
		if err := b.Draft().Set(bad); err == nil {
			t.Errorf("a draft takes %+v", bad)
		}
	}
	if got := b.Resolve("alice", ""); got.Limits.String() != "1/s" {
		t.Errorf("alice has %s of a refused change", got.Limits)
	}
}

// What a change affects is found by comparing everything before with everything after, for random changes, whatever changes
// between a change and the question.
func TestChangeTellsExactlyWhomItAffects(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	keys := []string{"a", "ab", "abc", "b", "bc", "c"}
	tiers := []string{"", "t", "u"}
	places := []string{"all", "default", "tier:t", "tier:u", "pattern:a*", "pattern:*c", "pattern:ab*"}
	rules := []string{"-", "1/s", "2/s", "paused (1/s)"}
	for range 300 {
		b := NewBook(limitsOf(t, "1/s"))
		view := func() (v map[[2]string]string) {
			v = map[[2]string]string{}
			for _, key := range keys {
				for _, tier := range tiers {
					v[[2]string{key, tier}] = b.Resolve(key, tier).Limits.String()
				}
			}
			return v
		}
		random := func() Change {
			where, what := places[r.IntN(len(places))], rules[r.IntN(len(rules))]
			if r.IntN(2) == 0 {
				where = keys[r.IntN(len(keys))]
				if r.IntN(3) == 0 {
					what = "tier:" + tiers[1+r.IntN(2)]
				}
			}
			if where == "all" && what != "-" {
				what = "paused"
			}
			return changeOf(t, where+" "+what)
		}
		var told func(string) bool
		b.Subscribe(func(affected func(string) bool) { told = affected })
		type step struct {
			told          func(string) bool
			before, after map[[2]string]string
		}
		var steps []step
		for range 8 {
			s := step{before: view()}
			told = nil
			if r.IntN(4) == 0 {
				d := b.Draft()
				for range r.IntN(4) {
					if err := d.Set(random()); err != nil {
						t.Fatal(err)
					}
				}
				b.Replace(d)
			} else if err := b.Apply(random(), random()); err != nil {
				t.Fatal(err)
			}
			s.told, s.after = told, view()
			steps = append(steps, s)
		}
		for i, s := range steps {
			for _, key := range keys {
				differs, named := false, false
				for _, tier := range tiers {
					if s.before[[2]string{key, tier}] != s.after[[2]string{key, tier}] {
						differs, named = true, named || tier == ""
					}
				}
				got := s.told != nil && s.told(key)
				if got != differs {
					t.Fatalf("step %d: %s is told %v, want %v", i, key, got, differs)
				}
			}
		}
	}
}

func TestChangeThatChangesNothingTellsNobody(t *testing.T) {
	t.Parallel()
	b := NewBook(limitsOf(t, "1/s"))
	all := []string{"default 2/s", "tier:gold 3/s", "pattern:a* 4/s", "alice 5/s"}
	apply(t, b, all...)
	b.Subscribe(func(func(string) bool) { t.Error("somebody is told") })
	apply(t, b, all...)
	apply(t, b, "bob -", "tier:x -", "pattern:x* -", "all -")
	d := b.Draft()
	for _, text := range all {
		if err := d.Set(changeOf(t, text)); err != nil {
			t.Fatal(err)
		}
	}
	b.Replace(d)
}

func TestResolveAllocatesNothing(t *testing.T) {
	b := NewBook(limitsOf(t, "1/s"))
	apply(t, b, "tier:gold 3/s", "pattern:a*z 4/s", "pattern:b*y*z 4/s", "alice 5/s")
	for _, key := range []string{"alice", "a-z", "bxyxz", "nobody"} {
		if n := testing.AllocsPerRun(100, func() { b.Resolve(key, "gold") }); n != 0 {
			t.Errorf("%s: %v allocations", key, n)
		}
	}
}

func TestRulesThatNobodyHasAreForgotten(t *testing.T) {
	t.Parallel()
	b := NewBook(limitsOf(t, "1/s"))
	for i := range 10_000 {
		apply(t, b, "alice "+strconv.Itoa(i+1)+"/d", "bob 7/s")
	}
	if n := len(b.rules); n > 2000 {
		t.Errorf("%d rules are kept for 2 keys", n)
	}
	apply(t, b, "carol 7/s")
	if b.Resolve("carol", "") != b.Resolve("bob", "") {
		t.Error("a rule that is used was forgotten")
	}
}

func TestBookIsReadWhileItChanges(t *testing.T) {
	t.Parallel()
	b := NewBook(limitsOf(t, "1/s"))
	apply(t, b, "k0 2/s")
	stop := make(chan struct{})
	var readers sync.WaitGroup
	for range 4 {
		readers.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				switch limits := b.Resolve("k"+strconv.Itoa(i%100), "gold").Limits.String(); limits {
				case "1/s", "2/s", "3/s", "4/s":
				default:
					t.Errorf("somebody has %s", limits)
				}
			}
		})
	}
	var affected []func(string) bool
	b.Subscribe(func(fn func(string) bool) { affected = append(affected, fn) })
	for i := range 500 {
		apply(t, b, fmt.Sprintf("k%d 2/s", i%100), "pattern:k9* 3/s", "tier:gold 4/s", fmt.Sprintf("k%d -", (i+50)%100), "tier:gold -")
		if i%100 == 0 {
			b.Replace(b.Draft())
		}
	}
	close(stop)
	readers.Wait()
	if len(affected) == 0 {
		t.Error("nobody was told")
	}
}

func TestMillionKeysLoadQuicklyAndStaySmall(t *testing.T) {
	n := 100_000
	if os.Getenv("SLUICE_SOAK") != "" {
		n = 1_000_000
	}
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	texts := []string{"5/s", "10/s burst 20", "100/m", "7/s, 1000/d sliding"}
	before, start := heap(), time.Now()
	b := NewBook(limitsOf(t, "1/s"))
	for range 2 { // the second time beside the first
		d := b.Draft()
		for i := range n {
			c := Change{Place{SourceKey, fmt.Sprintf("customer-%08d", i)}, Rule{Limits: limitsOf(t, texts[i%len(texts)])}}
			if i%10 == 0 {
				c.Rule = Rule{Tier: "gold"}
			}
			if err := d.Set(c); err != nil {
				t.Fatal(err)
			}
		}
		b.Replace(d)
	}
	took, grown := time.Since(start)/2, heap()-before
	runtime.KeepAlive(b)
	t.Logf("%d keys: %s, %d MiB", n, took.Round(time.Millisecond), grown>>20)
	if perMillion := grown * 1_000_000 / int64(n); perMillion > 300<<20 {
		t.Errorf("a million keys take %d MiB, want less than 300", perMillion>>20)
	}
	if took > 10*time.Second {
		t.Errorf("it takes %s, want less than 10 s", took)
	}
	if got := b.Resolve("customer-00000001", "").Limits.String(); got != texts[1] {
		t.Errorf("a key has %s", got)
	}
}

func BenchmarkResolve(b *testing.B) {
	book := NewBook(Limits{{}})
	limits, _ := ParseLimits("5/s")
	d := book.Draft()
	keys := make([]string, 1<<16)
	for i := range keys {
		keys[i] = fmt.Sprintf("customer-%08d", i)
		_ = d.Set(Change{Place{SourceKey, keys[i]}, Rule{Limits: limits}})
	}
	book.Replace(d)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for i := 0; pb.Next(); i++ {
			book.Resolve(keys[i&(1<<16-1)], "")
		}
	})
}
