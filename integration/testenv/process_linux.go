package testenv

import (
	"os/exec"
	"syscall"
)

// killWithParent makes the kernel kill the child when the thread that started it ends, and so with the test process.
func killWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
