// Package runtimetest is the exam for implementations of onpath.Runtime.
package runtimetest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/onpath/onpath"
)

// Behaviour is what a program of the exam does.
type Behaviour int

// The behaviours.
const (
	Sleep    Behaviour = iota // runs; ends with code 0 on SIGTERM
	Stubborn                  // runs; ignores SIGTERM
	Deaf                      // runs; has no handler for SIGTERM
	Exit                      // ends at once with Program.Code
	Print                     // prints Program.Text and a newline, then as Sleep
	Cat                       // copies its input to its output, then ends with 0
)

// Program is a program that the exam runs.
type Program struct {
	Does Behaviour
	Code int
	Text string
}

// Subject is a driver under examination.
type Subject struct {
	// Open gives a driver for one machine, the same at each call: a second
	// call after Close is a restart of the agent.
	Open func(t *testing.T) onpath.Runtime
	// Spec is a function that runs the command.
	Spec func(command []string) onpath.FunctionSpec
	// Command does what the program says, inside an instance.
	Command func(p Program) []string
	// NetNS prepares a network namespace; nil: the driver needs none.
	NetNS func(t *testing.T) string
	// Kill ends an instance's first process from outside, as kill -9 does.
	Kill func(t *testing.T, p onpath.Process)
	// NoExec: the instances have no programs to run.
	NoExec bool
	// Noticed bounds how long the end of a process may go unnoticed.
	Noticed time.Duration
	// Shared: instances run no programs, but are parts of one process, and end with it;
	// nobody knows with which code.
	Shared bool
}

// ofPrograms are the parts about programs of an instance's own.
var ofPrograms = []string{"exit", "stubborn", "deaf", "logs", "adopt"}

type exam struct {
	Subject
	rt onpath.Runtime
	n  int
}

// Run holds the exam.
func Run(t *testing.T, s Subject) {
	for _, part := range []struct {
		name string
		run  func(*exam, *testing.T)
	}{
		{"start", (*exam).start}, {"create", (*exam).create}, {"exit", (*exam).exit}, {"killed", (*exam).killed},
		{"stop", (*exam).stop}, {"stubborn", (*exam).stubborn}, {"deaf", (*exam).deaf}, {"logs", (*exam).logs}, {"exec", (*exam).exec},
		{"usage", (*exam).usage}, {"refusals", (*exam).refusals}, {"adopt", (*exam).adopt}, {"remove", (*exam).remove},
	} {
		if s.Shared && slices.Contains(ofPrograms, part.name) {
			continue
		}
		t.Run(part.name, func(t *testing.T) {
			e := &exam{Subject: s, rt: s.Open(t)}
			t.Cleanup(func() {
				if err := e.rt.Remove(context.Background()); err != nil {
					t.Errorf("Remove: %v", err)
				}
			})
			part.run(e, t)
		})
	}
}

func (e *exam) run(t *testing.T, p Program) onpath.Process {
	t.Helper()
	e.n++
	id := fmt.Sprintf("exam-%d-%d", time.Now().UnixNano()%1e9, e.n)
	r := onpath.RunSpec{ID: id, Labels: map[string]string{"tenant": "t", "plan": "42"}, Spec: e.Spec(e.Command(p))}
	if e.NetNS != nil {
		r.NetNS = e.NetNS(t)
	}
	if err := e.rt.Prepare(t.Context(), &r.Spec, func(string) {}); err != nil {
		t.Fatalf("Prepare: %v", err)
	}
	proc, err := e.rt.Start(t.Context(), r)
	if err != nil {
		t.Fatalf("Start: %v", err)
	}
	if proc.ID() != id {
		t.Fatalf("ID = %q, want %q", proc.ID(), id)
	}
	return proc
}

// await waits for the end; only a machine that does nothing else is held against the limit.
func await(t *testing.T, p onpath.Process, limit time.Duration) int {
	t.Helper()
	if os.Getenv("ONPATH_SOAK") == "" {
		limit = max(limit, time.Minute)
	}
	select {
	case <-p.Exited():
	case <-time.After(limit):
		t.Fatalf("%s: its end went unnoticed for %v", p.ID(), limit)
	}
	code, at := p.Exit()
	if time.Since(at) > time.Minute || time.Until(at) > time.Second {
		t.Errorf("ended at %v, which is not now", at)
	}
	if p.Pid() != 0 {
		t.Errorf("Pid = %d after the end", p.Pid())
	}
	return code
}

