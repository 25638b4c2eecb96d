package redisstore

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sluice/integration/testenv"
)

// Every script's header ends with a line that runs it by hand.
func TestCommandLinesInTheScriptsHeadersWork(t *testing.T) {
	if _, err := exec.LookPath("redis-cli"); err != nil {
		t.Fatal("redis-cli comes with redis-server in most packages; Debian: apt-get install redis-tools")
	}
	server := testenv.Redis(t)
	rdb := server.Client()
	url := strings.TrimPrefix(server.SocketURL(), "unix://")
	socket, _, _ := strings.Cut(url, "?")
	files, err := filepath.Glob("*.lua")
	if err != nil || len(files) < 7 {
		t.Fatalf("scripts: %v, %v", files, err)
	}
	for _, file := range files {
		if file == "base.lua" || file == "common.lua" || file == "waiting.lua" {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		header, _, _ := strings.Cut(string(text), "\nlocal ")
		lines := strings.Split(strings.TrimSpace(header), "\n")
		line, ok := strings.CutPrefix(lines[len(lines)-1], "-- ")
		common, _, cat := strings.Cut(line, " > ")
		if !ok || !cat || !slices.Contains([]string{"cat base.lua " + file, "cat base.lua common.lua " + file, "cat base.lua common.lua waiting.lua " + file}, common) {
			t.Errorf("%s: its header doesn't end with a line to run it, but with %q", file, lines[len(lines)-1])
			continue
		}
		for _, want := range []string{"KEYS", "ARGV", "reply", "Invariant"} {
			if !strings.Contains(header, want) {
				t.Errorf("%s: its header doesn't say %s", file, want)
			}
		}
		rdb.FlushAll(t.Context())
		rdb.HSet(t.Context(), "epoch:{s03}", "id", "ID", "lanes", "1764460800000000000", "since", "0")
		rdb.HSet(t.Context(), "ratelimit:{s03}:k", "token", "77", "until", "9000000000000000")
		line = strings.ReplaceAll(line, "redis-cli", "redis-cli -s "+socket)
		line = strings.ReplaceAll(line, "/tmp/s.lua", filepath.Join(t.TempDir(), "s.lua"))
		line = strings.ReplaceAll(line, " TOKEN ", " 77 ")
		out, err := exec.Command("sh", "-c", line).CombinedOutput()
		want := "0\n"
		if file == "epoch.lua" {
			want = "1\n"
		}
		if err != nil || !strings.HasPrefix(string(out), want) {
			t.Errorf("%s\n%v: it answers\n%s", line, err, out)
		}
	}
}
