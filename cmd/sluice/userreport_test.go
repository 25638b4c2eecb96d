package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/jedib0t/go-pretty/v6/text"

	"sluice/limiter"
	"sluice/limiter/redisstore"
	"sluice/pipeline"
	"sluice/pipeline/stream"
)

func TestReportOfAKeyAtWidth80(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 14, 4, 5, 0, time.UTC)
	said := func(source limiter.RulingSource, name, limits string, paused bool) stream.StoredRule {
		r := stream.StoredRule{Place: limiter.Place{Source: source, Name: name}, Rule: limiter.Rule{Paused: paused}, By: "root@host-1", Comment: "endpoint on fire", At: now.Add(-time.Hour)}
		if limits != "" {
			r.Rule.Limits = mustLimits(t, limits)
		}
		return r
	}
	first := func(attempts int) pipeline.Entry {
		return pipeline.Entry{BodyID: pipeline.BodyID{Seq: 7}, Order: 7, Cost: 1, Attempt: attempts}
	}
	full := []redisstore.LimitLevel{{Tokens: 20}}
	none := -time.Microsecond
	for _, c := range []struct {
		situation situation
		rule      stream.StoredRule // that rules; zero: SLUICE_LIMIT
		st        redisstore.Standing
		dead      letterTally
		want      string
	}{
		{situation: throttled, rule: said(limiter.SourceTier, "gold", "10/s burst 20", false), st: redisstore.Standing{
			Known: true, Waiting: 37, First: first(0), Wait: 1200 * time.Millisecond, Limits: []redisstore.LimitLevel{{Tokens: -3, Wait: 1200 * time.Millisecond}},
			Due: 1100 * time.Millisecond, Overdue: none,
		}, want: `
alice is throttled: 37 events wait, the next goes in 1.2 s (limit 10/s burst 20
of the tier gold)

ruled by   tier:gold: 10/s burst 20, since 03-01 13:04 UTC
limit      10/s burst 20: 0 of 20 tokens, 3 of later ones promised, enough for
           the next event in 1.2 s
waiting    37
oldest     order-17, published 2 min ago, not tried yet
`},
		{situation: cooling, st: redisstore.Standing{
			Known: true, Waiting: 1, First: first(3), Limits: full, Closed: 12 * time.Second, Fails: 3, Failure: "127.0.0.1 answered 429 Too Many Requests",
			Due: 12 * time.Second, Overdue: none,
		}, dead: letterTally{pipeline.Rejected: 2, pipeline.MaxWait: 1}, want: `
alice is cooling down for 12.0 s: 127.0.0.1 answered 429 Too Many Requests; 1
event waits

ruled by   SLUICE_LIMIT, as it is set here
limit      10/s burst 20: 20 of 20 tokens
waiting    1
oldest     order-17, published 2 min ago, tried 3 times
receiver   left alone for 12.0 s, away 3 times in a row, said last: 127.0.0.1
           answered 429 Too Many Requests
dead       3 dead letters (1 max_wait, 2 rejected); 'sluice dlq ls --key …'
           lists them
`},
		{situation: paused, rule: said(limiter.SourceKey, "alice", "", true), st: redisstore.Standing{Known: true, Waiting: 5, Wait: none}, want: `
alice is paused by key:alice since 03-01 13:04 UTC (root@host-1: endpoint on
fire); 5 events wait

ruled by   key:alice: paused, since 03-01 13:04 UTC
waiting    5
`},
		{situation: paused, rule: said(limiter.SourceAll, "", "", true), st: redisstore.Standing{Wait: none}, want: `
alice is paused like everything, by the brake since 03-01 13:04 UTC
(root@host-1: endpoint on fire); no event waits

ruled by   all: paused, since 03-01 13:04 UTC
waiting    0
`},
		{situation: unknown, st: redisstore.Standing{Limits: full, Taken: none, Due: none, Overdue: none}, want: `
nothing is known of alice: it has not been limited lately (limit 10/s burst 20
by SLUICE_LIMIT)

ruled by   SLUICE_LIMIT, as it is set here
limit      10/s burst 20: 20 of 20 tokens
waiting    0
`},
		{situation: idle, st: redisstore.Standing{
			Known: true, Limits: []redisstore.LimitLevel{{Tokens: 19}}, Taken: 50 * time.Millisecond, Due: none, Overdue: none,
		}, want: `
alice is not held up: no event waits, a token was last taken 50 ms ago (limit
10/s burst 20 by SLUICE_LIMIT)

ruled by   SLUICE_LIMIT, as it is set here
limit      10/s burst 20: 19 of 20 tokens
waiting    0
`},
		{situation: retrying, st: redisstore.Standing{
			Known: true, Waiting: 1, Retrying: 1, Retry: 9 * time.Second, First: first(1), Limits: full, Failure: "status 500", Due: 9 * time.Second, Overdue: none,
		}, want: `
alice waits for another attempt: 1 event waits, the next goes in 9.0 s after
status 500

ruled by   SLUICE_LIMIT, as it is set here
limit      10/s burst 20: 20 of 20 tokens
waiting    1, 1 of them for another attempt, the next in 9.0 s
oldest     order-17, published 2 min ago, tried once
receiver   said last: status 500
`},
		{situation: serving, st: redisstore.Standing{
			Known: true, Waiting: 1, Leased: 2, First: first(0), Limits: full, Holder: "host-1-4211-QRSTUVWX", Held: 4 * time.Second, Due: 4 * time.Second, Overdue: none,
		}, want: `
alice is being served: 2 events on the way, 1 event waits (limit 10/s burst 20
by SLUICE_LIMIT)

ruled by   SLUICE_LIMIT, as it is set here
limit      10/s burst 20: 20 of 20 tokens
waiting    1
pushing    2, leased by a worker
oldest     order-17, published 2 min ago, not tried yet
lease      worker host-1-4211-QRSTUVWX, for 4.0 s
`},
		{situation: unattended, st: redisstore.Standing{
			Known: true, Waiting: 3, First: first(0), Limits: full, Due: none, Overdue: 90 * time.Second,
		}, want: `
nobody serves alice: 3 events wait, and no worker has looked for 1m30s; see
'sluice workers', and whether they can reach the receiver

ruled by   SLUICE_LIMIT, as it is set here
limit      10/s burst 20: 20 of 20 tokens
waiting    3
oldest     order-17, published 2 min ago, not tried yet
`},
		{situation: damaged, st: redisstore.Standing{Known: true, Damaged: true}, want: `
what Redis keeps of alice is damaged, and its events wait; 'sluice user alice
reset' mends its bucket, 'sluice lanes repair' its lane

ruled by   SLUICE_LIMIT, as it is set here
`},
	} {
		r := userReport{now: now, st: c.st, dead: c.dead, explanation: explanation{key: "alice", standard: mustLimits(t, "10/s burst 20")}}
		r.ruling = &limiter.Ruling{Limits: r.standard, Source: limiter.SourceDefault}
		if c.rule.Place.Source != "" {
			r.rules = []stream.StoredRule{c.rule}
			r.ruling = &limiter.Ruling{Limits: c.rule.Rule.Limits, Source: c.rule.Place.Source, Name: c.rule.Place.Name}
			if c.rule.Rule.Paused {
				r.ruling.Limits = limiter.Limits{{}}
			}
		}
		if c.st.First.Seq > 0 {
			r.first = &pipeline.Event{ID: "order-17", Time: now.Add(-2 * time.Minute)}
		}
		if got := r.situation(); got != c.situation {
			t.Errorf("%s: it is taken for %s", c.situation, got)
		}
		var out bytes.Buffer
		if err := r.print(&out); err != nil {
			t.Fatal(err)
		}
		if got := "\n" + out.String(); got != c.want {
			t.Errorf("%s: got\n%s\nwant\n%s", c.situation, got, c.want)
		}
		for line := range strings.Lines(out.String()) {
			if w := text.StringWidthWithoutEscSequences(strings.TrimRight(line, "\n")); w > leastWidth {
				t.Errorf("%s: %d columns: %s", c.situation, w, line)
			}
		}
	}
}

