// Command sluice shapes the flow of events per key: workers pull events from a NATS JetStream stream, take a token from
// the key's bucket in Redis, push what may go and let the rest wait its turn.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// Exit codes of every command.
const (
	exitOK     = 0
	exitFailed = 1 // the command was understood and didn't succeed; also after a second signal
	exitUsage  = 2 // the arguments, flags or SLUICE_ variables are wrong; running it again changes nothing
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	exitOnSecondSignal()
	silenceLibraries()

	os.Exit(run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// exitOnSecondSignal ends the process at once when a second SIGINT or SIGTERM comes: the first asks for an orderly end,
// the second says that this takes too long.
func exitOnSecondSignal() {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	go func() {
		second := secondSignal(signals)
		_, _ = fmt.Fprintf(os.Stderr, "sluice: %s again: ended without waiting\n", second)
		os.Exit(exitFailed)
	}()
}

// oneRequest is for how long signals are one request to end: a terminal signals the whole group of processes, and a supervisor
// in it passes that on.
const oneRequest = 200 * time.Millisecond

// secondSignal returns the first signal that asks once more.
func secondSignal(signals <-chan os.Signal) os.Signal {
	<-signals
	for first := time.Now(); ; {
		if s := <-signals; time.Since(first) >= oneRequest {
			return s
		}
	}
}
