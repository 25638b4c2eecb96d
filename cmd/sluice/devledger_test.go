package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jedib0t/go-pretty/v6/text"

	"sluice/limiter"
	"sluice/pipeline"
)

func TestRateIsThatOfTheLastTwoSeconds(t *testing.T) {
	t.Parallel()
	start := time.Unix(1_764_460_800, 0)
	var w rateWindow
	for i := range 100 {
		w.add(start.Add(time.Duration(i) * 100 * time.Millisecond)) // 10/s for 10 s
	}
	for _, c := range []struct {
		after time.Duration
		want  float64
	}{
		{10 * time.Second, 10},
		{11 * time.Second, 5},
		{12 * time.Second, 0},
		{time.Hour, 0},
	} {
		v := w
		if got := v.perSecond(start.Add(c.after)); got != c.want {
			t.Errorf("after %s: %.2f/s, want %.2f", c.after, got, c.want)
		}
	}
}

func TestPercentiles(t *testing.T) {
	t.Parallel()
	w := waits{most: 100}
	var line userLine
	w.summarise(&line)
	if line.p99 != 0 || line.longest != 0 {
		t.Errorf("of nothing: %+v", line)
	}
	for i := range 150 { // the first fifty are forgotten
		w.add(time.Duration(i-49) * time.Millisecond)
	}
	w.summarise(&line)
	if line.median != 50*time.Millisecond || line.p99 != 99*time.Millisecond || line.longest != 100*time.Millisecond {
		t.Errorf("of 1 to 100 ms: median %s, p99 %s, longest %s", line.median, line.p99, line.longest)
	}
	w = waits{}
	for _, d := range []time.Duration{-time.Second, time.Second, 10_000 * time.Hour} {
		w.add(d)
	}
	w.summarise(&line)
	if line.median != time.Second || line.longest < 100*time.Hour {
		t.Errorf("of odd waits: median %s, longest %s", line.median, line.longest)
	}
}

func TestLedgerPutsWaitingUsersFirstAndTheDemoLast(t *testing.T) {
	t.Parallel()
	l := newLedger(recentWaits)
	l.demo["bjorn"], l.demo["chiyo"] = true, true
	for user, n := range map[string]int{"bjorn": 9, "chiyo": 12, "alice": 1, "mallory": 30, "idle": 0} {
		for range n {
			l.published(user)
			if user == "mallory" {
				continue
			}
			l.began(user)
			l.ended(user, nil, time.Millisecond)
		}
	}
	l.published("bjorn") // just on its way
	l.published("")
	l.buried("")
	s := l.snapshot(time.Now(), 4)
	var got []string
	for _, u := range s.users {
		got = append(got, fmt.Sprintf("%s %d/%d/%d", u.user, u.published, u.pushed, u.waiting))
	}
	if want := "mallory 30/0/30, (no key) 1/0/0, alice 1/1/0, chiyo 12/12/0"; strings.Join(got, ", ") != want || s.more != 1 {
		t.Errorf("got %v and %d more, want %s and 1 more", got, s.more, want)
	}
	if s.total.published != 54 || s.total.pushed != 22 || s.total.waiting != 31 || s.total.deadLetters != 1 {
		t.Errorf("total %+v", s.total)
	}
}

func TestLedgerBoundsTheUsersItTellsApart(t *testing.T) {
	t.Parallel()
	l := newLedger(recentWaits)
	for i := range maxUsers + 50 {
		l.published(fmt.Sprint("user-", i))
	}
	s := l.snapshot(time.Now(), maxUsers+10)
	last := s.users[len(s.users)-1]
	if len(s.users) != maxUsers+1 || last.user != otherUsers || last.published != 50 || s.total.published != maxUsers+50 {
		t.Errorf("%d lines, the last %+v", len(s.users), last)
	}
}

// scripted are ports that answer what they are told.
type scripted struct {
	err     error
	verdict limiter.Verdict
}

func (s *scripted) Name() string                                { return "scripted" }
func (s *scripted) Push(context.Context, *pipeline.Event) error { return s.err }
func (s *scripted) Bury(context.Context, *pipeline.Event, pipeline.DeadReason, error) error {
	return s.err
}

func (s *scripted) Reserve(context.Context, string, string, int64, time.Duration) (limiter.Decision, error) {
	return limiter.Decision{Verdict: s.verdict}, s.err
}

func TestWatchedPortsCountWhatBecomesOfEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, world := newLedger(0), &scripted{}
		ports := pipeline.Ports{Sink: world, DeadLetters: world, Limiter: world}
		l.watch(&ports, true)
		ctx := t.Context()
		ev := &pipeline.Event{Key: "alice", Time: time.Now()}
		for range 6 {
			l.published("alice")
		}
		time.Sleep(3 * time.Second)
		_ = ports.Sink.Push(ctx, ev)
		_ = ports.DeadLetters.Bury(ctx, ev, pipeline.Rejected, nil)
		_, _ = ports.Limiter.Reserve(ctx, "alice", "", 1, 0)
		world.verdict = limiter.Overflow
		_, _ = ports.Limiter.Reserve(ctx, "alice", "", 1, 0)
		world.err = errors.New("away") // none of these settles anything
		_ = ports.Sink.Push(ctx, ev)
		_ = ports.DeadLetters.Bury(ctx, ev, pipeline.Rejected, nil)
		_, _ = ports.Limiter.Reserve(ctx, "alice", "", 1, 0)

		got := l.snapshot(time.Now(), 1).users[0]
		want := userLine{
			user: "alice", published: 6, pushed: 1, waiting: 3, failed: 1, deadLetters: 1, dropped: 1,
			median: 3 * time.Second, p99: 3 * time.Second, longest: 3 * time.Second,
		}
		if got != want {
			t.Errorf("got  %+v\nwant %+v", got, want)
		}
	})
}

