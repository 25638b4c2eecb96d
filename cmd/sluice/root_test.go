package main

import (
	"bytes"
	"context"
	"encoding/json"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// execute runs one command line and returns its exit code, standard output and standard error.
func execute(t *testing.T, ctx context.Context, stdin string, args ...string) (int, string, string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	code := run(ctx, args, strings.NewReader(stdin), &stdout, &stderr)
	return code, stdout.String(), stderr.String()
}

func TestExitCodes(t *testing.T) {
	cases := []struct {
		name   string
		env    string
		args   []string
		code   int
		stderr string // exactly its first line
	}{
		{"version", "", []string{"version"}, 0, ""},
		{"help", "", []string{"--help"}, 0, ""},
		{"help of a command", "", []string{"publish", "--help"}, 0, ""},
		{"unknown command", "", []string{"publsh"}, 2, `sluice: unknown command "publsh" for "sluice"`},
		{"unknown flag", "", []string{"publish", "--nope"}, 2, "sluice: unknown flag: --nope"},
		{"too many arguments", "", []string{"version", "x"}, 2, `sluice: unknown command "x" for "sluice version"`},
		{"no subject", "", []string{"publish"}, 2, "sluice: SUBJECT is missing, or -f with a file"},
		{"file and subject", "", []string{"publish", "-f", "x", "events.a"}, 2, `sluice: with -f there is no SUBJECT and no DATA; remove "events.a"`},
		{"id with file", "", []string{"publish", "-f", "x", "--id", "1"}, 2, "sluice: --id is for one event; write an id into each line"},
		{"strict without file", "", []string{"publish", "events.a", "x", "--strict"}, 2, "sluice: --subject and --strict need -f"},
		{"bad rate", "", []string{"publish", "events.a", "x", "--rate", "0"}, 2, "sluice: --rate: a rate of 0 publishes nothing; use one such as 500/s"},
		{"bad header", "", []string{"publish", "events.a", "x", "--header", "novalue"}, 2, `sluice: --header "novalue": write 'Name: value'`},
		{"header of two lines", "", []string{"publish", "events.a", "x", "--header", "A: b\r\nC: d"}, 2, "sluice: --header: the value of A holds a line end or begins or ends with a space"},
		{"wildcard subject", "", []string{"publish", "events.>", "x"}, 2, `sluice: SUBJECT "events.>" holds a wildcard; publish to one subject`},
		{"wrong setting", "SLUICE_NATS_URL=ftp://h", []string{"publish", "events.a", "x"}, 2, `sluice: SLUICE_NATS_URL: value "ftp://h": has the unknown scheme "ftp"; use nats, tls, ws or wss`},
		{"missing file", "", []string{"publish", "-f", "/does/not/exist"}, 1, "sluice: reading events: open /does/not/exist: no such file or directory"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			setEnvironment(t)
			if name, value, ok := strings.Cut(c.env, "="); ok {
				t.Setenv(name, value)
			}
			code, _, stderr := execute(t, t.Context(), "", c.args...)
			first, rest, _ := strings.Cut(stderr, "\n")
			if code != c.code || first != c.stderr {
				t.Errorf("got exit %d, stderr %q\nwant exit %d, %q", code, stderr, c.code, c.stderr)
			}
			if strings.Contains(rest, "Flags:") || strings.Count(stderr, c.stderr) > 1 && c.stderr != "" {
				t.Errorf("the error comes with the whole usage, or twice:\n%s", stderr)
			}
		})
	}
}

func TestEveryCommandHasShortHelpAndExample(t *testing.T) {
	t.Parallel()
	var check func(cmd *cobra.Command)
	check = func(cmd *cobra.Command) {
		if cmd.Short == "" || cmd.Example == "" {
			t.Errorf("%s lacks a short help or an example", cmd.CommandPath())
		}
		for _, sub := range cmd.Commands() {
			check(sub)
		}
	}
	check(newRoot())
}

func TestVersionAsJSON(t *testing.T) {
	t.Parallel()
	code, stdout, _ := execute(t, t.Context(), "", "version", "--json")
	var got map[string]string
	if err := json.Unmarshal([]byte(stdout), &got); err != nil || code != 0 {
		t.Fatalf("exit %d, %q: %v", code, stdout, err)
	}
	if got["go"] != runtime.Version() || got["version"] == "" || got["commit"] == "" || got["date"] == "" {
		t.Errorf("got %v", got)
	}
}

func TestLinkTimeVersionBeatsTheRecordedOne(t *testing.T) {
	t.Parallel()
	info := &debug.BuildInfo{
		Main:     debug.Module{Version: "v0.0.1"},
		Settings: []debug.BuildSetting{{Key: "vcs.revision", Value: "abc"}, {Key: "vcs.modified", Value: "true"}, {Key: "vcs.time", Value: "2026-01-01"}},
	}
	b := build{Version: "v1"}
	b.fill(info)
	if want := (build{Version: "v1", Commit: "abc-modified", Date: "2026-01-01"}); b != want {
		t.Errorf("got %+v, want %+v", b, want)
	}
}