func running(t *testing.T, p onpath.Process) {
	t.Helper()
	select {
	case <-p.Exited():
		t.Fatalf("%s has ended", p.ID())
	default:
	}
	if p.Pid() <= 0 {
		t.Fatalf("%s runs with pid %d", p.ID(), p.Pid())
	}
}

func wantCode(t *testing.T, err error, want onpath.Code) {
	t.Helper()
	if got := onpath.CodeOf(err); got != want {
		t.Errorf("error %v has code %q, want %q", err, got, want)
	}
}

func (e *exam) start(t *testing.T) {
	p := e.run(t, Program{Does: Sleep})
	running(t, p)
	if l := p.Labels(); l["tenant"] != "t" || l["plan"] != "42" {
		t.Errorf("labels = %v", l)
	}
	_, err := e.rt.Start(t.Context(), onpath.RunSpec{ID: p.ID(), Spec: e.Spec(e.Command(Program{Does: Sleep}))})
	wantCode(t, err, onpath.CodeExists)
	running(t, p)
}

// create is for drivers that can: what is created does nothing until it is
// started, holds its id, and leaves nothing when it is discarded.
func (e *exam) create(t *testing.T) {
	maker, ok := e.rt.(onpath.Creator)
	if !ok {
		t.Skip("this driver starts instances in one step")
	}
	r := onpath.RunSpec{ID: fmt.Sprintf("exam-%d", time.Now().UnixNano()%1e9), Labels: map[string]string{"tenant": "t"},
		Spec: e.Spec(e.Command(Program{Does: Print, Text: "begun"}))}
	if e.NetNS != nil {
		r.NetNS = e.NetNS(t)
	}
	for _, start := range []bool{false, true} {
		c, err := maker.Create(t.Context(), r)
		if err != nil {
			t.Fatalf("Create: %v", err)
		}
		_, err = maker.Create(t.Context(), r)
		wantCode(t, err, onpath.CodeExists)
		_, err = e.rt.Start(t.Context(), r)
		wantCode(t, err, onpath.CodeExists)
		wantCode(t, e.rt.Logs(t.Context(), r.ID, onpath.LogView{Tail: -1}, false, io.Discard), onpath.CodeNotFound)
		if found, err := e.rt.Adopt(t.Context()); err != nil || found[r.ID] != nil {
			t.Errorf("Adopt tells of what is not started: %v, %v", found, err)
		}
		if !start {
			if err := c.Discard(t.Context()); err != nil {
				t.Fatalf("Discard: %v", err)
			}
			continue // the id is free again
		}
		p, err := c.Start(t.Context())
		if err != nil {
			t.Fatalf("Start: %v", err)
		}
		running(t, p)
		if p.ID() != r.ID || p.Labels()["tenant"] != "t" {
			t.Errorf("started %q with labels %v", p.ID(), p.Labels())
		}
	}
}

func (e *exam) exit(t *testing.T) {
	p := e.run(t, Program{Does: Exit, Code: 3})
	if code := await(t, p, 10*time.Second); code != 3 {
		t.Errorf("exit code %d, want 3", code)
	}
	if err := p.Stop(t.Context(), time.Second); err != nil {
		t.Errorf("stop an ended instance: %v", err)
	}
}

func (e *exam) killed(t *testing.T) {
	p := e.run(t, Program{Does: Sleep})
	e.Kill(t, p)
	if code := await(t, p, e.Noticed); code != 137 && !e.Shared {
		t.Errorf("exit code %d after SIGKILL, want 137", code)
	}
}

func (e *exam) stop(t *testing.T) {
	p := e.run(t, Program{Does: Sleep})
	start := time.Now() // it may not have set its handler yet
	if err := p.Stop(t.Context(), 2*time.Minute); err != nil {
		t.Fatal(err)
	}
	if d := time.Since(start); d > time.Minute {
		t.Errorf("stopping took %v, though it ends on SIGTERM", d)
	}
	await(t, p, time.Second)
	if err := p.Stop(t.Context(), time.Second); err != nil {
		t.Errorf("stop twice: %v", err)
	}
	if _, err := e.rt.Exec(t.Context(), p.ID(), onpath.ExecSpec{Command: e.Command(Program{Does: Exit})}); onpath.CodeOf(err) != onpath.CodeNotFound {
		t.Errorf("exec in a stopped instance: %v", err)
	}
	again := onpath.RunSpec{ID: p.ID(), Spec: e.Spec(e.Command(Program{Does: Sleep}))}
	if e.NetNS != nil {
		again.NetNS = e.NetNS(t)
	}
	q, err := e.rt.Start(t.Context(), again)
	if err != nil {
		t.Fatalf("start again under the same id: %v", err)
	}
	running(t, q)
}

