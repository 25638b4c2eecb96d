package main

import (
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"sluice/pipeline"
)

func TestPurgeDeletesWhatIsSelected(t *testing.T) {
	r := newLetterRig(t, server.Options{MaxPayload: 8 << 10})
	r.bury(pipeline.Rejected, "alice", 1, "")
	r.bury(pipeline.Rejected, "bob", 2, strings.Repeat("x", 8000)) // two messages
	r.bury(pipeline.MaxWait, "bob", 3, "")
	if stdout, _ := r.dlq(0, "purge", "--yes", "--reason", "rejected"); stdout != "purged 2 dead letters, 0 failed\n" {
		t.Errorf("it prints %q", stdout)
	}
	if n := r.held("SLUICE_DLQ"); n != 1 {
		t.Errorf("%d messages are left, want 1", n)
	}
	if stdout, _ := r.dlq(0, "purge", "--yes", "--json"); stdout != `{"failed":0,"purged":1,"selected":1}`+"\n" {
		t.Errorf("it prints %q", stdout)
	}
	if stdout, _ := r.dlq(0, "purge", "--yes"); stdout != "there are no dead letters\n" {
		t.Errorf("it prints %q", stdout)
	}
}

func TestPurgeAndReplayAskOnATerminal(t *testing.T) {
	r := newLetterRig(t, server.Options{})
	r.bury(pipeline.Rejected, "alice", 1, "")
	answer := func(text string, args ...string) string {
		term := startOnTerminal(t, 24, 80, []string{"SLUICE_NATS_URL=" + r.url}, append([]string{"dlq"}, args...)...)
		for deadline := time.Now().Add(9 * time.Second); !strings.Contains(term.written.String(), "Type yes: "); time.Sleep(20 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%v doesn't ask: %s", args, term.written.String())
			}
		}
		if _, err := term.pty.WriteString(text); err != nil {
			t.Fatal(err)
		}
		select {
		case <-term.ended:
		case <-time.After(9 * time.Second):
			t.Fatalf("%v doesn't end", args)
		}
		return term.written.String()
	}
	for _, c := range []struct {
		text, verb, want string
		left             uint64
	}{
		{"y\n", "purge", "the answer isn't yes: nothing was changed", 1},
		{"\x03", "purge", "nothing was changed", 1},
		{"no\n", "replay", "the answer isn't yes: nothing was changed", 1},
		{"yes\n", "purge", "purged 1 dead letter, 0 failed", 0},
	} {
		if got := answer(c.text, c.verb); !strings.Contains(got, c.want) {
			t.Errorf("%q to %s: %q", c.text, c.verb, got)
		}
		if n := r.held("SLUICE_DLQ"); n != c.left {
			t.Errorf("after %q to %s %d dead letters are left", c.text, c.verb, n)
		}
	}
}
