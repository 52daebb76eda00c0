package lab

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onpath/onpath"
)

var labs atomic.Int32

// uniqueName is a lab's name that no other test on this machine uses.
func uniqueName() string { return fmt.Sprintf("ot-lab-%d-%d", os.Getpid(), labs.Add(1)) }

func needsRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: it makes network namespaces")
	}
}

func parse(t testing.TB, text string) *Topology {
	t.Helper()
	topology, err := Parse(strings.NewReader(text), "test.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return topology
}

// up starts a lab and takes it down with the test.
func up(t testing.TB, topology *Topology, o Options) *Lab {
	t.Helper()
	needsRoot(t)
	if o.Name == "" {
		o.Name = uniqueName()
	}
	if o.StateDir == "" {
		o.StateDir = t.TempDir()
	}
	o.Log = slog.New(slog.NewTextHandler(testWriter{t}, &slog.HandlerOptions{Level: slog.LevelInfo}))
	l, err := Up(t.Context(), topology, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Down(context.Background()); err != nil && onpath.CodeOf(err) != onpath.CodeNotFound {
			t.Error("down:", err)
		}
	})
	return l
}

type testWriter struct{ t testing.TB }

func (w testWriter) Write(b []byte) (int, error) {
	w.t.Log(strings.TrimSpace(string(b)))
	return len(b), nil
}

