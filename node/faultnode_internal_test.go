package node

import (
	"context"
	"os"
	"os/exec"
	"reflect"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
)

// TestWakeAt: a process that has stopped itself goes on in time, and again if it is stopped
// after that.
func TestWakeAt(t *testing.T) {
	const span, child = 300 * time.Millisecond, "ONPATH_TEST_STOPS"
	if os.Getenv(child) == "" { // what starts the tests may not bear that they are stopped
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestWakeAt$", "-test.v")
		cmd.Env = append(os.Environ(), child+"=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	began := time.Now()
	cancel, err := wakeAt(began.Add(span))
	if err != nil {
		t.Fatal(err)
	}
	defer cancel()
	for _, least := range []time.Duration{span, span + time.Second} {
		if err := unix.Kill(os.Getpid(), unix.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Until(began.Add(least))) // it may be stopped here
		if late := time.Since(began); late < least || late > least+20*time.Second {
			t.Errorf("it went on after %s, must be %s", late, least)
		}
	}
}

// TestWithoutRows: members that lead nowhere are left out of the rows of weights, too.
func TestWithoutRows(t *testing.T) {
	groups := []onpath.Group{{
		Members: []onpath.Member{{Vport: 7, Key: 70, Weight: 1}, {Vport: 8, Key: 80, Weight: 2}, {Vport: 9, Key: 90, Weight: 3}},
		Weights: []onpath.WeightRow{{From: 1, Weights: []uint32{10, 20, 30}}, {From: 2, Weights: []uint32{11, 21, 31}}},
	}}
	got := without(groups, map[onpath.VportID]bool{8: true})[0]
	want := []onpath.WeightRow{{From: 1, Weights: []uint32{10, 30}}, {From: 2, Weights: []uint32{11, 31}}}
	if len(got.Members) != 2 || !reflect.DeepEqual(got.Weights, want) {
		t.Errorf("members %v and rows %v, want rows %v", got.Members, got.Weights, want)
	}
	if len(groups[0].Members) != 3 || len(groups[0].Weights[0].Weights) != 3 {
		t.Errorf("the plan itself was changed: %+v", groups[0])
	}
}
