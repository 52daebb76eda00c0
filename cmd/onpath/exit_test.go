package main

import (
	"bytes"
	"context"
	"fmt"
	"testing"
)

func TestMissingFlagIsUsage(t *testing.T) {
	for _, args := range [][]string{{"trace", "10.1.0.2", "10.9.0.2"}, {"capture", "web"}} {
		root := newRoot()
		root.SetArgs(args)
		if code := exitCode(root.ExecuteContext(t.Context())); code != exitBadInput {
			t.Errorf("%v: exit code %d, want %d", args, code, exitBadInput)
		}
	}
}

func TestInterruptedSaysOnlyWhatIsNew(t *testing.T) {
	for want, err := range map[string]error{
		"": context.Canceled, "onpath: stopped waiting\n": fmt.Errorf("stopped waiting: %w", context.Canceled),
	} {
		var out bytes.Buffer
		printError(&out, err)
		if out.String() != want || exitCode(err) != exitInterrupted {
			t.Errorf("%v: printed %q, exit code %d", err, out.String(), exitCode(err))
		}
	}
}
