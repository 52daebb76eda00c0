package container

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/netnsrun"
	"github.com/onpath/onpath/internal/userns"
)

// TestUsers: root of an instance with users of its own is root of its files and its network,
// and nobody outside.
func TestUsers(t *testing.T) {
	opt := machine(t)
	if err := userns.Possible(opt.StateDir); err != nil {
		t.Skipf("no users of their own: %v", err)
	}
	d := open(t, opt)
	defer d.Close()
	netns, first := filepath.Join(t.TempDir(), "net"), userns.First(12345)
	if err := userns.CreateNet(netns, first); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := netnsrun.Remove(netns); err != nil {
			t.Error(err)
		}
	}()
	for user, uid := range map[string]uint32{"": 0, "guest": 1234} {
		lay := filepath.Join(t.TempDir(), "layout")
		p, err := layout.Write(lay, empty.Index)
		if err == nil {
			err = p.AppendImage(shellImage(t, user, "ip", "chown", "mkdir"))
		}
		if err != nil {
			t.Fatal(err)
		}
		spec := onpath.FunctionSpec{Container: &onpath.ContainerSpec{Image: lay, Caps: []string{"NET_ADMIN", "NET_RAW"}, Devices: []string{"tun"},
			Env:     onpath.Env{"PATH": defaultPath},
			Command: []string{"sh", "-c", "echo begun > /dev/stdout; trap 'exit 0' TERM; while :; do sleep 1000 & wait; done"},
			Files:   map[string]onpath.File{"/etc/deep/a.conf": {Content: "a = 1", Mode: 0o600}}, Sysctls: map[string]string{"net.ipv4.ip_default_ttl": "33"}},
			Resources: onpath.Resources{Memory: 64 << 20}}
		id := "users-" + fmt.Sprint(uid)
		r := onpath.RunSpec{ID: id, Spec: spec, NetNS: netns, Secrets: map[string][]byte{"word": []byte("secret")}}
		begin := time.Now()
		proc, err := d.Start(t.Context(), r)
		if err != nil {
			t.Fatalf("%s: %v", id, err)
		}
		t.Logf("%s: create to running %v", id, time.Since(begin))
		for script, want := range map[string]string{
			"id -u":                     fmt.Sprint(uid),
			"cat /run/secrets/word":     "secret",
			"ls -ln /etc/passwd | cat":  "0 0",
			"ls -lnd / /etc/deep | cat": "0 0",
			"ip link add d0 type dummy 2>/dev/null || ip link add v0 type veth peer name v1; ip link set lo up && echo ok; ip link del v0": "ok",
			"cat /proc/sys/net/ipv4/ip_default_ttl":                "33",
			"ip tuntap add t0 mode tun && echo ok; ip link del t0": "ok",
			"cat /proc/self/uid_map":                               fmt.Sprint(first),
		} {
			if got := inside(t, d, id, script); !strings.Contains(got, want) {
				t.Errorf("%s: %s: %q, want %q", id, script, got, want)
			}
		}
		if uid == 0 {
			for script, want := range map[string]string{
				"cat /etc/deep/a.conf": "a = 1",
				"echo b > /etc/deep/b && mkdir /new && chown 1234 /etc/deep/b && ls -ln /etc/deep/b": "1234 0",
				"echo c >> /etc/passwd && ls -ln /etc/passwd":                                        "0 0",
			} {
				if got := inside(t, d, id, script); !strings.Contains(got, want) {
					t.Errorf("%s: %s: %q, want %q", id, script, got, want)
				}
			}
		}
		status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", proc.Pid()))
		if want := fmt.Sprintf("Uid:\t%[1]d\t%[1]d\t%[1]d\t%[1]d\nGid:\t%[1]d", first+uid); !strings.Contains(string(status), want) {
			t.Errorf("%s: outside it is not %d:\n%s", id, first+uid, status)
		}
		var out bytes.Buffer
		for end := time.Now().Add(time.Minute); !strings.Contains(out.String(), "begun") && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			out.Reset()
			if err := d.Logs(t.Context(), id, onpath.LogView{Tail: -1}, false, &out); err != nil {
				t.Fatal(err)
			}
		}
		if out.String() != "begun\n" {
			t.Errorf("%s: what it printed: %q", id, out.String())
		}
		out.Reset()
		if code, err := d.Exec(t.Context(), id, onpath.ExecSpec{Command: []string{"sh", "-c", "id -u > /dev/tty; exit 7"}, TTY: true,
			Stdin: strings.NewReader(""), Stdout: &out}); code != 7 || err != nil || !strings.Contains(out.String(), fmt.Sprint(uid)) {
			t.Errorf("%s: terminal: code %d, %v, %q", id, code, err, out.String())
		}
		d2 := open(t, opt) // another agent takes it over
		found, err := d2.Adopt(context.Background())
		if err != nil || found[id] == nil || found[id].Pid() != proc.Pid() {
			t.Errorf("%s: taken over: %v, %v", id, found, err)
		}
		d2.Close()
		if err := proc.Stop(t.Context(), time.Second); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(d.instanceDir(id)); err == nil {
			t.Errorf("%s: %s is left", id, d.instanceDir(id))
		}
	}
}
