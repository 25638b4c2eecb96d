package main

import (
	"bytes"
	"log"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestWhatLibrariesPrintIsLoggedNowAndThenWithoutWhatOthersWrote(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		to := slog.New(slog.NewTextHandler(&out, nil))
		l := log.New(&libraryLog{log: to}, "", 0)
		for range 2000 {
			l.Printf("Unsolicited response received on idle HTTP channel starting with %q; err=%v", "user=bob password=\"hunter2\"\x1b\n", nil)
		}
		time.Sleep(libraryLineEvery)
		l.Printf("http: panic serving 127.0.0.1:80: nil map\n%s", strings.Repeat("goroutine 1 [running]:\n", 1000))
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		if len(lines) != 2 || len(out.String()) > 3*maxLibraryLine {
			t.Fatalf("%d lines, %d bytes, want 2 lines:\n%s", len(lines), out.Len(), out.String())
		}
		for i, want := range []string{
			`"a library says: Unsolicited response received on idle HTTP channel starting with [hidden]; err=<nil>" left_out=0`, `left_out=1999`,
		} {
			if !strings.Contains(lines[i], "level=WARN") || !strings.Contains(lines[i], want) {
				t.Errorf("line %d is %s\nwant ... %s", i+1, lines[i], want)
			}
		}
		if !strings.Contains(lines[1], "panic serving") {
			t.Errorf("no panic in %s", lines[1])
		}
		for _, leaked := range []string{"hunter2", "bob", "\x1b"} {
			if strings.Contains(out.String(), leaked) {
				t.Errorf("%q is in\n%s", leaked, out.String())
			}
		}
	})
}
