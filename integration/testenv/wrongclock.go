package testenv

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// wrongByVariable of the environment says by how many seconds a program of WrongClockWorker is wrong about the time.
const wrongByVariable = "WRONG_BY_SECONDS"

// wrongClock is a file more in Go's package time. Go asks the kernel for the time without libc, so that nothing but another
// time.Now makes a process believe in another time. The monotonic clock stays as it is.
const wrongClock = `package time

import "syscall"

var wrongBy = func() int64 {
	text, _ := syscall.Getenv("` + wrongByVariable + `")
	n, _ := atoi(text)
	return int64(n)
}()
`

// WrongClockWorker is Worker on a machine whose clock is wrong by that much: after what is right, or before it if below 0. To
// build it takes minutes, as everything has to be.
func WrongClockWorker(t testing.TB, by time.Duration, env map[string]string) *WorkerProcess {
	t.Helper()
	cmd := workerCommand(t, built(t, buildWrongClockOnce), env)
	cmd.Env = append(cmd.Env, wrongByVariable+"="+strconv.Itoa(int(by.Seconds())))
	return runWorker(t, cmd)
}

var buildWrongClockOnce = sync.OnceValues(func() (string, error) {
	overlay, err := overlayTime()
	if err != nil {
		return "", fmt.Errorf("making a wrong clock: %w", err)
	}
	return build(program, os.Getenv("SLUICE_RACE") == "1", "-overlay", overlay)
})

// overlayTime writes what "go build -overlay" takes to build with a clock that may be wrong.
func overlayTime() (path string, err error) {
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return "", err
	}
	standard := filepath.Join(strings.TrimSpace(string(root)), "src", "time")
	text, err := os.ReadFile(filepath.Join(standard, "time.go"))
	if err != nil {
		return "", err
	}
	const now = "func Now() Time {\n\tsec, nsec, mono := runtimeNow()\n"
	if strings.Count(string(text), now) != 1 {
		return "", fmt.Errorf("this version of Go has another time.Now")
	}
	dir, err := buildDir()
	if err != nil {
		return "", err
	}
	replaced := map[string]string{}
	for name, content := range map[string]string{
		"time.go":       strings.Replace(string(text), now, now+"\tsec += wrongBy\n", 1),
		"wrongclock.go": wrongClock,
	} {
		replaced[filepath.Join(standard, name)] = filepath.Join(dir, name)
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			return "", err
		}
	}
	list, err := json.Marshal(map[string]any{"Replace": replaced})
	if err != nil {
		return "", err
	}
	path = filepath.Join(dir, "overlay.json")
	return path, os.WriteFile(path, list, 0o600)
}
