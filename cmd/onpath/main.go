// Command onpath runs chains of in-network functions: its subcommands are the
// server, the node, and the tools of whoever uses them.
//
// There is no logic here: commands read flags, call the parts, and print.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	os.Exit(run(os.Args[1:]))
}

// run executes one command line and returns the exit code.
func run(args []string) int {
	ctx, stop := untilSignal()
	defer stop()
	root := newRoot()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if ctx.Err() != nil && (err == nil || exitCode(err) == exitFailed) {
		if err == nil {
			return exitOK // a command that ends well by Ctrl-C, such as watch
		}
		return exitInterrupted
	}
	if err == nil {
		return exitOK
	}
	printError(os.Stderr, err)
	return exitCode(err)
}

// sameSignal is how long after a signal another one counts as the same: sudo and
// timeout pass on what the terminal's process group got already.
const sameSignal = 300 * time.Millisecond

// untilSignal ends with the first SIGINT or SIGTERM; the second ends the
// program at once.
func untilSignal() (context.Context, func()) {
	ctx, cancel := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		if _, ok := <-signals; !ok {
			return
		}
		first := time.Now()
		cancel()
		for range signals {
			if time.Since(first) > sameSignal {
				fmt.Fprintln(os.Stderr, "onpath: stopped before it had cleaned up")
				os.Exit(exitInterrupted)
			}
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(signals)
		cancel()
	}
}
