package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/jedib0t/go-pretty/v6/text"

	"sluice/integration/testenv"
)

// terminal is a command on a pseudo-terminal.
type terminal struct {
	t       *testing.T
	cmd     *exec.Cmd
	pty     *os.File
	written output
	ended   chan struct{}
	began   time.Time
}

func startOnTerminal(t *testing.T, rows, columns uint16, env []string, args ...string) *terminal {
	t.Helper()
	term := &terminal{t: t, ended: make(chan struct{}), began: time.Now()}
	term.cmd = sluiceCommand(t, append([]string{"TERM=xterm-256color"}, env...), args...)
	var err error
	if term.pty, err = pty.StartWithSize(term.cmd, &pty.Winsize{Rows: rows, Cols: columns}); err != nil {
		testenv.Lacks(t, "a pseudo-terminal", err.Error())
	}
	go func() {
		defer close(term.ended)
		_, _ = io.Copy(&term.written, term.pty) // ends with an error when the command has ended
		_ = term.cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = term.cmd.Process.Kill()
		<-term.ended
		_ = term.pty.Close()
		if t.Failed() {
			t.Logf("the last frame:\n%s", strings.Join(term.frame(), "\n"))
		}
	})
	return term
}

var escapes = regexp.MustCompile("\x1b\\[[?0-9;]*[A-Za-z]")

// frame is the last frame that was drawn completely, without escapes.
func (term *terminal) frame() []string {
	all := term.written.String()
	end := strings.LastIndex(all, showFrame)
	if end < 0 {
		return nil
	}
	begin := strings.LastIndex(all[:end], holdBack)
	text := escapes.ReplaceAllString(all[begin:end], "")
	return strings.Split(strings.ReplaceAll(text, "\r", ""), "\n")
}

// await waits for a frame that satisfies ok and returns it.
func (term *terminal) await(what string, ok func(frame []string) bool) []string {
	term.t.Helper()
	for deadline := time.Now().Add(9 * time.Second); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if frame := term.frame(); ok(frame) {
			return frame
		}
	}
	term.t.Fatalf("within 9 s there is no frame that shows %s", what)
	return nil
}

// tableRow is published, pushed and waiting of each user in a frame.
type tableRow struct{ published, pushed, waiting int }

func readTable(frame []string) map[string]tableRow {
	table := map[string]tableRow{}
	for _, line := range frame {
		fields := strings.Fields(strings.ReplaceAll(line, ",", ""))
		if len(fields) < 6 {
			continue
		}
		var row tableRow
		var errs [3]error
		for i, to := range []*int{&row.published, &row.pushed, &row.waiting} {
			*to, errs[i] = strconv.Atoi(fields[i+1])
		}
		if errs == [3]error{} {
			table[fields[0]] = row
		}
	}
	return table
}

func TestDevTableShowsTheFloodShapedAndOthersAtOnce(t *testing.T) {
	t.Parallel()
	term := startOnTerminal(t, 24, 80, []string{"TMPDIR=" + t.TempDir()}, "dev")
	frame := term.await("mallory waiting and no one else", func(frame []string) bool {
		table := readTable(frame)
		if table["mallory"].waiting < 100 || table["mallory"].pushed < 21 {
			return false
		}
		through := 0
		for user, row := range table {
			if user != "mallory" && user != "total" {
				if row.waiting > 0 {
					return false
				}
				through++
			}
		}
		return through >= 5
	})
	row, allowed := readTable(frame)["mallory"], 20+10*time.Since(term.began).Seconds()
	if float64(row.pushed) > allowed {
		t.Errorf("%d of mallory's events were pushed, the limit allows %.1f", row.pushed, allowed)
	}
	if !strings.HasPrefix(frame[1], "mallory ") {
		t.Errorf("the busiest user isn't the first: %q", frame[1])
	}

	if err := pty.Setsize(term.pty, &pty.Winsize{Rows: 14, Cols: 50}); err != nil {
		t.Fatal(err)
	}
	term.await("a frame that fits, with users left out", func(frame []string) bool {
		wide := slices.ContainsFunc(frame, func(line string) bool { return text.StringWidthWithoutEscSequences(line) > 50 })
		return !wide && len(frame) <= 13 && strings.Contains(strings.Join(frame, "\n"), "\n… and ")
	})

	start := time.Now()
	if _, err := term.pty.Write([]byte{3}); err != nil { // Ctrl-C
		t.Fatal(err)
	}
	select {
	case <-term.ended:
	case <-time.After(10 * time.Second):
		t.Fatal("Ctrl-C doesn't end it")
	}
	if took := time.Since(start); took > 5*time.Second || term.cmd.ProcessState.ExitCode() != 0 {
		t.Errorf("Ctrl-C ended it after %s with %s", took, term.cmd.ProcessState)
	}
	all := term.written.String()
	if strings.Count(all, hideCursor) != 1 || !strings.HasSuffix(all, showCursor) {
		t.Error("the cursor isn't given back")
	}
	if !strings.Contains(all, "\x1b[33m") {
		t.Error("there are no colours")
	}
}