func TestSituationsOfAKeyThatAreRare(t *testing.T) {
	t.Parallel()
	none := -time.Microsecond
	for _, c := range []struct {
		st   redisstore.Standing
		want situation
		text string
	}{
		{redisstore.Standing{Known: true, Waiting: 2, Due: none, Overdue: none}, forgotten, "'sluice lanes repair' mends it"},
		{redisstore.Standing{Known: true, Waiting: 2, Fails: 4, Failure: "a\x1b[31m", Overdue: 0, Due: none}, probing, `failed 4 times in a row, and gets one event at a time: "a\x1b[31m"; 2 events wait`},
		{redisstore.Standing{Known: true, Waiting: 2, Due: none, Overdue: time.Second}, ready, "2 events wait, and the next may go now"},
		{redisstore.Standing{Known: true, Arriving: 1, Due: none, Overdue: none}, arriving, "1 event on the way into its lane"},
		{redisstore.Standing{Known: true, Closed: time.Second, Due: none, Overdue: none}, cooling, "cooling down for 1.0 s; no event waits"},
	} {
		limits := mustLimits(t, "unlimited")
		r := userReport{st: c.st, explanation: explanation{key: "alice", standard: limits, ruling: &limiter.Ruling{Limits: limits, Source: limiter.SourceDefault}}}
		if got := r.situation(); got != c.want {
			t.Errorf("%s: it is taken for %s", c.want, got)
		}
		if got := r.summary(); !strings.Contains(got, c.text) {
			t.Errorf("%s: %s", c.want, got)
		}
	}
}

func mustLimits(t *testing.T, text string) limiter.Limits {
	t.Helper()
	l, err := limiter.ParseLimits(text)
	if err != nil {
		t.Fatal(err)
	}
	return l
}
