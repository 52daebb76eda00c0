// Package demo_test runs the demonstration as a user does, whole, interrupted and killed.
package demo_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/onpath/onpath/demo"
)

// need skips where the demonstration cannot run, and gives the program and its images.
func need(t *testing.T) (bin, images string) {
	t.Helper()
	if os.Getenv("ONPATH_SOAK") == "" {
		t.Skip("ONPATH_SOAK is not set; it takes two minutes and needs the images")
	}
	if os.Getuid() != 0 {
		t.Skip("needs root for network namespaces")
	}
	bin = os.Getenv("ONPATH_BIN")
	if bin == "" {
		bin = "../../bin/onpath"
	}
	images, err := filepath.Abs("../../bin/images")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{bin, filepath.Join(images, "cache")} {
		if _, err := os.Stat(file); err != nil {
			t.Fatalf("make images first: %v", err)
		}
	}
	return bin, images
}

// TestDemo: what it promises is seen, within the time that it promises, and nothing is
// left behind.
func TestDemo(t *testing.T) {
	bin, images := need(t)
	dir := filepath.Join(t.TempDir(), "d")
	figures := filepath.Join(t.TempDir(), "figures.json")
	before, began := left(t), time.Now()
	if out, err := command(bin, "demo", "--dir", dir, "--images", images, "--json", figures).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	took := time.Since(began)
	var r demo.Report
	data, err := os.ReadFile(figures)
	if err == nil {
		err = json.Unmarshal(data, &r)
	}
	if err != nil {
		t.Fatal(err)
	}
	if missing := r.Failed(); len(missing) > 0 || len(r.Checks) < 10 {
		t.Errorf("of %d effects were not seen: %q", len(r.Checks), missing)
	}
	if r.TrafficAfter > 20*time.Second || took > 2*time.Minute {
		t.Errorf("traffic after %s, all in %s; must be within 20 s and two minutes", r.TrafficAfter, took)
	}
	same(t, before, left(t))
}

// interrupted is the exit code after a signal to end, whichever it was.
const interrupted = 130

// TestDemoTrust: strangers get what is theirs, and who watches the log sees it.
func TestDemoTrust(t *testing.T) {
	bin, _ := need(t)
	before := left(t)
	if out, err := command(bin, "demo", "trust", "--dir", filepath.Join(t.TempDir(), "d")).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	same(t, before, left(t))
}

// TestDemoCDN: a crowd is served at the edge, all its bytes are right, and nothing is left.
func TestDemoCDN(t *testing.T) {
	bin, _ := need(t)
	before, began := left(t), time.Now()
	if out, err := command(bin, "demo", "cdn", "--dir", filepath.Join(t.TempDir(), "d")).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if took := time.Since(began); took > 2*time.Minute {
		t.Errorf("it took %s; must be within two minutes", took)
	}
	same(t, before, left(t))
}

// TestDemoAnywhere: a firewall stands before a machine behind NAT, and nothing crosses in clear.
func TestDemoAnywhere(t *testing.T) {
	if os.Getenv("ONPATH_SOAK") == "" {
		t.Skip("ONPATH_SOAK is not set; it takes half a minute")
	}
	bin, _ := need(t)
	before := left(t)
	if out, err := command(bin, "demo", "anywhere", "--dir", filepath.Join(t.TempDir(), "d")).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	same(t, before, left(t))
}

// TestDemoPair: nothing crosses in clear, whichever half is killed, and little crosses twice.
func TestDemoPair(t *testing.T) {
	bin, images := need(t)
	before := left(t)
	args := []string{"demo", "pair", "--images", images, "--dir", filepath.Join(t.TempDir(), "d")}
	if out, err := command(bin, args...).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	same(t, before, left(t))
}

// TestDemoFromHome: a demonstration whose containers run the program itself works from a
// closed folder, and from one that containers of the machine's own programs do not see.
func TestDemoFromHome(t *testing.T) {
	bin, _ := need(t)
	home := filepath.Join(t.TempDir(), "home")
	if err := os.Mkdir(home, 0o700); err != nil {
		t.Fatal(err)
	}
	there := filepath.Join(home, "onpath")
	if out, err := exec.Command("cp", bin, there).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	before := left(t)
	out, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	cmd := command(there, "demo", "scale", "--dir", filepath.Join(t.TempDir(), "d"))
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	steered := false
	for began := time.Now(); !steered && time.Since(began) < 90*time.Second; time.Sleep(100 * time.Millisecond) {
		said, _ := os.ReadFile(out.Name())
		steered = strings.Contains(string(said), "load 164 requests a second")
		if strings.Contains(string(said), "it failed") {
			break
		}
	}
	_ = cmd.Process.Signal(syscall.SIGINT)
	_ = cmd.Wait()
	if !steered {
		said, _ := os.ReadFile(out.Name())
		t.Errorf("the chain never carried traffic:\n%s", said)
	}
	same(t, before, left(t))
}

