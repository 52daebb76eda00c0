// Package uplinks gives up a router's uplinks, for every reason that there is, while a
// client tries again and again to reach what a chain with none: drop blocks.
package uplinks

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/demo"
	"github.com/onpath/onpath/internal/netnsrun"
	"github.com/onpath/onpath/internal/packet"
	"github.com/onpath/onpath/internal/testprogram"
	"github.com/onpath/onpath/lab"
)

// loss is a way in which an uplink in force is lost, and found again.
type loss struct {
	name string
	// reason is what the node then says of uplink left; "": nothing is wrong.
	reason string
	do     string // a script on the router
	undo   string
	// quick: it is part of every run; dead: also with the agent dead.
	quick, dead bool
	// tun: another device takes the uplink's name, which the test sends packets through.
	tun bool
}

const (
	nat    = "nft add table ip nat; nft 'add chain ip nat POSTROUTING { type nat hook postrouting priority srcnat; }'; "
	noNAT  = "nft delete table ip nat; "
	remove = "ip link del left; "
	again  = "ip link add left type veth peer name made; ip link set made netns LEFT name eth0; ip addr add 10.0.1.1/24 dev left; ip link set left up; " +
		"nsenter --net=LEFT sh -c 'ip addr add 10.0.1.2/24 dev eth0; ip link set eth0 up; ip route add default via 10.0.1.1'; "
	tun = "ip tuntap add left mode tun; ip addr add 10.0.4.1/24 dev left; ip link set left up"
)

// losses are all reasons to give up an uplink while it runs. VRFs are not to be had on
// every kernel.
var losses = []loss{
	{name: "Docker's network", do: nat + "ip link add docker0 type bridge; ip addr add 172.17.0.1/16 dev docker0; " +
		"nft add rule ip nat POSTROUTING oifname != docker0 ip saddr 172.17.0.0/16 counter masquerade",
		undo: noNAT + "ip link del docker0"},
	{name: "translation", do: nat + "nft add rule ip nat POSTROUTING ip saddr 10.0.1.0/24 masquerade", undo: noNAT,
		reason: onpath.ReasonPastHostFirewall},
	{name: "forward policy", do: "nft add table ip filter; nft 'add chain ip filter FORWARD { type filter hook forward priority 0; policy drop; }'",
		undo: "nft delete table ip filter", reason: onpath.ReasonPastHostFirewall},
	{name: "device renamed", do: "ip link set left name lefx", undo: "ip link set lefx name left", reason: onpath.ReasonRenamed, quick: true},
	{name: "device made anew", do: remove + again, quick: true, dead: true},
	{name: "device gone", do: remove, undo: again, reason: onpath.ReasonDeviceMissing},
	{name: "device down", do: "ip link set left down", undo: "ip link set left up", reason: onpath.ReasonUplinkDown},
	{name: "name taken", do: "ip link set left name other; " + tun, tun: true,
		undo: "ip link del left; ip link set other name left", reason: onpath.ReasonRenamed},
	{name: "without Ethernet header", do: remove + tun, tun: true, quick: true, dead: true,
		undo: "ip link del left; " + again, reason: onpath.ReasonNotEthernet},
}

// router is the network with its chain in force.
type router struct {
	*demo.Testbed
	t *testing.T
}

func newRouter(ctx context.Context, t *testing.T) *router {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root for network namespaces, eBPF and containers")
	}
	for _, p := range []string{"ip", "nsenter", "nft"} {
		if _, err := exec.LookPath(p); err != nil {
			t.Skip("needs the program " + p)
		}
	}
	topology, err := lab.ParseFile("testdata/lab.yaml")
	if err != nil {
		t.Fatal(err)
	}
	topology.Name = fmt.Sprintf("uplinks-%d", os.Getpid())
	testbed, err := demo.SetUp(ctx, demo.TestbedSpec{Topology: topology, Bin: testprogram.Path(t), Dir: t.TempDir(),
		Server: demo.TestbedNode{Host: "server", Address: "10.255.0.10"},
		Nodes:  []demo.TestbedNode{{Name: "router", Host: "router", Address: "10.255.0.1", Cloudlet: "pop"}}})
	if err != nil {
		t.Fatal(err)
	}
	r := &router{testbed, t}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("--- end of router.log\n%s", r.Log("router"))
		}
		if err := r.TearDown(context.Background()); err != nil {
			t.Error(err)
		}
	})
	if err := r.Apply(ctx, "testdata/objects.yaml"); err != nil {
		t.Fatal(err)
	}
	if err := r.WaitActive(ctx, "web", time.Minute, nil); err != nil {
		t.Fatal(err)
	}
	r.serve()
	return r
}

