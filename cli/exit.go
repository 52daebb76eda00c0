package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/onpath/onpath"
)

// Exit codes. They are part of the interface: docs/reference/cli.md lists them.
const (
	exitOK          = 0
	exitFailed      = 1
	exitBadInput    = 2
	exitNotFound    = 3
	exitUnavailable = 4
	exitConflict    = 5
	exitForbidden   = 6
	exitNoCapacity  = 7
	exitUnsupported = 8
	exitRefuted     = 9
	exitIncomplete  = 10
	exitInterrupted = 130
)

var exitCodes = []struct {
	code    int
	meaning string
}{
	{exitOK, "done"},
	{exitFailed, "failed, for a reason that the message gives"},
	{exitBadInput, "the input is wrong: command line, file or object; nothing was changed"},
	{exitNotFound, "what was named does not exist"},
	{exitUnavailable, "server or node cannot be reached now; try again"},
	{exitConflict, "it exists already, or was changed by somebody else meanwhile"},
	{exitForbidden, "the caller may not"},
	{exitNoCapacity, "no capacity"},
	{exitUnsupported, "this machine or version lacks what it takes"},
	{exitRefuted, "onpath verify: a flow leaves the way that its chain promises"},
	{exitIncomplete, "--wait: what was waited for is not so in time, or cannot be, for the reason that the message gives; what was " +
		"done stays, and goes on"},
	{exitInterrupted, "interrupted by a signal"},
}

// byCode is the one table from error codes to exit codes.
var byCode = map[onpath.Code]int{
	onpath.CodeInvalid:     exitBadInput,
	onpath.CodeNotFound:    exitNotFound,
	onpath.CodeExists:      exitConflict,
	onpath.CodeConflict:    exitConflict,
	onpath.CodeForbidden:   exitForbidden,
	onpath.CodeNoCapacity:  exitNoCapacity,
	onpath.CodeUnavailable: exitUnavailable,
	onpath.CodeTooMany:     exitUnavailable,
	onpath.CodeUnsupported: exitUnsupported,
	onpath.CodeInternal:    exitFailed,
}

// usageError is a command line that cannot be understood.
type usageError struct{ error }

func (u usageError) Unwrap() error { return u.error }

// incomplete is what --wait ends with when its time is over or would be in vain:
// the server works, what was asked for is not so.
type incomplete struct{ error }

func (i incomplete) Unwrap() error { return i.error }

// exitStatus is the exit code of a command that ran elsewhere (onpath exec);
// nothing is printed about it.
type exitStatus int

func (e exitStatus) Error() string { return fmt.Sprintf("the command ended with code %d", int(e)) }

func exitCode(err error) int {
	var usage usageError
	var status exitStatus
	var late incomplete
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &late):
		return exitIncomplete
	case errors.As(err, &status):
		return int(status)
	case errors.As(err, &usage):
		return exitBadInput
	case errors.Is(err, context.Canceled):
		return exitInterrupted
	}
	if code, ok := byCode[onpath.CodeOf(err)]; ok {
		return code
	}
	return exitFailed
}

// printError prints one line per error. Whoever pressed Ctrl-C knows; what a server
// says of its own is printed whatever it is, so that no failure is silent.
func printError(w io.Writer, err error) {
	var status exitStatus
	if errors.As(err, &status) {
		return
	}
	for line := range strings.SplitSeq(err.Error(), "\n") {
		if errors.Is(err, context.Canceled) {
			if line = strings.TrimSuffix(line, ": "+context.Canceled.Error()); line == context.Canceled.Error() {
				continue
			}
		}
		fmt.Fprintln(w, "onpath:", line)
	}
}

// needsRoot refuses what only root can do, before anything is begun.
func needsRoot(c *cobra.Command) error {
	if os.Geteuid() == 0 {
		return nil
	}
	return &onpath.Error{Code: onpath.CodeForbidden, Message: c.CommandPath() + " needs root",
		Remedy: "run it as root: sudo " + c.CommandPath()}
}

// needsSudo says what to do where an ordinary user may not touch a file.
func needsSudo(c *cobra.Command, err error) error {
	if os.Geteuid() == 0 || !errors.Is(err, fs.ErrPermission) {
		return err
	}
	return &onpath.Error{Code: onpath.CodeForbidden, Message: err.Error(), Cause: err,
		Remedy: "run it as root: sudo " + c.CommandPath() + "; or name folder and socket that you may write, with --state-dir and --socket"}
}

func badUsage(format string, args ...any) error {
	return usageError{fmt.Errorf(format, args...)}
}