// TestDemoConsole: a demonstration that is kept with its console says where the next address
// is once the first one was used, and that one lets in.
func TestDemoConsole(t *testing.T) {
	bin, _ := need(t)
	dir := filepath.Join(t.TempDir(), "d")
	out, err := command(bin, "demo", "module", "--console", "--dir", dir).CombinedOutput()
	defer func() {
		if said, err := command(bin, "demo", "--down", "--dir", dir).CombinedOutput(); err != nil {
			t.Errorf("--down: %v\n%s", err, said)
		}
	}()
	log := filepath.Join(dir, "console.log")
	if err != nil || !strings.Contains(string(out), "the next one is written to "+log) {
		t.Fatalf("%v\n%s", err, out)
	}
	address := regexp.MustCompile(`http://127\S+`)
	first := address.FindString(string(out))
	for i, want := range []int{http.StatusOK, http.StatusForbidden, http.StatusOK} {
		if i == 2 {
			said, err := os.ReadFile(log)
			if err != nil {
				t.Fatal(err)
			}
			all := address.FindAllString(string(said), -1)
			first = all[len(all)-1]
		}
		r, err := http.Get(first)
		if err != nil {
			t.Fatal(err)
		}
		_ = r.Body.Close()
		if r.StatusCode != want {
			t.Errorf("try %d: %s, must be %d", i, r.Status, want)
		}
	}
}

// TestDemoInterrupted: Ctrl-C removes everything, whenever it comes; what a crash leaves,
// --down removes, while the demonstration's server and agents still run.
func TestDemoInterrupted(t *testing.T) {
	bin, images := need(t)
	for _, c := range []struct {
		name   string
		after  time.Duration
		signal syscall.Signal
	}{
		{"at once", 300 * time.Millisecond, syscall.SIGINT},
		{"as it starts", 4 * time.Second, syscall.SIGTERM},
		{"at work", 15 * time.Second, syscall.SIGINT},
		{"crash", 15 * time.Second, syscall.SIGKILL},
		{"early crash", 2 * time.Second, syscall.SIGKILL},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "d")
			before := left(t)
			var out bytes.Buffer
			cmd := command(bin, "demo", "--dir", dir, "--images", images)
			cmd.Stdout, cmd.Stderr = &out, &out
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(c.after)
			if err := cmd.Process.Signal(c.signal); err != nil {
				t.Fatal(err)
			}
			err := cmd.Wait()
			var exit *exec.ExitError
			switch {
			case !errors.As(err, &exit):
				t.Errorf("it ended with %v\n%s", err, out.String())
			case c.signal == syscall.SIGKILL:
				if said, err := command(bin, "demo", "--down", "--dir", dir).CombinedOutput(); err != nil {
					t.Errorf("--down: %v\n%s", err, said)
				}
			case exit.ExitCode() != interrupted:
				t.Errorf("exit code %d, must be %d\n%s", exit.ExitCode(), interrupted, out.String())
			}
			if strings.Contains(out.String(), "context canceled") || strings.Contains(out.String(), "panic") {
				t.Errorf("it said\n%s", out.String())
			}
			same(t, before, left(t))
		})
	}
}

// command is one with a group of its own: what is sent to the test does not reach it.
func command(bin string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(context.Background(), bin, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return cmd
}

// left is what a demonstration has while it runs: network namespaces that a process or a
// name holds, mounts and labs of ours, links, and processes.
func left(t *testing.T) (all []string) {
	t.Helper()
	spaces := map[string]bool{}
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, d := range dirs {
		if ns, err := os.Readlink(d + "/ns/net"); err == nil {
			spaces[ns] = true
		}
		line, _ := os.ReadFile(d + "/cmdline")
		name := filepath.Base(strings.SplitN(string(line), "\x00", 2)[0])
		if name == "onpath" || strings.HasPrefix(name, "containerd") {
			all = append(all, "process "+filepath.Base(d)+" "+strings.ReplaceAll(string(line), "\x00", " "))
		}
	}
	all = append(all, "namespaces "+strconv.Itoa(len(spaces)))
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	for l := range strings.Lines(string(mounts)) {
		if f := strings.Fields(l); len(f) > 4 && (strings.Contains(l, "onpath") || strings.Contains(l, " nsfs ")) {
			all = append(all, "mount "+f[4])
		}
	}
	for _, dir := range []string{"/run/onpath", "/run/onpath/lab", "/run/netns", "/sys/fs/bpf/onpath", "/sys/class/net"} {
		entries, _ := os.ReadDir(dir)
		for _, e := range entries {
			all = append(all, filepath.Join(dir, e.Name()))
		}
	}
	slices.Sort(all)
	return all
}

// same gives the kernel a moment for what it clears away by itself.
func same(t *testing.T, before, after []string) {
	t.Helper()
	for until := time.Now().Add(time.Minute); !slices.Equal(before, after) && time.Now().Before(until); after = left(t) {
		time.Sleep(100 * time.Millisecond)
	}
	for _, l := range after {
		if !slices.Contains(before, l) {
			t.Errorf("left behind: %s", l)
		}
	}
}
