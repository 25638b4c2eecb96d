package metrics

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

func TestTokensOfSomeKeysAreShownAndLinted(t *testing.T) {
	reg := prometheus.NewRegistry()
	left := map[string]int64{"alice": 7, "b\xff%": -2}
	RegisterKeyTokens(reg, []string{"alice", "b\xff%", "unlimited"}, func(keys []string) map[string]int64 {
		if len(keys) != 3 {
			t.Errorf("asked for %q", keys)
		}
		return left
	})
	want := `
		# HELP sluice_key_tokens Whole tokens that a key has left at the moment, of the limit with the fewest; negative: promised already.
		# TYPE sluice_key_tokens gauge
		sluice_key_tokens{key="alice"} 7
		sluice_key_tokens{key="b%FF%25"} -2
	`
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
	if problems, err := testutil.GatherAndLint(reg); err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
	clear(left)
	if n, err := testutil.GatherAndCount(reg); err != nil || n != 0 {
		t.Errorf("while nothing is known there are %d series, %v", n, err)
	}
}
