package main

import (
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

func TestSignalsAtOnceAreOneRequestToEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		signals := make(chan os.Signal, 2)
		second := make(chan os.Signal, 1)
		go func() { second <- secondSignal(signals) }()
		for _, pause := range []time.Duration{0, 0, 50 * time.Millisecond, 149 * time.Millisecond} {
			time.Sleep(pause)
			signals <- syscall.SIGINT
			synctest.Wait()
			if len(second) != 0 {
				t.Fatal("a signal right after the first ended the process")
			}
		}
		time.Sleep(time.Millisecond)
		signals <- syscall.SIGTERM
		if s := <-second; s != syscall.SIGTERM {
			t.Errorf("ended by %v, want SIGTERM", s)
		}
	})
}
