package testenv

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
)

// killWithParent makes the kernel kill the child when the thread that started it ends, and so with the test process.
func killWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}

// peakMemory is the most memory that a running process has had resident so far, in bytes; 0 if the system doesn't tell.
func peakMemory(pid int) int64 {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	var kib int64
	if _, peak, ok := strings.Cut(string(status), "VmHWM:"); ok {
		_, _ = fmt.Sscan(peak, &kib)
	}
	return kib << 10
}
