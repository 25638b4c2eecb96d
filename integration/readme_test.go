package integration

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"sluice/integration/testenv"
)

// readmeCommands are the lines of the shell blocks of README.md.
func readmeCommands(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, block := range regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
		for line := range strings.Lines(block[1]) {
			line, _, _ = strings.Cut(strings.TrimSpace(line), "   # ")
			line, _, _ = strings.Cut(line, "  # ")
			if line = strings.TrimSpace(line); line != "" {
				lines = append(lines, line)
			}
		}
	}
	return lines
}

// Every command line of README.md runs, in the order of the page, on servers of the test.
func TestCommandLinesOfTheReadmeWork(t *testing.T) {
	t.Parallel()
	server, redis, receiver := testenv.NATS(t), testenv.Redis(t), testenv.Receiver(t)
	dir := t.TempDir()
	events := `{"key": "alice", "id": "order-18", "data": {"order": 18}}` + "\n"
	if err := os.WriteFile(filepath.Join(dir, "events.ndjson"), []byte(events), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, _, stderr := command(t, []string{"NATS_URL=" + server.URL(), "SETUP=all"}, "", "setup"); code != 0 {
		t.Fatal(stderr) // the page's own set-up comes later on it
	}
	letter := &nats.Msg{Subject: "sluice.dlq.rejected.alice", Data: []byte(`{"order": 16}`), Header: nats.Header{
		"Sluice-Id": {"order-16"}, "Sluice-Source": {"EVENTS:1:1"}, "Sluice-Key": {"alice"}, "Sluice-Subject": {"events.alice"},
		"Sluice-Time": {time.Now().Format(time.RFC3339)}, "Sluice-Reason": {"rejected"},
	}}
	if _, err := server.JetStream().PublishMsg(t.Context(), letter); err != nil { // what the page looks at
		t.Fatal(err)
	}
	shell := func(line string, forever bool) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		cmd := exec.CommandContext(ctx, "sh", "-c", "exec env "+line)
		cmd.Dir = dir
		cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
		cmd.WaitDelay = 10 * time.Second
		cmd.Env = []string{
			"PATH=" + filepath.Dir(testenv.Binary(t)) + ":" + os.Getenv("PATH"), "HOME=" + dir, "TMPDIR=" + dir,
			"SLUICE_NATS_URL=" + server.URL(), "SLUICE_REDIS_URL=" + redis.URL(), "SLUICE_ADMIN_ADDR=127.0.0.1:0",
		}
		var printed bytes.Buffer
		cmd.Stdout, cmd.Stderr = &printed, &printed
		if forever {
			time.AfterFunc(3*time.Second, cancel)
		}
		if err := cmd.Run(); err != nil && (!forever || cmd.ProcessState.ExitCode() != 0) {
			t.Errorf("%s: %v\n%s", line, err, printed.String())
		}
	}
	program := strings.NewReplacer("go run ./cmd/sluice", testenv.Binary(t), " sluice ", " "+testenv.Binary(t)+" ")
	for _, line := range readmeCommands(t) {
		switch run := program.Replace(" " + line + " "); {
		case line == "make test": // that is what runs this
		case strings.HasPrefix(line, "nats pub "): // what that tool does
			words := regexp.MustCompile(`^nats pub (\S+) '(.*)'$`).FindStringSubmatch(line)
			if err := server.Conn().PublishMsg(&nats.Msg{Subject: words[1], Data: []byte(words[2])}); err != nil {
				t.Errorf("%s: %v", line, err)
			}
		case strings.HasPrefix(line, "go run ./cmd/sluice dev"):
			shell("-u SLUICE_NATS_URL -u SLUICE_REDIS_URL "+run, !strings.Contains(line, " -f "))
		case strings.HasPrefix(line, "redis-cli "):
			shell(strings.Replace(line, "redis-cli", "redis-cli -u "+redis.URL(), 1), false)
		case strings.HasSuffix(line, " worker"):
			shell(strings.Replace(run, "http://127.0.0.1:8080/hook", receiver.URL(), 1), true)
		case strings.Contains(run, testenv.Binary(t)):
			shell(run, false)
		default:
			t.Errorf("nothing runs the line %q", line)
		}
	}
	if n := len(receiver.IDs()); n != 3 {
		t.Errorf("%d events arrived, want the three that the page publishes", n)
	}
}