func (e *exam) stubborn(t *testing.T) {
	p := e.run(t, Program{Does: Stubborn})
	for end := time.Now().Add(time.Minute); mortal(p.Pid()) && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
	start := time.Now()
	if err := p.Stop(t.Context(), 300*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if d := time.Since(start); d < 250*time.Millisecond {
		t.Errorf("killed after %v, before its grace was over", d)
	}
	await(t, p, time.Second)
}

// mortal reports whether SIGTERM ends a process: whether it neither ignores nor handles it.
func mortal(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return false // it is a model
	}
	for line := range strings.Lines(string(b)) {
		name, mask, _ := strings.Cut(strings.TrimSpace(line), ":\t")
		if n, err := strconv.ParseUint(mask, 16, 64); (name == "SigIgn" || name == "SigCgt") && err == nil && n&(1<<(15-1)) != 0 {
			return false
		}
	}
	return true
}

func (e *exam) deaf(t *testing.T) {
	p := e.run(t, Program{Does: Deaf})
	start := time.Now()
	if err := p.Stop(t.Context(), 2*time.Minute); err != nil {
		t.Fatal(err)
	}
	if d := time.Since(start); d > time.Minute {
		t.Errorf("stopping took %v, though it cannot hear SIGTERM", d)
	}
	await(t, p, time.Second)
}

