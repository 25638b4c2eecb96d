//go:build !linux

package testenv

import "os/exec"

// killWithParent does nothing here: only Linux can tie a child to its parent. The cleanup of the test still ends it.
func killWithParent(*exec.Cmd) {}

// peakMemory is known on Linux only.
func peakMemory(int) int64 { return 0 }