func TestDevTableWithoutColours(t *testing.T) {
	t.Parallel()
	term := startOnTerminal(t, 24, 80, []string{"NO_COLOR=1", "TMPDIR=" + t.TempDir()}, "dev")
	term.await("mallory waiting", func(frame []string) bool { return readTable(frame)["mallory"].waiting > 1 })
	if colour := regexp.MustCompile("\x1b\\[[0-9;]*m").FindString(term.written.String()); colour != "" {
		t.Errorf("found %q", colour)
	}
}

func TestDevWarningsDontDestroyTheTable(t *testing.T) {
	t.Parallel()
	term := startOnTerminal(t, 24, 80, []string{"TMPDIR=" + t.TempDir()}, "dev", "--sink", "http://127.0.0.1:1/")
	frame := term.await("warnings", func(frame []string) bool {
		return len(frame) > 5 && strings.Contains(frame[len(frame)-1], "warnings, the last: msg=")
	})
	if !strings.HasPrefix(frame[0], "user ") || !strings.HasPrefix(frame[len(frame)-2], "total ") || len(frame) > 24 {
		t.Errorf("the frame is\n%s", strings.Join(frame, "\n"))
	}
}

// screenOf returns a screen of the given size and what is written to it.
func screenOf(width, height int) (*screen, *strings.Builder) {
	var written strings.Builder
	s := &screen{out: &written}
	s.size = func() (int, int) { return width, height }
	return s, &written
}

func TestScreenRedrawsInPlace(t *testing.T) {
	t.Parallel()
	s, written := screenOf(10, 24)
	s.draw([]string{"one", "two", "three"})
	written.Reset()
	s.draw([]string{"four", "five"})
	if got, want := written.String(), holdBack+"\r\x1b[2Afour\x1b[K\r\nfive\x1b[K\x1b[J"+showFrame; got != want {
		t.Errorf("got %q\nwant %q", got, want)
	}

	written.Reset()
	_, _ = fmt.Fprintln(s, "stays")
	if got, want := written.String(), "\r\x1b[1A\x1b[Jstays\r\nfour\r\nfive"; got != want {
		t.Errorf("a line above: got %q\nwant %q", got, want)
	}

	written.Reset()
	s.size = func() (int, int) { return 3, 24 } // each line has wrapped
	s.draw([]string{"six"})
	if want := "\r\x1b[3Asix"; !strings.Contains(written.String(), want) {
		t.Errorf("narrower: got %q, want %q in it", written, want)
	}

	written.Reset()
	s.close()
	s.draw([]string{"late"})
	if got, want := written.String(), "\r\n"+showCursor; got != want {
		t.Errorf("the end: got %q, want %q", got, want)
	}
}

func TestFrameLeavesRoomForTheLinesAbove(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ height, above, want int }{
		{24, 7, 17},
		{24, 20, 12}, // they scroll away rather than that nothing shows
		{10, 7, 9},
		{1, 0, 1},
	} {
		s, _ := screenOf(80, c.height)
		_, _ = s.Write([]byte(strings.Repeat("x\n", c.above)))
		if _, got := s.room(); got != c.want {
			t.Errorf("%d lines above on a terminal of %d: room for %d, want %d", c.above, c.height, got, c.want)
		}
	}
}
