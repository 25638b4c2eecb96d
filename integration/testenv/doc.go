// Package testenv is the ground the drills stand on: a NATS server in the test process, a real redis-server, an HTTP
// receiver that remembers when each push arrived, the sluice binary itself, and the arithmetic that judges what was seen.
//
// Everything listens on loopback, ends with its test and dies with the test process. Helpers end the test on the first
// thing that goes wrong, so call them from the test's own goroutine only.
package testenv

import (
	"os"
	"testing"
)

// Soak says whether the long drills are asked for (SLUICE_SOAK=1); without it they skip themselves.
func Soak() bool {
	return os.Getenv("SLUICE_SOAK") == "1"
}

// missing ends a test that needs a server which this machine lacks: with a skip on a developer's machine, with
// a failure where all of these must be there (SLUICE_REQUIRE_SERVERS=1, as `make test` has it).
func missing(t testing.TB, what, cure string) {
	t.Helper()
	if os.Getenv("SLUICE_REQUIRE_SERVERS") == "1" {
		t.Fatalf("%s is missing: %s", what, cure)
	}
	Lacks(t, what, cure)
}

// Lacks ends a test that needs a tool which not every machine can have: with a skip, or with a failure where nothing may
// be skipped unseen (CI=true).
func Lacks(t testing.TB, what, cure string) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatalf("%s is missing: %s", what, cure)
	}
	t.Skipf("%s is missing: %s", what, cure)
}
