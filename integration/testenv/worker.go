package testenv

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// WorkerProcess is a running `sluice worker`.
type WorkerProcess struct {
	t       testing.TB
	process *process
	ended   bool   // the test has ended it, or waited for its end
	admin   string // address of the admin page, once it is known
}

// Worker starts `sluice worker` with env and nothing else of this process' environment but PATH, HOME and TMPDIR. The
// admin page listens on a free port. A worker that ends before the test asked for it, panics, or has a data race fails
// the test.
func Worker(t testing.TB, env map[string]string) *WorkerProcess {
	t.Helper()
	return WorkerProgram(t, Binary(t), env)
}

// PlainWorker is Worker without the race detector, for drills that measure.
func PlainWorker(t testing.TB, env map[string]string) *WorkerProcess {
	t.Helper()
	return WorkerProgram(t, PlainBinary(t), env)
}

// WorkerProgram is Worker with a sluice that was built elsewhere, as another module has to.
func WorkerProgram(t testing.TB, path string, env map[string]string) *WorkerProcess {
	t.Helper()
	return runWorker(t, workerCommand(t, path, env))
}

func workerCommand(t testing.TB, path string, env map[string]string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(path, "worker")
	cmd.Dir = t.TempDir()
	// Of a name given twice the last value counts.
	cmd.Env = []string{"SLUICE_ADMIN_ADDR=127.0.0.1:0", "SLUICE_LOG_FORMAT=text"}
	for _, name := range []string{"PATH", "HOME", "TMPDIR"} {
		cmd.Env = append(cmd.Env, name+"="+os.Getenv(name))
	}
	for name, value := range env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	return cmd
}

func runWorker(t testing.TB, cmd *exec.Cmd) *WorkerProcess {
	t.Helper()
	p, err := startProcess(cmd)
	if err != nil {
		t.Fatal(err)
	}
	w := &WorkerProcess{t: t, process: p}
	t.Cleanup(w.close)
	return w
}

// close ends a worker that still runs and tells what went wrong with it.
func (w *WorkerProcess) close() {
	if !w.process.running() && !w.ended {
		w.t.Errorf("the worker ended by itself with exit code %d", w.process.exitCode())
	}
	w.process.kill()
	printed := w.Output()
	for _, mark := range []string{"WARNING: DATA RACE", "\npanic: ", "\nfatal error: "} {
		if strings.Contains("\n"+printed, mark) {
			w.t.Errorf("the worker printed %q", strings.TrimSpace(mark))
		}
	}
	if w.t.Failed() {
		const shown = 32 << 10
		w.t.Logf("the end of what worker %d printed:\n%s", w.PID(), printed[max(0, len(printed)-shown):])
	}
}

// PID is the worker's process id.
func (w *WorkerProcess) PID() int {
	return w.process.cmd.Process.Pid
}

// PeakMemory is the most memory the running worker has had resident, in bytes; 0 where the system doesn't tell.
func (w *WorkerProcess) PeakMemory() int64 {
	return peakMemory(w.PID())
}

// PeakMemory is that of this process: the NATS server, the receiver, and what the drill knows of its events.
func PeakMemory() int64 {
	return peakMemory(os.Getpid())
}

// Output is what the worker has printed; only the end, if it is more than some megabytes.
func (w *WorkerProcess) Output() string {
	return w.process.output.String()
}

// Signal sends s to the worker.
func (w *WorkerProcess) Signal(s os.Signal) {
	w.process.signal(s)
}

// Kill ends the worker as a crash would (SIGKILL) and waits until it is gone.
func (w *WorkerProcess) Kill() {
	w.ended = true
	w.process.kill()
}

// Stop asks the worker to stop (SIGTERM), waits for it and says how it ended and how long it took.
func (w *WorkerProcess) Stop() (exitCode int, took time.Duration) {
	w.t.Helper()
	start := time.Now()
	w.process.signal(syscall.SIGTERM)
	return w.Wait(time.Minute), time.Since(start)
}

// Wait waits until the worker ends by itself and returns its exit code.
func (w *WorkerProcess) Wait(timeout time.Duration) (exitCode int) {
	w.t.Helper()
	if !w.process.wait(timeout) {
		w.t.Fatalf("the worker still runs after %v", timeout)
	}
	w.ended = true
	return w.process.exitCode()
}

// WaitReady waits until the worker says on /readyz that it is ready.
func (w *WorkerProcess) WaitReady(timeout time.Duration) {
	w.t.Helper()
	ready := eventually(timeout, func() bool {
		if !w.process.running() {
			w.t.Fatal("the worker ended before it was ready")
		}
		status, _, err := w.get("/readyz")
		return err == nil && status == http.StatusOK
	})
	if !ready {
		w.t.Fatalf("the worker isn't ready after %v", timeout)
	}
}

var (
	adminLine = regexp.MustCompile(`(?i).*\badmin\b.*\n`) // whole: the end of a line may still be on its way
	addrField = regexp.MustCompile(`\baddr="?([^\s"]+:[1-9][0-9]*)`)
)

// findAdminAddr reads the address of the admin page from the log: the first line with the word admin and addr=HOST:PORT.
func findAdminAddr(log string) string {
	for _, line := range adminLine.FindAllString(log, -1) {
		if field := addrField.FindStringSubmatch(line); field != nil {
			return field[1]
		}
	}
	return ""
}

var adminClient = &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}

// get reads a page of the admin server.
func (w *WorkerProcess) get(path string) (status int, body string, err error) {
	if w.admin == "" {
		w.admin = findAdminAddr(w.Output())
	}
	if w.admin == "" {
		return 0, "", errors.New("the worker hasn't logged where its admin page is")
	}
	response, err := adminClient.Get("http://" + w.admin + path)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = response.Body.Close() }()
	page, err := io.ReadAll(response.Body)
	return response.StatusCode, string(page), err
}

// Get reads a page of the admin server, as /readyz.
func (w *WorkerProcess) Get(path string) (status int, body string) {
	w.t.Helper()
	status, body, err := w.get(path)
	if err != nil {
		w.t.Fatalf("reading %s of the worker: %v", path, err)
	}
	return status, body
}

// Metrics reads the worker's metrics: name{labels} as on the page (labels sorted, no braces without any) to value.
func (w *WorkerProcess) Metrics() map[string]float64 {
	w.t.Helper()
	status, page := w.Get("/metrics")
	if status != http.StatusOK {
		w.t.Fatalf("/metrics of the worker answers %d", status)
	}
	metrics, err := parseMetrics(page)
	if err != nil {
		w.t.Fatal(err)
	}
	return metrics
}

// parseMetrics reads the text format as the Prometheus client writes it: one sample a line, without timestamps.
func parseMetrics(page string) (map[string]float64, error) {
	metrics := map[string]float64{}
	for line := range strings.Lines(page) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		space := strings.LastIndexByte(line, ' ')
		if space < 0 {
			return nil, fmt.Errorf("%q is not a sample", line)
		}
		value, err := strconv.ParseFloat(line[space+1:], 64)
		if err != nil {
			return nil, fmt.Errorf("reading the sample %q: %w", line, err)
		}
		metrics[line[:space]] = value
	}
	return metrics, nil
}
