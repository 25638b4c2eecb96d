package freshfile

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a file that holds a password.
type rig struct {
	*Value[string]
	t    *testing.T
	path string
	mu   sync.Mutex
	said bytes.Buffer
}

func (r *rig) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.said.Write(p)
}

func newRig(t *testing.T) *rig {
	t.Parallel()
	r := &rig{t: t, path: filepath.Join(t.TempDir(), "password")}
	r.write("first\n")
	r.Value = New("first", slog.New(slog.NewTextHandler(r, nil)), "SLUICE_X_FILE", Secret, r.path)
	return r
}

func (r *rig) write(text string) {
	r.t.Helper()
	if err := os.WriteFile(r.path, []byte(text), 0o600); err != nil {
		r.t.Fatal(err)
	}
}

// replace writes a file and puts it in the other's place.
func (r *rig) replace(text string) {
	r.t.Helper()
	if err := errors.Join(os.WriteFile(r.path+".new", []byte(text), 0o600), os.Rename(r.path+".new", r.path)); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) wants(want string) {
	r.t.Helper()
	if got := r.Await(r.t.Context()); got != want {
		r.t.Errorf("got %q, want %q", got, want)
	}
}

// told fails the test unless each text was logged once, and nothing else.
func (r *rig) told(texts ...string) {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if lines := strings.Count(r.said.String(), "\n"); lines != len(texts) {
		r.t.Errorf("%d lines, want %d:\n%s", lines, len(texts), &r.said)
	}
	for _, text := range texts {
		if strings.Count(r.said.String(), text) != 1 {
			r.t.Errorf("%q wasn't said once:\n%s", text, &r.said)
		}
	}
}

func TestAChangedFileIsReadAgainAtOnce(t *testing.T) {
	r := newRig(t)
	r.wants("first")
	r.replace("second") // and no moment later
	r.wants("second")
	r.told("was read again")
}

func TestASecondChangeWithinAMomentCounts(t *testing.T) {
	r := newRig(t)
	r.replace("one")
	r.wants("one")
	at := time.Now()
	r.replace("two")
	coarse := func() { // a file system that counts seconds
		if err := os.Chtimes(r.path, at.Truncate(time.Second), at.Truncate(time.Second)); err != nil {
			t.Fatal(err)
		}
	}
	coarse()
	r.wants("two")
	r.write("six")
	coarse()
	if time.Since(at.Truncate(time.Second)) < sure {
		r.wants("six")
	}
}

func TestAFileThatIsBeingWrittenIsWaitedFor(t *testing.T) {
	r := newRig(t)
	r.wants("first")
	r.write("hal")
	half := time.AfterFunc(settle/3, func() { r.write("half and the other half") })
	defer half.Stop()
	r.wants("half and the other half")
	r.told("was read again")
}

func TestWhatCannotBeUsedChangesNothingAndIsToldOnce(t *testing.T) {
	for name, spoil := range map[string]func(path string) error{
		"empty":   func(path string) error { return os.WriteFile(path, nil, 0o600) },
		"blank":   func(path string) error { return os.WriteFile(path, []byte(" \n"), 0o600) },
		"missing": os.Remove,
		"a folder": func(path string) error {
			return errors.Join(os.Remove(path), os.Mkdir(path, 0o700))
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.wants("first")
			if err := spoil(r.path); err != nil {
				t.Fatal(err)
			}
			r.wants("first")
			r.told("can't be used as it is now")
			start := time.Now()
			for range 20 {
				r.wants("first")
			}
			if took := time.Since(start); took > time.Second {
				t.Errorf("20 connections waited %s for a file that nobody mends", took)
			}
			_ = os.RemoveAll(r.path)
			r.replace("second")
			deadline := time.Now().Add(5 * time.Second)
			for r.Await(t.Context()) != "second" && time.Now().Before(deadline) {
				time.Sleep(settle / 2)
			}
			r.wants("second")
			r.told("can't be used as it is now", "can be used again", "was read again")
		})
	}
}

func TestNowFollowsWithoutWaiting(t *testing.T) {
	r := newRig(t)
	r.wants("first")
	r.write("") // while it is being written
	start := time.Now()
	for time.Since(start) < settle/2 {
		if got := r.Now(); got != "first" {
			t.Fatalf("got %q of a file that is being written", got)
		}
	}
	r.write("second")
	for r.Now() != "second" {
		if time.Since(start) > 5*time.Second {
			t.Fatal("not followed")
		}
		time.Sleep(time.Millisecond)
	}
	r.told("was read again")
}

func TestAwaitEndsWithItsContext(t *testing.T) {
	r := newRig(t)
	r.write("")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if got := r.Await(ctx); got != "first" {
		t.Errorf("got %q", got)
	}
}

func BenchmarkNow(b *testing.B) {
	path := filepath.Join(b.TempDir(), "x")
	if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
		b.Fatal(err)
	}
	v := New("x", slog.New(slog.DiscardHandler), "X", Secret, path)
	for b.Loop() {
		v.Now()
	}
}
