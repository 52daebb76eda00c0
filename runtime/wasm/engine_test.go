package wasm

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/funcbuild"
	"github.com/onpath/onpath/internal/netnsrun"
	"github.com/onpath/onpath/internal/offload"
	"github.com/onpath/onpath/internal/testprogram"
)

var (
	nodeMAC     = net.HardwareAddr{2, 0, 0, 0, 0, 1}
	instanceMAC = net.HardwareAddr{2, 0, 0, 0, 0, 2}
)

// namespaces makes an instance's network namespace as the agent does, with 10.9.0.2, and
// one at the other end of its device, with 10.9.0.1, from where all else of 10.9.0.0/24
// lies behind the instance.
func namespaces(t *testing.T) (node, instance string) {
	t.Helper()
	node, instance = filepath.Join(t.TempDir(), "node"), filepath.Join(t.TempDir(), "instance")
	for _, ns := range []string{node, instance} {
		if err := netnsrun.Create(ns); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = netnsrun.Remove(ns) })
	}
	there, err := netns.GetFromPath(instance)
	if err != nil {
		t.Fatal(err)
	}
	defer there.Close()
	err = netnsrun.Do(node, func() error {
		a := netlink.NewLinkAttrs()
		a.Name, a.HardwareAddr = "v0", nodeMAC
		veth := &netlink.Veth{LinkAttrs: a, PeerName: device, PeerHardwareAddr: instanceMAC, PeerNamespace: netlink.NsFd(int(there))}
		return errors.Join(netlink.LinkAdd(veth), offload.Disable("v0", offload.CompleteFrames))
	})
	for _, end := range []struct{ ns, dev, addr, neighbour string }{
		{instance, device, "10.9.0.2/24", "10.9.0.1"}, {node, "v0", "10.9.0.1/24", "10.9.0.3"},
	} {
		if err == nil {
			err = netnsrun.Do(end.ns, func() error { return bringUp(end.dev, end.addr, end.neighbour) })
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return node, instance
}

func bringUp(dev, addr, neighbour string) error {
	l, err := netlink.LinkByName(dev)
	if err != nil {
		return err
	}
	lo, _ := netlink.LinkByName("lo")
	a, _ := netlink.ParseAddr(addr)
	mac := instanceMAC
	if dev == device {
		mac = nodeMAC
	}
	err = errors.Join(netlink.LinkSetUp(lo), netlink.AddrAdd(l, a), netlink.LinkSetUp(l),
		netlink.NeighSet(&netlink.Neigh{LinkIndex: l.Attrs().Index, State: netlink.NUD_PERMANENT, IP: net.ParseIP(neighbour), HardwareAddr: mac}))
	for range 500 { // before the kernel sees the carrier it drops
		if l, lerr := netlink.LinkByName(dev); err != nil || lerr != nil || dev == device || l.Attrs().OperState == netlink.OperUp {
			return errors.Join(err, lerr)
		}
		time.Sleep(10 * time.Millisecond)
	}
	return errors.New(dev + " does not come up")
}

// TestEngine: an engine of the real program takes packets in its isolation, and has
// nothing that it should not have.
func TestEngine(t *testing.T) {
	opt := options(t)
	opt.Program = testprogram.Path(t)
	code, err := funcbuild.Compile(t.Context(), "../../engine/testdata/dns.c", funcbuild.ToWasm)
	if errors.Is(err, funcbuild.ErrLacking) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	node, instance := namespaces(t)
	d, err := New(opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Remove(context.Background()); err != nil {
			t.Error(err)
		}
	})
	spec := onpath.FunctionSpec{
		Wasm:      &onpath.WasmSpec{Modules: []onpath.WasmModule{{Name: "dns", Code: code, Config: onpath.Env{"port": "53"}}}},
		Resources: onpath.Resources{CPU: 500, Memory: 64 << 20}, Packets: onpath.PacketsKeep,
	}
	began := time.Now()
	p, err := d.Start(t.Context(), onpath.RunSpec{ID: "one", Labels: map[string]string{"tenant": "a"}, Spec: spec, NetNS: instance})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("started in %s", time.Since(began))
	t.Cleanup(func() {
		var b bytes.Buffer
		_ = d.Logs(context.Background(), "one", onpath.LogView{Tail: -1}, false, &b)
		t.Logf("log:\n%s", &b)
	})
	send(t, node, "10.9.0.3:53", 5)
	send(t, node, "10.9.0.3:54", 5)
	for range 200 {
		if st, err := d.Control("one").Status(t.Context()); err == nil && st.Received >= 10 {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	st, err := d.Control("one").Status(t.Context())
	if err != nil || st.Received != 10 || st.Sent != 5 || st.Modules[0].Dropped != 5 {
		t.Errorf("%+v, %v", st, err)
	}
	p.(*process).ask(t.Context())
	m := p.(onpath.Modular)
	if s := m.Modules(); len(s) != 1 || s[0].Name != "dns" || s[0].Out != "" || s[0].SHA256 == "" {
		t.Errorf("its modules are %+v", s)
	}
	if c := m.ModuleCounters()["dns"]; c["packets"] != 10 || c["drop"] != 5 || c["own/dropped"] != 5 {
		t.Errorf("they count %v", c)
	}
	isolated(t, p)
}

func send(t *testing.T, ns, to string, n int) {
	t.Helper()
	err := netnsrun.Do(ns, func() error {
		c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.MustParseAddrPort(to)))
		if err != nil {
			return err
		}
		defer c.Close()
		for range n {
			if _, err := c.Write([]byte("hello")); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// isolated looks at the engine's process from outside.
func isolated(t *testing.T, p onpath.Process) {
	t.Helper()
	proc := func(name string) string { return filepath.Join("/proc", itoa(p.Pid()), name) }
	b, err := os.ReadFile(proc("status"))
	if err != nil {
		t.Fatal(err)
	}
	status := map[string]string{}
	for line := range strings.Lines(string(b)) {
		name, value, _ := strings.Cut(line, ":")
		status[name] = strings.TrimSpace(value)
	}
	const none = "0000000000000000"
	for name, want := range map[string]string{
		"CapEff": none, "CapPrm": none, "CapBnd": none, "NoNewPrivs": "1", "Seccomp": "2", "Groups": "",
	} {
		if status[name] != want {
			t.Errorf("%s: %q, want %q", name, status[name], want)
		}
	}
	if strings.HasPrefix(status["Uid"], "0\t") || strings.HasPrefix(status["Gid"], "0\t") {
		t.Errorf("it is of user %s and group %s", status["Uid"], status["Gid"])
	}
	for _, ns := range []string{"mnt", "pid", "ipc", "uts", "net"} {
		own, _ := os.Readlink("/proc/self/ns/" + ns)
		its, err := os.Readlink(proc("ns/" + ns))
		if err != nil || own == its {
			t.Errorf("it is in our %s namespace (%v)", ns, err)
		}
	}
	mounts, err := os.ReadFile(proc("mountinfo"))
	if err != nil || strings.Count(string(mounts), "\n") != 1 || !strings.Contains(string(mounts), " / ro") {
		t.Errorf("its mounts are %q (%v)", mounts, err)
	}
	if files, err := os.ReadDir(proc("root")); err != nil || len(files) != 0 {
		t.Errorf("its root has %v (%v)", files, err)
	}
}

func itoa(n int) string { return strconv.Itoa(n) }