func run(t testing.TB, l *Lab, host string, command ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, err := l.Exec(ctx, host, command[0], command[1:]...)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// emulations are those that this machine can do.
func emulations(t *testing.T) []string {
	if err := ProbeNetem(); err != nil {
		if onpath.CodeOf(err) != onpath.CodeUnsupported {
			t.Fatal(err)
		}
		return []string{EmulateRelay}
	}
	return []string{EmulateRelay, EmulateNetem}
}

func TestQuickstart(t *testing.T) {
	topology, err := ParseFile("../examples/lab/quickstart.yaml")
	if err != nil {
		t.Fatal(err)
	}
	core := topology.Links[3]
	low := 2 * time.Duration(core.There.Delay)
	for _, e := range emulations(t) {
		t.Run(e, func(t *testing.T) {
			l := up(t, topology, Options{Emulation: e})
			for _, to := range []string{"10.9.0.2", "fd09::2"} {
				run(t, l, "client1", "ping", "-c1", "-w20", to)
				trip := echoUDP(t, l, "client1", "origin", to)
				for n, until := 1, time.Now().Add(time.Minute); ; n++ { // a busy machine makes trips longer
					d := trip()
					if d < low || time.Now().After(until) {
						t.Fatalf("round trip %d to %s takes %s; the link of %s:%s has %s", n, to, d, core.A, core.B, low)
					}
					if n >= 3 && d < low*3/2 {
						break
					}
				}
			}
			run(t, l, "node1", "ping", "-c1", "-w5", "10.1.0.12")
			run(t, l, "node2", "ping", "-c1", "-w5", "fd09::2")
			if out := run(t, l, "node1", "hostname"); out != "node1\n" {
				t.Errorf("host name is %q", out)
			}
			s, err := l.Status(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if link := s.Links[3]; link.Kind != e || link.There.Packets < 8 || link.Back.Packets < 8 || link.There.Dropped != 0 {
				t.Errorf("status of the shaped link: %+v", link)
			}
			if h := s.Hosts[2]; h.Name != "gw1" || len(h.Interfaces) != 4 || !h.Interfaces[1].Up || h.Interfaces[1].Addresses[0].String() != "10.1.0.1/24" {
				t.Errorf("status of gw1: %+v", h)
			}
		})
	}
}

// echoUDP gives a function that measures a round trip between hosts, by the clock that
// nobody sets. Whatever waits makes it longer.
func echoUDP(t *testing.T, l *Lab, from, to, address string) func() time.Duration {
	t.Helper()
	var server *net.UDPConn
	var client net.Conn
	err := inNetNS(l.NetNS(to), func() (err error) {
		server, err = net.ListenUDP("udp", &net.UDPAddr{IP: net.ParseIP(address), Port: 7})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	go func() {
		for b := make([]byte, 64); ; {
			n, back, err := server.ReadFromUDPAddrPort(b)
			if err != nil {
				return
			}
			_, _ = server.WriteToUDPAddrPort(b[:n], back)
		}
	}()
	err = inNetNS(l.NetNS(from), func() (err error) {
		client, err = net.Dial("udp", net.JoinHostPort(address, "7"))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return func() time.Duration {
		t.Helper()
		began := time.Now()
		_ = client.SetDeadline(began.Add(time.Minute))
		if _, err := client.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if _, err := client.Read(make([]byte, 64)); err != nil {
			t.Fatal(err)
		}
		return time.Since(began)
	}
}

// TestPrivateMounts: two hosts with mounts of their own share nothing but the
// network.
func TestPrivateMounts(t *testing.T) {
	share := t.TempDir() // below /tmp, which the hosts have for themselves
	if err := os.WriteFile(share+"/file", []byte("shared"), 0o644); err != nil {
		t.Fatal(err)
	}
	l := up(t, parse(t, fmt.Sprintf(`
hosts:
  one: {mounts: private, share: [%q], interfaces: {eth0: [10.0.0.1/24]}}
  two: {mounts: private, interfaces: {eth0: [10.0.0.2/24]}}
links: [{a: one, b: two}]`, share)), Options{})
	for _, dir := range []string{"/run", "/tmp", "/var/lib/onpath", "/dev/shm", "/sys/fs/bpf"} {
		run(t, l, "one", "mkdir", dir+"/onpath-lab-test")
		if _, err := os.Stat(dir + "/onpath-lab-test"); err == nil {
			t.Errorf("what host one made in %s is seen outside", dir)
		}
		if _, err := l.Exec(t.Context(), "two", "ls", dir+"/onpath-lab-test"); err == nil {
			t.Errorf("what host one made in %s is seen in host two", dir)
		}
		run(t, l, "one", "ls", dir+"/onpath-lab-test") // another process in the same host
	}
	if out := run(t, l, "one", "ls", "/sys/class/net"); out != "eth0\nlo\n" {
		t.Errorf("/sys shows the devices %q", out)
	}
	if out := run(t, l, "one", "cat", share+"/file"); out != "shared" {
		t.Errorf("a shared path holds %q", out)
	}
	if out := run(t, l, "one", "cat", "/proc/self/mountinfo"); strings.Contains(out, ".net ") {
		t.Errorf("a host's mounts hold namespaces:\n%s", out)
	}
	run(t, l, "one", "ls", "/sys/fs/cgroup/")
	run(t, l, "one", "mount", "-t", "tmpfs", "x", "/mnt")
	if out, _ := os.ReadFile("/proc/self/mountinfo"); strings.Contains(string(out), " /mnt ") {
		t.Error("a mount in a host is seen outside")
	}
	run(t, l, "one", "ping", "-c1", "-w5", "10.0.0.2")
}

// TestPathsMissing: paths that the machine lacks are refused, all of them, before
// anything is made.
func TestPathsMissing(t *testing.T) {
	needsRoot(t)
	dir := t.TempDir()
	file := dir + "/file"
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	topology := parse(t, fmt.Sprintf("hosts: {one: {mounts: private, private: [%[1]s/none, %[1]s/file, /run], share: [%[1]s/gone, %[1]s/file]}}", dir))
	_, err := Up(t.Context(), topology, Options{Name: "lacking", StateDir: dir + "/labs", Progress: func(step string, _, _ int) { t.Errorf("step %q was begun", step) }})
	if err == nil || onpath.CodeOf(err) != onpath.CodeInvalid {
		t.Fatalf("up: %v", err)
	}
	want := []string{
		"hosts.one.private: " + dir + "/none is not there on this machine; make it first (mkdir -p " + dir + "/none); what the host puts there stays its own",
		"hosts.one.private: " + file + " is no directory on this machine; name a directory",
		"hosts.one.share: " + dir + "/gone is not there on this machine; make it first, or take it out",
	}
	if err.Error() != strings.Join(want, "\n") {
		t.Errorf("up:\n%v", err)
	}
	if _, err := os.Stat(dir + "/labs"); err == nil {
		t.Error("a state directory was made")
	}
}

// A machine that is itself in a mount namespace, made on either processor.
func TestPrivateMountsInside(t *testing.T) {
	needsRoot(t)
	times := "1"
	if os.Getenv("ONPATH_SOAK") != "" {
		times = "3"
	}
	for cpu := range min(runtime.NumCPU(), 4) {
		cmd := exec.CommandContext(t.Context(), "taskset", "-c", strconv.Itoa(cpu), "unshare", "--mount",
			"taskset", "-c", "0-"+strconv.Itoa(runtime.NumCPU()-1), os.Args[0], "-test.run=^TestPrivateMounts$", "-test.count="+times)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("in a mount namespace made on processor %d: %v\n%s", cpu, err, out)
		}
	}
}

func TestCommandsSysctlsRoutes(t *testing.T) {
	l := up(t, parse(t, `
hosts:
  a:
    interfaces: {eth0: {addresses: [10.0.0.1/24], mac: "02:00:00:00:00:01"}, lo: [192.0.2.1/32]}
    routes: [{to: default, via: 10.0.0.2}, {to: "2001:db8::/32", device: eth0}]
    sysctls: {net.ipv4.tcp_sack: 0, net.ipv4.conf.eth0.rp_filter: 2}
    commands:
    - {name: say, run: [sh, -c, "echo $GREETING from $(hostname) in $PWD; exec sleep 1000"], env: {GREETING: hello}, directory: /usr}
    - {name: ended, run: [sh, -c, "echo ended; exit 3"]}
  b: {interfaces: {eth0: [10.0.0.2/24]}, routes: auto}
links: [{a: a, b: b, mtu: 1400, offloads: off}]`), Options{IPNetNS: true})
	if out := run(t, l, "a", "cat", "/proc/sys/net/ipv4/tcp_sack", "/proc/sys/net/ipv4/conf/eth0/rp_filter", "/sys/class/net/lo/mtu"); !strings.HasPrefix(out, "0\n2\n") {
		t.Errorf("sysctls are %q", out)
	}
	out := run(t, l, "a", "sh", "-c", "ip -4 route; ip -6 route; ip link show eth0; ethtool -k eth0")
	for _, want := range []string{"default via 10.0.0.2 dev eth0", "2001:db8::/32 dev eth0", "mtu 1400", "02:00:00:00:00:01", "tx-checksumming: off", "tcp-segmentation-offload: off"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	run(t, l, "b", "ping", "-c1", "-w5", "192.0.2.1") // an automatic route to an address on lo
	s, err := l.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Processes) != 2 || !s.Processes[0].Running || s.Processes[0].Host != "a" {
		t.Fatalf("processes: %+v", s.Processes)
	}
	eventually(t, func() error {
		log, _ := os.ReadFile(s.Processes[0].Log)
		ended, _ := os.ReadFile(s.Processes[1].Log)
		if string(log) != "hello from a in /usr\n" || string(ended) != "ended\n" {
			return fmt.Errorf("logs are %q and %q", log, ended)
		}
		return nil
	})
	if out, err := exec.Command("ip", "netns", "exec", l.Name()+"-a", "ip", "-br", "address").CombinedOutput(); err != nil || !strings.Contains(string(out), "10.0.0.1/24") {
		t.Errorf("ip netns: %v: %s", err, out)
	}
	pid := s.Processes[0].PID
	if err := l.Down(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := identify(pid); err == nil {
		t.Errorf("process %d outlived the lab", pid)
	}
	if _, err := os.Stat("/run/netns/" + l.Name() + "-a"); err == nil {
		t.Error("a name in /run/netns is left")
	}
}

func eventually(t testing.TB, check func() error) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func TestExecErrors(t *testing.T) {
	l := up(t, parse(t, "hosts: {one: , two: {mounts: private}}\nlinks: [{a: one, b: two}]"), Options{})
	if _, err := l.Exec(t.Context(), "three", "true"); onpath.CodeOf(err) != onpath.CodeNotFound || !strings.Contains(err.Error(), "it has one, two") {
		t.Errorf("unknown host: %v", err)
	}
	_, err := l.Exec(t.Context(), "one", "no-such-program")
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 127 {
		t.Errorf("unknown program: %v", err)
	}
	_, err = l.Exec(t.Context(), "two", "sh", "-c", "echo wrong >&2; exit 3")
	if !errors.As(err, &exit) || exit.ExitCode() != 3 || !strings.Contains(err.Error(), "wrong") {
		t.Errorf("failing program: %v", err)
	}
}
