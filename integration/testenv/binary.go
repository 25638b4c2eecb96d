package testenv

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// Binary is the path of the sluice program, built once per test process, with the race detector if the test has it or
// SLUICE_RACE=1 asks for it.
func Binary(t testing.TB) string {
	t.Helper()
	return built(t, buildOnce)
}

// PlainBinary is Binary without the race detector, for drills that measure: with it everything is five to ten times as slow.
func PlainBinary(t testing.TB) string {
	t.Helper()
	return built(t, buildPlainOnce)
}

func built(t testing.TB, build func() (string, error)) string {
	t.Helper()
	path, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

const program = "sluice/cmd/sluice"

var (
	buildOnce = sync.OnceValues(func() (string, error) {
		return build(program, RaceEnabled || os.Getenv("SLUICE_RACE") == "1")
	})
	buildPlainOnce = sync.OnceValues(func() (string, error) { return build(program, false) })
)

// build builds the command of an import path into a place that goes away by itself, with the flags given.
func build(command string, race bool, flags ...string) (string, error) {
	dir, err := buildDir()
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, fmt.Sprint(filepath.Base(command), len(flags)))
	if race {
		path += "-race"
		flags = append(flags, "-race")
	}
	args := append([]string{"build", "-o", path}, flags...)
	if printed, err := exec.Command("go", append(args, command)...).CombinedOutput(); err != nil {
		return "", fmt.Errorf("building %s: %w\n%s", command, err, printed)
	}
	return path, nil
}

// buildDir is the directory of the test program itself where "go test" made it: that is removed when the tests have
// ended, which no cleanup of a single test could know.
func buildDir() (string, error) {
	self, err := os.Executable()
	if err == nil && strings.Contains(self, "go-build") {
		return filepath.Dir(self), nil
	}
	dir, mkdirErr := os.MkdirTemp("", "sluice-test-")
	if mkdirErr != nil {
		return "", fmt.Errorf("making a directory for the program: %w", errors.Join(err, mkdirErr))
	}
	return dir, nil
}
