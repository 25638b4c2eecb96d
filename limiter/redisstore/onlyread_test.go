package redisstore

import "testing"

func TestAnswerCountsAsWrittenIfAnyShardWas(t *testing.T) {
	t.Parallel()
	n := func(values ...int64) (v []any) {
		for _, x := range values {
			v = append(v, x)
		}
		return v
	}
	for name, c := range map[string]struct {
		answer   []any
		shards   int
		onlyRead bool
	}{
		"one shard, written":           {n(0, 5, 9, 1), 1, false},
		"one shard, read":              {n(0, 5, 0, 1), 1, true},
		"the second of two, written":   {n(0, 5, 0, 7, 1), 2, false},
		"two, read; the entry isn't 0": {n(0, 5, 0, 0, 3), 2, true},
		"another epoch":                {n(1), 1, true},
		"other epochs of three":        {n(1, 2, 3), 3, true},
		"not counted":                  {n(1, 5, 9), 0, true},
	} {
		if got := onlyRead(c.answer, c.shards); got != c.onlyRead {
			t.Errorf("%s: %t, want %t", name, got, c.onlyRead)
		}
	}
}
