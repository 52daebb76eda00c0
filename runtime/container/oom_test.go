package container

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
)

// TestOOMScore: instances and what runs inside do not inherit what keeps the kernel
// from ending the agent; what they cannot do without does.
func TestOOMScore(t *testing.T) {
	opt := machine(t)
	score := func(pid string) string {
		data, err := os.ReadFile("/proc/" + pid + "/oom_score_adj")
		if err != nil {
			t.Error(err)
		}
		return strings.TrimSpace(string(data))
	}
	set := func(to string) error { return os.WriteFile("/proc/self/oom_score_adj", []byte(to), 0) }
	was, own := score("self"), -900 // as packaging/systemd/onpath-node.service has it
	if set(strconv.Itoa(own)) != nil {
		own = 50 // whoever lacks CAP_SYS_RESOURCE can only raise it, and take that back
		if err := set(strconv.Itoa(own)); err != nil {
			t.Fatal(err)
		}
	}
	defer func() {
		if err := set(was); err != nil {
			t.Error(err)
		}
	}()
	d := open(t, opt)
	defer d.Close()
	p := startSpec(t, d, "oom", hostSpec(sleep), "")
	defer func() { _ = p.Stop(context.Background(), 0) }()
	if got := score(strconv.Itoa(p.Pid())); got != "100" {
		t.Errorf("the instance's is %s", got)
	}
	if got := inside(t, d, "oom", "cat /proc/self/oom_score_adj"); got != "100" {
		t.Errorf("that of a command inside is %s", got)
	}
	status := procStatus(strconv.Itoa(p.Pid()))
	for what, pid := range map[string]string{"containerd": strconv.Itoa(d.private.pid()), "the shim": status["PPid"], "the log": logKeeper(t, d, "oom")} {
		if n, err := strconv.Atoi(score(pid)); err != nil || n > own+1 { // containerd gives its shims one more
			t.Errorf("that of %s, process %s, is %d, %v", what, pid, n, err)
		}
	}
}

// logKeeper is the process that keeps an instance's log.
func logKeeper(t *testing.T, d *Driver, id string) string {
	t.Helper()
	list, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		pid, err := strconv.Atoi(e.Name())
		if err == nil && strings.Contains(string(commandLine(pid)), fmt.Sprintf("%d:%s", d.opt.MaxLog, d.instanceDir(id))) {
			return e.Name()
		}
	}
	t.Fatal("nobody keeps the log")
	return ""
}
