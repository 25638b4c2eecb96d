package testenv

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"
)

// process is a child that doesn't outlive this process.
type process struct {
	cmd    *exec.Cmd
	output *output
	done   chan struct{} // closed when it has ended and its output is complete
}

// startProcess starts cmd and collects what it prints.
func startProcess(cmd *exec.Cmd) (*process, error) {
	p := &process{cmd: cmd, output: &output{}, done: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = p.output, p.output
	cmd.WaitDelay = 2 * time.Second
	killWithParent(cmd)

	started := make(chan error)
	go func() {
		// The parent's death is noticed per thread, so the thread that starts the child has to stay as long as the child.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err != nil {
			return
		}
		_ = cmd.Wait() // how it ended stands in cmd.ProcessState
		close(p.done)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("starting %s: %w", cmd.Path, err)
	}
	return p, nil
}

// signal sends s; to a process that has ended it does nothing.
func (p *process) signal(s os.Signal) {
	_ = p.cmd.Process.Signal(s)
}

// kill ends the process and waits until it is gone.
func (p *process) kill() {
	p.signal(syscall.SIGKILL)
	<-p.done
}

func (p *process) running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// wait waits until the process ends by itself.
func (p *process) wait(timeout time.Duration) bool {
	select {
	case <-p.done:
		return true
	case <-time.After(timeout):
		return false
	}
}

// exitCode is -1 for a process that was killed. Ask only after it has ended.
func (p *process) exitCode() int {
	return p.cmd.ProcessState.ExitCode()
}

// maxOutput bounds what is kept of a process' output, in bytes; the oldest half goes first.
const maxOutput = 4 << 20

// output keeps the end of what a process printed.
type output struct {
	mu   sync.Mutex
	text []byte
}

// Write implements io.Writer.
func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.text = append(o.text, p...)
	if len(o.text) > maxOutput {
		kept := o.text[len(o.text)-maxOutput/2:]
		if line := bytes.IndexByte(kept, '\n'); line >= 0 {
			kept = kept[line+1:]
		}
		o.text = append([]byte(nil), kept...)
	}
	return len(p), nil
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return string(o.text)
}

// freePort finds a loopback port that nobody listens on. It lies below the range that outgoing connections draw from,
// so that a server which comes back finds its port free, and a client that waits for it never connects to itself.
func freePort(t testing.TB) int {
	t.Helper()
	for range 100 {
		port := 20000 + rand.IntN(12000)
		listener, err := net.Listen("tcp", loopback(port))
		if err != nil {
			continue
		}
		_ = listener.Close()
		return port
	}
	t.Fatal("no free port on loopback")
	return 0
}

func loopback(port int) string {
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
}

// eventually asks often whether ok holds, until it does or the time is up.
func eventually(timeout time.Duration, ok func() bool) bool {
	deadline := time.Now().Add(timeout)
	for !ok() {
		if time.Now().After(deadline) {
			return false
		}
		time.Sleep(5 * time.Millisecond)
	}
	return true
}
