package engine_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/engine"
	"github.com/onpath/onpath/engine/afxdp"
	"github.com/onpath/onpath/engine/control"
	"github.com/onpath/onpath/internal/funcbuild"
	"github.com/onpath/onpath/internal/netnsrun"
	"github.com/onpath/onpath/internal/offload"
)

// compiled is a module of testdata, compiled now.
func compiled(t *testing.T, name string) []byte {
	t.Helper()
	code, err := funcbuild.Compile(t.Context(), filepath.Join("testdata", name+".c"), funcbuild.ToWasm)
	if errors.Is(err, funcbuild.ErrLacking) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return code
}

// testbed is an engine at one end of a pair of devices, and a host at the other.
type testbed struct {
	t    *testing.T
	e    *engine.Engine
	near string // the host's network namespace
	log  *safeBuffer
}

type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

var (
	hostMAC   = net.HardwareAddr{2, 0, 0, 0, 0, 1}
	engineMAC = net.HardwareAddr{2, 0, 0, 0, 0, 2}
)

// newTestbed: the host has 10.9.0.1 and reaches all of 10.9.0.0/24 through the engine,
// which sends all back that its modules let pass.
func newTestbed(t *testing.T) *testbed {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	s := &testbed{t: t, near: filepath.Join(t.TempDir(), "near"), log: &safeBuffer{}}
	far := filepath.Join(t.TempDir(), "far")
	for _, ns := range []string{s.near, far} {
		if err := netnsrun.Create(ns); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = netnsrun.Remove(ns) })
	}
	if err := wire(s.near, far); err != nil {
		t.Fatal(err)
	}
	var err error
	if s.e, err = engine.New(slog.New(slog.NewTextHandler(s.log, nil)), s.log); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.e.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("the engine ended: %v", err)
		}
		if t.Failed() {
			t.Logf("log:\n%s", s.log)
		}
	})
	var f *afxdp.Files
	err = netnsrun.Do(far, func() (err error) {
		f, err = afxdp.Open(afxdp.Config{Device: "v1", Frames: 512})
		return err
	})
	if err == nil {
		err = s.e.Attach(ctx, control.Device{MAC: engineMAC, NextHop: hostMAC}, f, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func wire(near, far string) error {
	there, err := netns.GetFromPath(far)
	if err != nil {
		return err
	}
	defer there.Close()
	if err := netnsrun.Do(near, func() error {
		a := netlink.NewLinkAttrs()
		a.Name, a.HardwareAddr = "v0", hostMAC
		veth := &netlink.Veth{LinkAttrs: a, PeerName: "v1", PeerHardwareAddr: engineMAC, PeerNamespace: netlink.NsFd(int(there))}
		if err := netlink.LinkAdd(veth); err != nil {
			return err
		}
		if err := offload.Disable("v0", offload.CompleteFrames); err != nil {
			return err
		}
		l, err := netlink.LinkByName("v0")
		if err != nil {
			return err
		}
		addr, _ := netlink.ParseAddr("10.9.0.1/24")
		return errors.Join(netlink.AddrAdd(l, addr), netlink.LinkSetUp(l),
			netlink.NeighSet(&netlink.Neigh{
				LinkIndex: l.Attrs().Index, State: netlink.NUD_PERMANENT, IP: net.IPv4(10, 9, 0, 3), HardwareAddr: engineMAC,
			}))
	}); err != nil {
		return err
	}
	if err := netnsrun.Do(far, func() error {
		l, err := netlink.LinkByName("v1")
		if err != nil {
			return err
		}
		return netlink.LinkSetUp(l)
	}); err != nil {
		return err
	}
	return netnsrun.Do(near, func() error { // before the kernel sees the carrier it drops
		for range 500 {
			if l, err := netlink.LinkByName("v0"); err != nil || l.Attrs().OperState == netlink.OperUp {
				return err
			}
			time.Sleep(10 * time.Millisecond)
		}
		return errors.New("v0 does not come up")
	})
}

// sends UDP datagrams to 10.9.0.3 and says how many came out of the engine again, which
// the host sees as packets to a stranger.
func (s *testbed) sends(n, port int) (back int) {
	s.t.Helper()
	var conn *net.UDPConn
	var raw net.PacketConn
	if err := netnsrun.Do(s.near, func() (err error) {
		if raw, err = net.ListenPacket("ip4:udp", "0.0.0.0"); err != nil {
			return err
		}
		conn, err = net.DialUDP("udp4", nil, &net.UDPAddr{IP: net.IPv4(10, 9, 0, 3), Port: port})
		return err
	}); err != nil {
		s.t.Fatal(err)
	}
	defer raw.Close()
	defer conn.Close()
	before := s.status()
	for range n {
		if _, err := conn.Write([]byte("hello")); err != nil {
			s.t.Fatal(err)
		}
	}
	deadline := time.Now().Add(time.Minute)
	for s.status().Received-before.Received < uint64(n) && time.Now().Before(deadline) {
		time.Sleep(2 * time.Millisecond)
	}
	after := s.status()
	if after.Received-before.Received != uint64(n) {
		s.t.Fatalf("the engine received %d of %d packets", after.Received-before.Received, n)
	}
	return int(after.Sent - before.Sent)
}

func (s *testbed) status() control.Status {
	s.t.Helper()
	st, err := s.e.Status(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	return st
}

func (s *testbed) set(modules ...onpath.WasmModule) error {
	return s.e.Set(s.t.Context(), control.Config{Modules: modules, Packets: onpath.PacketsOriginate})
}

// TestDrop: a module drops what it is told to drop, and takes a new configuration
// without being made anew.
func TestDrop(t *testing.T) {
	code := compiled(t, "dns")
	s := newTestbed(t)
	if back := s.sends(10, 53); back != 10 {
		t.Errorf("without a module %d of 10 came back", back)
	}
	m := onpath.WasmModule{Name: "dns", Code: code, Config: onpath.Env{"port": "53"}}
	if err := s.set(m); err != nil {
		t.Fatal(err)
	}
	if back := s.sends(10, 53); back != 0 {
		t.Errorf("%d of 10 to port 53 came back", back)
	}
	if back := s.sends(10, 54); back != 10 {
		t.Errorf("%d of 10 to port 54 came back", back)
	}
	m.Config = onpath.Env{"port": "54"}
	if err := s.set(m); err != nil {
		t.Fatal(err)
	}
	if back := s.sends(10, 54); back != 0 {
		t.Errorf("told port 54, %d of 10 came back", back)
	}
	st := s.status().Modules[0]
	if st.Packets != 30 || st.Passed != 10 || st.Dropped != 20 || st.Reasons[1] != 20 ||
		st.Counters["seen"] != 30 || st.Counters["dropped"] != 20 {
		t.Errorf("%+v", st)
	}
	m.Config = onpath.Env{"ports": "54"}
	if err := s.set(m); err != nil && !strings.Contains(err.Error(), "did you mean port?") {
		t.Error(err)
	}
}
