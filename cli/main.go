// Package cli is the program's command line: its subcommands are the server, the node,
// and the tools of whoever uses them.
//
// There is no logic here: commands read flags, call the parts, and print.
package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"
)

// Main executes the program's command line and returns the exit code. The version is the
// linker's; without one the version is what Go noted of the source.
func Main(linked string) int {
	version = linked
	return run(os.Args[1:])
}

// run executes one command line and returns the exit code.
func run(args []string) int {
	ctx, stop := untilSignal()
	defer stop()
	root := newRoot()
	root.SetArgs(args)
	addCompletion(root)
	err := root.ExecuteContext(ctx)
	var status exitStatus
	if errors.As(err, &status) { // of a command that ran, however it was ended
		return exitCode(err)
	}
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

// foreground is whether a command of ours has the terminal: Ctrl-C is for it.
var foreground atomic.Bool

// untilSignal ends with the first SIGINT, SIGTERM or SIGHUP; the second ends the
// program at once.
func untilSignal() (context.Context, func()) {
	ctx, cancel := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	if !signal.Ignored(syscall.SIGHUP) { // as nohup does
		signal.Notify(signals, syscall.SIGHUP)
	}
	go func() {
		var first time.Time
		for sig := range signals {
			switch {
			case sig == os.Interrupt && foreground.Load():
			case first.IsZero():
				first = time.Now()
				cancel()
			case time.Since(first) > sameSignal:
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

// outliveReader has writes to a pipe whose reader is gone fail, where they would
// end the program: for commands that must clean up behind themselves. Ignoring the
// signal would have the commands that they start ignore it, too.
func outliveReader() {
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
}