// serve has the host right take connections, at a port that the wall blocks and at one that
// it does not.
func (r *router) serve() {
	for _, port := range []string{"80", "8080"} {
		var l net.Listener
		err := netnsrun.Do(r.Lab.NetNS("right"), func() (err error) { l, err = net.Listen("tcp", "10.0.2.2:"+port); return err })
		if err != nil {
			r.t.Fatal(err)
		}
		r.t.Cleanup(func() { _ = l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_ = c.Close()
			}
		}()
	}
}

// Ports that no socket has to listen at: the wall blocks the one; the other is that of an
// address that no chain selects.
const (
	blocked    = 8080
	unselected = 8081
)

// arrivals counts beginnings of connections to a port that reach the host right, until ctx
// ends.
func (r *router) arrivals(ctx context.Context, port uint16) *atomic.Int64 {
	var n atomic.Int64
	fd := -1
	err := netnsrun.Do(r.Lab.NetNS("right"), func() (err error) {
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: binary.NativeEndian.Uint16([]byte{0x08, 0x00})})
	})
	if err != nil {
		r.t.Fatal(err)
	}
	_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 50_000})
	go func() {
		defer unix.Close(fd)
		for b := make([]byte, 2048); ctx.Err() == nil; {
			got, err := unix.Read(fd, b)
			if err == nil && got >= 40 && b[9] == unix.IPPROTO_TCP && b[33]&0x12 == 2 && binary.BigEndian.Uint16(b[22:]) == port {
				n.Add(1)
			}
		}
	}()
	return &n
}

// knock tries to connect to the blocked port, each time anew, until ctx ends; it counts.
func (r *router) knock(ctx context.Context, every time.Duration) *atomic.Int64 {
	var n atomic.Int64
	go func() {
		for ctx.Err() == nil {
			n.Add(1)
			go func() {
				_ = netnsrun.Do(r.Lab.NetNS("left"), func() error {
					c, err := net.DialTimeout("tcp", "10.0.2.2:8080", 300*time.Millisecond)
					if err == nil {
						_ = c.Close()
					}
					return nil
				})
			}()
			time.Sleep(every)
		}
	}()
	return &n
}

// knockByTun sends beginnings of connections through the tun device left, as a host behind
// it would: to the blocked port, and to an address that no chain selects.
func (r *router) knockByTun(ctx context.Context, every time.Duration) *atomic.Int64 {
	r.t.Helper()
	fd := -1
	err := netnsrun.Do(r.Lab.NetNS("router"), func() (err error) {
		if fd, err = unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0); err != nil {
			return err
		}
		request, err := unix.NewIfreq("left")
		if err != nil {
			return err
		}
		request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
		return unix.IoctlIfreq(fd, unix.TUNSETIFF, request)
	})
	if err != nil {
		r.t.Fatalf("open the tun device: %v", err)
	}
	var n atomic.Int64
	go func() {
		defer unix.Close(fd)
		for ctx.Err() == nil {
			from := netip.AddrPortFrom(netip.MustParseAddr("10.0.4.2"), uint16(20000+n.Load()))
			for _, to := range []netip.AddrPort{
				netip.AddrPortFrom(netip.MustParseAddr("10.0.3.2"), unselected), netip.AddrPortFrom(netip.MustParseAddr("10.0.2.2"), blocked)} {
				if _, err := unix.Write(fd, beginning(from, to)); err != nil {
					r.t.Errorf("send through the tun device: %v", err)
					return
				}
			}
			n.Add(1)
			time.Sleep(every)
		}
	}()
	return &n
}

// beginning is a TCP packet with SYN.
func beginning(from, to netip.AddrPort) []byte {
	b := packet.Blank(false, packet.TCP, 20, from.Addr(), to.Addr())
	t := b[len(b)-20:]
	binary.BigEndian.PutUint16(t, from.Port())
	binary.BigEndian.PutUint16(t[2:], to.Port())
	t[12], t[13] = 5<<4, packet.SYN
	binary.BigEndian.PutUint16(t[16:], ^packet.Sum(packet.PseudoSum(from.Addr(), to.Addr(), packet.TCP, len(t)), t))
	return b
}

// open waits until the port that is not blocked answers.
func (r *router) open(ctx context.Context) error {
	return r.WaitFor(ctx, "port 80 answers", time.Minute, func() (bool, error) {
		err := netnsrun.Do(r.Lab.NetNS("left"), func() error {
			c, err := net.DialTimeout("tcp", "10.0.2.2:80", 500*time.Millisecond)
			if err == nil {
				_ = c.Close()
			}
			return err
		})
		return err == nil, nil
	})
}

