package integration

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"sluice/integration/testenv"
)

// overheard is a worker whose log and output somebody reads who may go.
type overheard struct {
	t           *testing.T
	cmd         *exec.Cmd
	log, output *os.File
}

func (w *world) overheard(env ...string) *overheard {
	w.t.Helper()
	cmd := exec.Command(testenv.Binary(w.t), "worker")
	cmd.Env = []string{"SLUICE_ADMIN_ADDR=127.0.0.1:0", "HOME=" + w.t.TempDir()}
	for name, value := range w.env(env...) {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	pipe := func() (reads, writes *os.File) {
		reads, writes, err := os.Pipe()
		if err != nil {
			w.t.Fatal(err)
		}
		return reads, writes
	}
	o := &overheard{t: w.t, cmd: cmd}
	var log, output *os.File
	o.log, log = pipe()
	o.output, output = pipe()
	cmd.Stderr, cmd.Stdout = log, output
	if err := cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	_, _ = log.Close(), output.Close()
	w.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_, _ = o.log.Close(), o.output.Close()
	})
	return o
}

// awaitLine reads until a line holds text.
func (o *overheard) awaitLine(from io.Reader, text string) {
	o.t.Helper()
	lines := bufio.NewScanner(from)
	for lines.Scan() {
		if strings.Contains(lines.Text(), text) {
			return
		}
	}
	o.t.Fatalf("no line with %q: %v", text, lines.Err())
}

// wantFailed waits for the worker's end, which has to be one that supervisors take for a failure: SIGPIPE counts as a clean one.
func (o *overheard) wantFailed() {
	o.t.Helper()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = o.cmd.Wait()
	}()
	select {
	case <-ended:
	case <-time.After(20 * time.Second):
		o.t.Fatal("the worker runs on")
	}
	if got := o.cmd.ProcessState.ExitCode(); got != 1 {
		o.t.Errorf("it ended with %s, want exit code 1", o.cmd.ProcessState)
	}
}

func TestWorkerWhoseLogNobodyReadsHandsOver(t *testing.T) {
	beside(t)
	w := newWorld(t)
	w.receiver.Handle(func(r testenv.Request) testenv.Response {
		if r.Key == "bad" {
			return testenv.Response{Status: 400} // which is logged
		}
		return testenv.Response{Delay: 400 * time.Millisecond}
	})
	worker := w.overheard("LIMIT=1000/s", "CONCURRENCY=16", "DRAIN_TIMEOUT=10s")
	worker.awaitLine(worker.log, "working")
	w.publish("busy", 16, 0)
	w.publish("busier", 100, 0)
	w.receiver.WaitFor(10, 10*time.Second)
	_ = worker.log.Close()
	w.publish("bad", 1, 0)
	worker.wantFailed()
	w.workers(1, "LIMIT=1000/s")
	w.receiver.WaitForDelivered(116, 20*time.Second)
	w.atRest(1)
	if n := w.duplicates(); n > 0 {
		t.Errorf("%d events were pushed twice", n)
	}
}

func TestWorkerWhoseOutputNobodyReadsHandsOver(t *testing.T) {
	beside(t)
	w := newWorld(t)
	worker := w.overheard("LIMIT=1000/s", "SINK=log")
	go func() { _, _ = io.Copy(io.Discard, worker.log) }()
	w.publish("alice", 1, 0)
	worker.awaitLine(worker.output, "alice")
	_ = worker.output.Close()
	w.publish("bob", 20, 0)
	worker.wantFailed()
	w.workers(1, "LIMIT=1000/s")
	w.receiver.WaitForDelivered(20, 20*time.Second)
}

func TestWorkerWhoseTerminalClosesHandsOver(t *testing.T) {
	beside(t)
	w := newWorld(t)
	w.slow(400 * time.Millisecond)
	worker := w.workers(1, "LIMIT=1000/s", "CONCURRENCY=16")[0]
	w.publish("busy", 100, 0)
	w.receiver.WaitFor(10, 10*time.Second)
	worker.Signal(syscall.SIGHUP)
	if code := worker.Wait(10 * time.Second); code != 0 {
		t.Errorf("exit code %d, want 0 as after SIGTERM", code)
	}
	w.workers(1, "LIMIT=1000/s")
	w.receiver.WaitForDelivered(100, 20*time.Second)
	if n := w.duplicates(); n > 0 {
		t.Errorf("%d events were pushed twice", n)
	}
}