func (e *exam) logs(t *testing.T) {
	p := e.run(t, Program{Does: Print, Text: "one\ntwo\nthree"})
	show := func(v onpath.LogView) string {
		var b bytes.Buffer
		if err := e.rt.Logs(t.Context(), p.ID(), v, false, &b); err != nil {
			t.Fatalf("Logs: %v", err)
		}
		return b.String()
	}
	read := func(n int) string { return show(onpath.LogView{Tail: n}) }
	before := time.Now().Add(-time.Minute)
	deadline := time.Now().Add(time.Minute)
	for read(-1) != "one\ntwo\nthree\n" {
		if time.Now().After(deadline) {
			t.Fatalf("log is %q", read(-1))
		}
		time.Sleep(20 * time.Millisecond)
	}
	if got := read(2); got != "two\nthree\n" {
		t.Errorf("last two lines: %q", got)
	}
	if got := read(0); got != "" {
		t.Errorf("no lines: %q", got)
	}
	line, _, _ := strings.Cut(show(onpath.LogView{Tail: 2, Since: before, Timestamps: true}), "\n")
	stamp, text, _ := strings.Cut(line, " ")
	if at, err := time.Parse(time.RFC3339, stamp); err != nil || text != "two" || at.Before(before) || at.After(time.Now()) {
		t.Errorf("with times the second line is %q", line)
	}
	if got := show(onpath.LogView{Tail: -1, Since: time.Now().Add(time.Minute)}); got != "" {
		t.Errorf("since a minute from now: %q", got)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	var b bytes.Buffer
	if err := e.rt.Logs(ctx, p.ID(), onpath.LogView{Tail: 1}, true, &b); err != nil || b.String() != "three\n" {
		t.Errorf("follow: %q, %v", b.String(), err)
	}
	wantCode(t, e.rt.Logs(t.Context(), "nobody", onpath.LogView{Tail: -1}, false, &b), onpath.CodeNotFound)
}

// exec is for drivers whose instances have programs to run; others say that theirs have
// none.
func (e *exam) exec(t *testing.T) {
	p := e.run(t, Program{Does: Sleep})
	code, err := e.rt.Exec(t.Context(), p.ID(), onpath.ExecSpec{Command: e.Command(Program{Does: Exit, Code: 7})})
	if e.NoExec {
		wantCode(t, err, onpath.CodeUnsupported)
		_, err = e.rt.Exec(t.Context(), "nobody", onpath.ExecSpec{Command: []string{"true"}})
		wantCode(t, err, onpath.CodeNotFound)
		return
	}
	if err != nil || code != 7 {
		t.Errorf("exit code %d, %v; want 7", code, err)
	}
	var out bytes.Buffer
	text := strings.Repeat("to and fro\n", 5000)
	code, err = e.rt.Exec(t.Context(), p.ID(), onpath.ExecSpec{Command: e.Command(Program{Does: Cat}), Stdin: strings.NewReader(text), Stdout: &out})
	if err != nil || code != 0 || out.String() != text {
		t.Errorf("cat gave %d of %d bytes, code %d, %v", out.Len(), len(text), code, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := e.rt.Exec(ctx, p.ID(), onpath.ExecSpec{Command: e.Command(Program{Does: Stubborn})}); err == nil {
		t.Error("a command outlived its context without an error")
	}
	_, err = e.rt.Exec(t.Context(), "nobody", onpath.ExecSpec{Command: []string{"true"}})
	wantCode(t, err, onpath.CodeNotFound)
	running(t, p)
}

func (e *exam) usage(t *testing.T) {
	p := e.run(t, Program{Does: Sleep})
	if err := p.Resize(t.Context(), onpath.Resources{CPU: 700, Memory: 96 << 20}); err != nil {
		t.Errorf("Resize: %v", err)
	}
	u, err := p.Usage(t.Context())
	if err != nil || u.CPU < 0 || u.Memory < 0 {
		t.Errorf("Usage = %+v, %v", u, err)
	}
	e.Kill(t, p)
	await(t, p, e.Noticed)
	wantCode(t, p.Resize(t.Context(), onpath.Resources{CPU: 100}), onpath.CodeNotFound)
	_, err = p.Usage(t.Context())
	wantCode(t, err, onpath.CodeNotFound)
}

func (e *exam) refusals(t *testing.T) {
	for _, id := range []string{"", "../up", "a/b", "-x", strings.Repeat("x", 200)} {
		_, err := e.rt.Start(t.Context(), onpath.RunSpec{ID: id, Spec: e.Spec(e.Command(Program{Does: Sleep}))})
		wantCode(t, err, onpath.CodeInvalid)
	}
	_, err := e.rt.Start(t.Context(), onpath.RunSpec{ID: "empty"})
	wantCode(t, err, onpath.CodeUnsupported)
	all, err := e.rt.Adopt(t.Context())
	if err != nil || len(all) != 0 {
		t.Errorf("refused starts left %v, %v", all, err)
	}
}

func (e *exam) adopt(t *testing.T) {
	lives := e.run(t, Program{Does: Sleep})
	dead := e.run(t, Program{Does: Exit, Code: 5})
	dies := e.run(t, Program{Does: Sleep})
	await(t, dead, 10*time.Second)
	pid := lives.Pid()
	if err := e.rt.Close(); err != nil {
		t.Fatalf("Close: %v", err)
	}
	e.Kill(t, dies) // while nobody looks
	e.rt = e.Open(t)
	all, err := e.rt.Adopt(t.Context())
	if err != nil || len(all) != 3 {
		t.Fatalf("Adopt found %d instances, want 3; %v", len(all), err)
	}
	p := all[lives.ID()]
	running(t, p)
	if p.Pid() != pid || p.Labels()["plan"] != "42" {
		t.Errorf("adopted pid %d with labels %v, was %d", p.Pid(), p.Labels(), pid)
	}
	if code := await(t, all[dead.ID()], time.Second); code != 5 {
		t.Errorf("exit code of the dead one is %d, want 5", code)
	}
	if code := await(t, all[dies.ID()], e.Noticed); code != 137 {
		t.Errorf("exit code of the killed one is %d, want 137", code)
	}
	code, err := e.rt.Exec(t.Context(), p.ID(), onpath.ExecSpec{Command: e.Command(Program{Does: Exit, Code: 4})})
	if !e.NoExec && (code != 4 || err != nil) {
		t.Errorf("exec in an adopted instance: %d, %v", code, err)
	}
	e.Kill(t, p)
	if code := await(t, p, e.Noticed); code != 137 {
		t.Errorf("exit code %d of an adopted instance, want 137", code)
	}
	for _, p := range all {
		if err := p.Stop(t.Context(), time.Second); err != nil {
			t.Error(err)
		}
	}
	if all, err = e.rt.Adopt(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("stopped instances are still found: %v, %v", all, err)
	}
}

func (e *exam) remove(t *testing.T) {
	p := e.run(t, Program{Does: Stubborn})
	if err := e.rt.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	await(t, p, time.Second)
	e.rt = e.Open(t)
	if all, err := e.rt.Adopt(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("after Remove there are %v, %v", all, err)
	}
}