// says is the reason of uplink left's condition that is false; "" if it is not.
func (r *router) says(ctx context.Context) (string, error) {
	var n onpath.Node
	if err := r.Get(ctx, &n, "nodes", "router"); err != nil {
		return "", err
	}
	i := slices.IndexFunc(n.Status.Conditions, func(c onpath.Condition) bool {
		return c.Type == onpath.ConditionUplink+"left" && c.Status == onpath.False
	})
	if i < 0 {
		return "", nil
	}
	return n.Status.Conditions[i].Reason, nil
}

// steered is whether the chain is active, and what verify --live says of it.
func (r *router) steered(ctx context.Context) (active bool, v onpath.Verdict, err error) {
	var c onpath.Chain
	if err := r.Get(ctx, &c, "chains", "web"); err != nil {
		return false, "", err
	}
	out, _ := r.Onpath(ctx, "verify", "--live", "-o", "json")
	var said onpath.Verification
	if err := json.Unmarshal(out, &said); err != nil {
		return false, "", fmt.Errorf("%w: %s", err, out)
	}
	return c.Status.Active, said.Verdict, nil
}

func (r *router) run(ctx context.Context, script string) {
	r.t.Helper()
	script = strings.ReplaceAll(script, "LEFT", r.Lab.NetNS("left"))
	cmd := exec.CommandContext(ctx, "nsenter", "--net="+r.Lab.NetNS("router"), "sh", "-ec", script)
	if out, err := cmd.CombinedOutput(); err != nil {
		r.t.Fatalf("%s: %v\n%s", script, err, out)
	}
}

// TestUplinkLost: from before an uplink is lost, whatever the reason, until after it is
// found again, no connection to a port gets through that a strict chain blocks, with the
// agent alive and with it dead. The chain is active and verified just as long as all is steered.
func TestUplinkLost(t *testing.T) {
	connections, soak := 100, os.Getenv("ONPATH_SOAK") != ""
	if soak {
		connections = 1000
	}
	ctx, cancel := context.WithTimeout(t.Context(), 25*time.Minute)
	defer cancel()
	r := newRouter(ctx, t)
	for _, dead := range []bool{false, true} {
		for _, l := range losses {
			if !soak && (!l.quick || dead && !l.dead) {
				continue
			}
			t.Run(fmt.Sprintf("%s/dead=%t", l.name, dead), func(t *testing.T) { r.lose(ctx, t, l, dead, connections) })
		}
	}
}

func (r *router) lose(ctx context.Context, t *testing.T, l loss, dead bool, connections int) {
	r.t = t
	if err := r.open(ctx); err != nil {
		t.Fatal(err)
	}
	under, over := context.WithCancel(ctx)
	defer over()
	leaks, tried := r.arrivals(under, blocked), r.knock(under, 20*time.Millisecond)
	time.Sleep(200 * time.Millisecond)
	if dead {
		if err := r.Kill("router", syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	r.run(ctx, l.do)
	if !dead {
		r.expect(ctx, l)
	}
	const every = 20 * time.Millisecond
	if l.tun {
		gone, close := context.WithCancel(ctx)
		carried := r.arrivals(gone, unselected)
		sent := r.knockByTun(gone, every)
		for sent.Load() < int64(connections) && ctx.Err() == nil && !t.Failed() {
			time.Sleep(every)
		}
		close()
		if n := carried.Load(); n < sent.Load()/2 {
			t.Errorf("the tun device carried %d of %d packets that no chain selects: it shows nothing", n, sent.Load())
		}
	}
	for tried.Load() < int64(connections) && ctx.Err() == nil {
		time.Sleep(every)
	}
	if l.undo != "" {
		r.run(ctx, l.undo)
	}
	if dead {
		time.Sleep(500 * time.Millisecond)
		if err := r.StartNode(ctx, "router"); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.open(ctx); err != nil {
		t.Fatal(err)
	}
	r.expect(ctx, loss{name: "after " + l.name})
	over()
	t.Logf("%d of %d connections got through", leaks.Load(), tried.Load())
	if leaks.Load() != 0 {
		t.Errorf("%d of %d connections to the blocked port got through", leaks.Load(), tried.Load())
	}
}

// expect waits until node, chain and verify say what they should.
func (r *router) expect(ctx context.Context, l loss) {
	r.t.Helper()
	steers := l.reason == "" || slices.Contains(onpath.UplinkReasons(), onpath.UplinkReason{Reason: l.reason, Steers: true})
	var said string
	err := r.WaitFor(ctx, l.name, time.Minute, func() (bool, error) {
		reason, err := r.says(ctx)
		if err != nil {
			return false, nil
		}
		active, verdict, err := r.steered(ctx)
		said = fmt.Sprintf("uplink left: %q; active %t; verify %s; %v", reason, active, verdict, err)
		return err == nil && reason == l.reason && active == steers && (verdict == onpath.VerdictRefuted) == !steers, nil
	})
	if err != nil {
		r.t.Errorf("%s: %v (last: %s)", l.name, err, said)
	}
}
