package testenv

import (
	"bytes"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestMain lets this program play the worker, or a parent that dies, when it is started with PLAY.
func TestMain(m *testing.M) {
	switch os.Getenv("PLAY") {
	case "worker":
		os.Exit(playWorker())
	case "parent":
		playParent()
	default:
		os.Exit(m.Run())
	}
}

// playWorker does what the helpers expect of a worker.
func playWorker() int {
	terminate := make(chan os.Signal, 1)
	signal.Notify(terminate, syscall.SIGTERM)
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	if os.Getenv("CRASH") != "" {
		panic("crash as told")
	}
	listener, err := net.Listen("tcp", os.Getenv("SLUICE_ADMIN_ADDR"))
	if err != nil {
		return 1
	}
	log.Info("admin page", "addr", listener.Addr().String())
	ready := time.Now().Add(50 * time.Millisecond)
	http.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) {
		if time.Now().Before(ready) {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	http.HandleFunc("/metrics", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprint(w, "# TYPE sluice_x counter\nsluice_x 3\nsluice_y{a=\"b c\"} 1.5e+06\n")
	})
	http.HandleFunc("/env", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprint(w, strings.Join(os.Environ(), "\n"))
	})
	go func() { _ = http.Serve(listener, nil) }()
	<-terminate
	log.Info("stopping")
	return 7
}

// playParent starts a child, says its pid and ends as a crash would, without any cleanup.
func playParent() {
	p, err := startProcess(exec.Command("sleep", "600"))
	if err != nil {
		panic(err)
	}
	fmt.Println(p.cmd.Process.Pid)
	self, _ := os.FindProcess(os.Getpid())
	_ = self.Kill()
	select {}
}

// played starts this program as a worker.
func played(t testing.TB, env map[string]string) *WorkerProcess {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	env["PLAY"] = "worker"
	return WorkerProgram(t, self, env)
}

func TestWorkerIsReadyMeasuredAndStopped(t *testing.T) {
	t.Setenv("SLUICE_NATS_URL", "nats://somewhere-else")
	w := played(t, map[string]string{"SLUICE_REDIS_URL": "redis://here"})
	w.WaitReady(10 * time.Second)

	_, environment := w.Get("/env")
	if !strings.Contains(environment, "SLUICE_REDIS_URL=redis://here") || strings.Contains(environment, "somewhere-else") {
		t.Errorf("the worker's environment is %s", environment)
	}
	metrics := w.Metrics()
	if len(metrics) != 2 || metrics["sluice_x"] != 3 || metrics[`sluice_y{a="b c"}`] != 1.5e6 {
		t.Errorf("metrics %v", metrics)
	}
	code, took := w.Stop()
	if code != 7 || took <= 0 || took > 10*time.Second {
		t.Errorf("stopped with %d after %v, want 7", code, took)
	}
	if !strings.Contains(w.Output(), "stopping") {
		t.Errorf("printed %s", w.Output())
	}
}

func TestKilledWorkerIsGone(t *testing.T) {
	t.Parallel()
	w := played(t, map[string]string{})
	w.WaitReady(10 * time.Second)
	w.Kill()
	if alive(w.PID()) {
		t.Error("a killed worker lives")
	}
	if _, _, err := w.get("/readyz"); err == nil {
		t.Error("a killed worker answers")
	}
}

// notes is a testing.TB that collects failures instead of failing.
type notes struct {
	testing.TB
	errors []string
}

func (n *notes) Errorf(format string, args ...any) {
	n.errors = append(n.errors, fmt.Sprintf(format, args...))
}

func (n *notes) Failed() bool { return false }

func TestCrashedWorkerFailsItsTest(t *testing.T) {
	t.Parallel()
	n := &notes{TB: t}
	w := played(n, map[string]string{"CRASH": "1"})
	if !w.process.wait(20 * time.Second) {
		t.Fatal("the worker doesn't crash")
	}
	w.close()
	if got := strings.Join(n.errors, "; "); got != `the worker ended by itself with exit code 2; the worker printed "panic:"` {
		t.Errorf("told: %s", got)
	}
}

func TestChildrenDieWithTheirParent(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/proc/self/stat"); err != nil {
		t.Skip("only Linux ties a child to its parent")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	parent := exec.Command(self)
	parent.Env = append(os.Environ(), "PLAY=parent")
	var printed bytes.Buffer
	parent.Stdout = &printed
	parent.WaitDelay = 10 * time.Second
	_ = parent.Run() // it kills itself
	pid, err := strconv.Atoi(strings.TrimSpace(printed.String()))
	if err != nil {
		t.Fatalf("the parent printed %q", printed.String())
	}
	if !eventually(10*time.Second, func() bool { return !alive(pid) }) {
		t.Errorf("process %d outlives its parent", pid)
	}
}

// alive says whether a process runs; one that only waits to be noted by its parent doesn't.
func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(stat), ") Z ")
}

func TestAdminAddressIsFoundInTheLog(t *testing.T) {
	t.Parallel()
	tests := map[string]string{
		"time=x level=INFO msg=\"admin page\" addr=127.0.0.1:4711\n":                                "127.0.0.1:4711",
		"msg=start addr=1.2.3.4:5\nmsg=\"the admin page listens\" addr=\"[::1]:99\" x=1\n":          "[::1]:99",
		"msg=\"admin page\" addr=127.0.0.1:0\nlevel=INFO msg=listening addr=[::]:80 server=admin\n": "[::]:80",
		"msg=\"admin page\" addr=127.0.0.1:47":                                                      "", // still being written
		"msg=administrator addr=127.0.0.1:4711\n":                                                   "",
	}
	for log, want := range tests {
		if got := findAdminAddr(log); got != want {
			t.Errorf("in %q found %q, want %q", log, got, want)
		}
	}
}

func TestOutputKeepsItsEnd(t *testing.T) {
	t.Parallel()
	var o output
	for i := range maxOutput / 8 {
		_, _ = fmt.Fprintf(&o, "line %08d\n", i)
	}
	kept := o.String()
	last := fmt.Sprintf("line %08d\n", maxOutput/8-1)
	if len(kept) > maxOutput || !strings.HasPrefix(kept, "line ") || !strings.HasSuffix(kept, last) {
		t.Errorf("kept %d bytes, from %.20q", len(kept), kept)
	}
}

func TestBinaryIsBuiltOnce(t *testing.T) {
	t.Parallel()
	path := Binary(t)
	if err := exec.Command(path, "version").Run(); err != nil {
		t.Error(err)
	}
	if again := Binary(t); again != path {
		t.Errorf("built %s, then %s", path, again)
	}
	if _, err := build("sluice/no/such/command", false); err == nil || !strings.Contains(err.Error(), "no/such/command") {
		t.Errorf("building nothing: %v", err)
	}
}
