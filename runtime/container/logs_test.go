package container

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/boundlog"
)

// logSize is what an instance's log takes on disk.
func logSize(t *testing.T, d *Driver, id string) (sum int64) {
	t.Helper()
	files, err := filepath.Glob(d.logFile(id) + "*")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if info, err := os.Stat(f); err == nil {
			sum += info.Size()
		}
	}
	return sum
}

// waitLog waits until the end of a log says something.
func waitLog(t *testing.T, d *Driver, id, what string) {
	t.Helper()
	var log bytes.Buffer
	for range 1200 {
		log.Reset()
		if err := d.Logs(t.Context(), id, onpath.LogView{Tail: -1}, false, &log); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(log.String(), what) {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Fatalf("the log never says %q; its end: %q", what, log.Bytes()[max(0, log.Len()-300):])
}

// TestLogBound: a program that prints without end fills no disk, with an agent and
// without one, and goes on.
func TestLogBound(t *testing.T) {
	opt := machine(t)
	opt.MaxLog = 1 << 20
	d := open(t, opt)
	p := startSpec(t, d, "chatty", hostSpec([]string{"sh", "-c", "echo first; yes a rather ordinary line"}), "")
	defer func() { _ = p.Stop(context.Background(), 0) }()
	// log, log.1, their times, and the note of what is left out
	limit := 2*opt.MaxLog + 2*opt.MaxLog/boundlog.TimesShare + 200
	bounded := func(when string) {
		t.Helper()
		for range 1000 {
			if size := logSize(t, d, "chatty"); size > limit {
				t.Fatalf("%s the log takes %d bytes; %d is the bound", when, size, limit)
			}
			time.Sleep(time.Millisecond)
		}
	}
	// more waits until more of the log is left out.
	more := func(than int64) {
		t.Helper()
		for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			if sum, _ := p.(onpath.Talkative).LeftOut(); sum > than {
				return
			}
		}
	}
	bounded("with an agent")
	more(0)
	if sum, why := p.(onpath.Talkative).LeftOut(); sum == 0 || !strings.Contains(why, "more than 4 MiB a second") {
		t.Errorf("left out: %d bytes, %q", sum, why)
	}
	waitLog(t, d, "chatty", " bytes are left out here: it writes more than 4 MiB a second\na rather ordinary line\n")
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	before, _ := p.(onpath.Talkative).LeftOut()
	bounded("without an agent")
	more(before)
	if sum, _ := p.(onpath.Talkative).LeftOut(); sum <= before {
		t.Errorf("without an agent it does not go on: %d, then %d bytes left out", before, sum)
	}
	if err := syscall.Kill(p.Pid(), 0); err != nil {
		t.Errorf("the program is gone: %v", err)
	}
	d = open(t, opt)
	defer d.Close()
	found, err := d.Adopt(t.Context())
	if err != nil || found["chatty"] == nil {
		t.Fatalf("adopted: %v, %v", found, err)
	}
	p = found["chatty"]
	bounded("with the next agent")
}

// TestLogDiskFull: a full disk takes nothing but lines; neither the program nor its
// log stops with it.
func TestLogDiskFull(t *testing.T) {
	opt := machine(t)
	opt.MaxLog = 64 << 10
	disk := filepath.Join(opt.StateDir, "instances")
	if err := os.Mkdir(disk, 0o711); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", disk, "tmpfs", 0, "size=1m"); err != nil { // goes with the driver's folders
		t.Fatal(err)
	}
	d := open(t, opt)
	defer d.Close()
	p := startSpec(t, d, "steady", hostSpec([]string{"sh", "-c", "i=0; while :; do i=$((i+1)); echo line $i of a log that is kept; sleep 0.001; done"}), "")
	defer func() { _ = p.Stop(context.Background(), 0) }()
	waitLog(t, d, "steady", "line 100 ")
	ballast := filepath.Join(disk, "ballast")
	_ = os.WriteFile(ballast, make([]byte, 2<<20), 0o600) // as much as fits
	for until := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		if sum, why := p.(onpath.Talkative).LeftOut(); sum > 0 {
			if why != "no space left on device" {
				t.Errorf("left out because of %q", why)
			}
			break
		}
		if time.Now().After(until) {
			t.Fatal("nothing is left out of the log on a full disk")
		}
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	waitLog(t, d, "steady", " bytes are left out here: no space left on device\nline ")
}

// TestFollowRotation: who follows a log misses no line where files change.
func TestFollowRotation(t *testing.T) {
	opt := machine(t)
	opt.MaxLog = 100_000
	d := open(t, opt)
	defer d.Close()
	const lines = 20_000
	p := startSpec(t, d, "chatty", hostSpec([]string{"sh", "-c", "read x < /dev/null; sleep 0.5; i=0; while [ $i -lt " + strconv.Itoa(lines) +
		" ]; do i=$((i+1)); echo line $i; [ $((i % 500)) = 0 ] && sleep 0.05; done; sleep 1000"}), "")
	defer func() { _ = p.Stop(context.Background(), 0) }()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	want := fmt.Sprintf("line %d\n", lines)
	follow := &until{end: want, found: cancel}
	if err := d.Logs(ctx, "chatty", onpath.LogView{Tail: -1}, true, follow); err != nil {
		t.Fatal(err)
	}
	got := strings.SplitAfter(follow.got.String(), "\n")
	for i, l := range got[:len(got)-1] {
		if l != fmt.Sprintf("line %d\n", i+1) {
			t.Fatalf("line %d that was followed is %q", i+1, l)
		}
	}
	if len(got)-1 != lines {
		t.Errorf("%d lines followed of %d", len(got)-1, lines)
	}
	var last bytes.Buffer
	if err := d.Logs(t.Context(), "chatty", onpath.LogView{Tail: 3}, false, &last); err != nil || last.String() != fmt.Sprintf("line %d\nline %d\n", lines-2, lines-1)+want {
		t.Errorf("last lines %q, %v", last.String(), err)
	}
	if former, err := os.Stat(d.logFile("chatty") + ".1"); err != nil || former.Size() != opt.MaxLog {
		t.Errorf("the former file: %v, %v", former, err)
	}
}

// until collects, and tells when it ends with something.
type until struct {
	got   bytes.Buffer
	end   string
	found func()
}

func (u *until) Write(p []byte) (int, error) {
	n, err := u.got.Write(p)
	if bytes.HasSuffix(u.got.Bytes(), []byte(u.end)) {
		u.found()
	}
	return n, err
}

// TestLogOlder: the log of an instance that an earlier version started, which its
// shim writes, is emptied when it is too large.
func TestLogOlder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	shim, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer shim.Close()
	for _, c := range []struct{ write, left int64 }{{100, 100}, {1, 0}, {30, 30}} {
		if _, err := shim.Write(make([]byte, c.write)); err != nil {
			t.Fatal(err)
		}
		if err := emptyAbove(path, 100); err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(path); err != nil || info.Size() != c.left {
			t.Errorf("after %d bytes more: %v, %v", c.write, info.Size(), err)
		}
	}
	if err := emptyAbove(path+"-gone", 1); err != nil {
		t.Error(err)
	}
}