func TestTableFitsTheTerminal(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ users, width, height int }{
		{0, 80, 17}, {14, 80, 17}, {15, 80, 17}, {500, 80, 17}, {13, 40, 8}, {13, 5, 12},
	} {
		l := newLedger(recentWaits)
		for i := range c.users {
			user := fmt.Sprintf("user-%d 生命 %s", i, strings.Repeat("x", i))
			for range 1_000 + i {
				l.published(user)
			}
		}
		for _, colours := range []paint{false, true} {
			lines := colours.tableLines(l.snapshot(time.Now(), roomFor(c.height)), strings.Repeat("status ", 30), c.width, c.height)
			if len(lines) > c.height || len(lines) < min(c.users, c.height-3)+3 {
				t.Errorf("%d users: %d lines on a terminal of %d", c.users, len(lines), c.height)
			}
			for _, line := range lines {
				if w := text.StringWidthWithoutEscSequences(line); w > c.width {
					t.Errorf("%d users: %d columns on a terminal of %d: %q", c.users, w, c.width, line)
				}
			}
			shown := min(c.users, roomFor(c.height))
			if c.users > shown {
				want := fmt.Sprintf("… and %d more", c.users-shown+1)
				if line := lines[len(lines)-3]; c.width >= 40 && !strings.Contains(line, want) {
					t.Errorf("%d users: %q, want %q", c.users, line, want)
				}
			}
		}
	}
}

func TestKeysCantControlTheTerminal(t *testing.T) {
	t.Parallel()
	for key, want := range map[string]string{
		"alice": "alice", "Zoë 生": "Zoë 生", "a\x1b[2J": `"a\x1b[2J"`, "a\nb": `"a\nb"`, "\xff": `"\xff"`, "\u202e": `"\u202e"`,
	} {
		if got := visible(key); got != want {
			t.Errorf("%q is shown as %s, want %s", key, got, want)
		}
	}
}

func TestPlainLine(t *testing.T) {
	t.Parallel()
	s := snapshot{after: 83 * time.Second, total: userLine{published: 9, pushed: 4, waiting: 2, rate: 1.25, p99: 12 * time.Millisecond}}
	if got, want := plainLine(s), "1:23  published 9, pushed 4, waiting 2, 1.2 pushes/s, p99 12 ms"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	s.users = []userLine{{user: "mallory\x1b", waiting: 2, rate: 10}}
	s.total.failed, s.total.deadLetters = 2, 1
	if got, want := plainLine(s), `; most waiting: "mallory\x1b" (2, 10.0 pushes/s); 2 failed pushes, 1 dead letter`; !strings.HasSuffix(got, want) {
		t.Errorf("got %q, want its end %q", got, want)
	}
}

func TestHintsNameVariablesThatDontCount(t *testing.T) {
	t.Parallel()
	got := unusedVariables([]string{
		"SLUICE_NATS_URL=a", "SLUICE_REDIS_TLS_CA=b", "SLUICE_SINK=log", "SLUICE_SETUP= ", "SLUICE_LIMIT=1/s", "NATS_URL=c", "SLUICE_NAME=d",
	})
	if !strings.HasPrefix(got, "Not used here: SLUICE_NATS_URL, SLUICE_REDIS_TLS_CA, SLUICE_SINK (") {
		t.Errorf("got %q", got)
	}
	if got := unusedVariables([]string{"SLUICE_LIMIT=1/s"}); got != "" {
		t.Errorf("got %q, want nothing", got)
	}
}

func TestDemoNeedsSubjectsAndKeysThatTellUsersApart(t *testing.T) {
	for _, c := range []struct {
		env []string
		ok  bool
	}{
		{nil, true},
		{[]string{"SLUICE_KEY=header:User"}, true},
		{[]string{"SLUICE_KEY=json:user"}, true},
		{[]string{"SLUICE_KEY=subject:1"}, false},
		{[]string{"SLUICE_KEY=header:Tenant"}, false},
		{[]string{"SLUICE_SUBJECTS=orders.*.*"}, false},
	} {
		setEnvironment(t, c.env...)
		cfg, err := (&devFlags{}).config()
		if err != nil {
			t.Fatal(err)
		}
		d, err := newDemo(cfg, nil, newLedger(recentWaits))
		if c.ok != (err == nil) || c.ok && len(d.keys) != len(demoUsers)+1 {
			t.Errorf("%v: %v", c.env, err)
		}
		for _, pair := range c.env {
			name, _, _ := strings.Cut(pair, "=")
			t.Setenv(name, "")
		}
	}
}
