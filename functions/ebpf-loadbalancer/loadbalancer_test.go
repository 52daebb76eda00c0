package loadbalancer

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/bpfobject"
	"github.com/onpath/onpath/internal/bpfobject/functionbench"
	"github.com/onpath/onpath/sdk"
)

// TestMaglev: shares are those of the weights, and of n backends one that comes or
// goes moves about an nth of the slots.
func TestMaglev(t *testing.T) {
	list := func(n int, without ...int) (out []candidate) {
		for i := range n {
			if !slices.Contains(without, i) {
				out = append(out, candidate{fmt.Sprintf("10.0.0.%d", i), uint16(i), uint32(1 + i%2)})
			}
		}
		return out
	}
	count := func(slots []uint16) map[uint16]int {
		n := map[uint16]int{}
		for _, p := range slots {
			n[p]++
		}
		return n
	}
	all := maglev(list(20))
	for place, n := range count(all) {
		want := maglevSlots * (1 + int(place)%2) / 30
		if n < want*97/100 || n > want*103/100 {
			t.Errorf("backend %d has %d slots, must have some %d", place, n, want)
		}
	}
	gone := maglev(list(20, 7))
	had, moved := count(all)[7], 0
	for i := range all {
		if all[i] != 7 && all[i] != gone[i] {
			moved++
		}
	}
	if count(gone)[7] != 0 || moved > maglevSlots/20 {
		t.Errorf("without a backend that had %d slots, %d of others moved", had, moved)
	}
	mixed := list(20)
	slices.Reverse(mixed)
	if !slices.Equal(maglev(mixed), all) {
		t.Error("the order of the backends changes the table")
	}
	if n := count(maglev(nil)); n[noBackend] != maglevSlots {
		t.Errorf("a table of nobody has %v", n)
	}
}

const balanced = "203.0.113.10"

func dialled(port uint16) onpath.Tuple {
	return onpath.Tuple{Protocol: 6, Src: netip.MustParseAddr("10.1.0.2"), Dst: netip.MustParseAddr(balanced), SrcPort: port, DstPort: 80}
}

// bench is a load balancer loaded by itself.
type bench struct {
	*functionbench.Bench
	t *testing.T
}

func newBench(t *testing.T) bench {
	t.Helper()
	return bench{functionbench.Load(t, "loadbalancer", object), t}
}

// backendOf gives a flow's packet to the function, and the backend it chose.
func (b bench) backendOf(f onpath.Tuple, is uint16) netip.AddrPort {
	b.t.Helper()
	v, after := b.Run(functionbench.Packet{Tuple: f, Is: is, Wire: 100})
	if v != 0 {
		return netip.AddrPort{}
	}
	if edit := binary.NativeEndian.Uint32(after[80:]); edit != 2 {
		b.t.Fatalf("a packet of %v is edited by %#x, must be by 2", f, edit)
	}
	return netip.AddrPortFrom(netip.AddrFrom16([16]byte(after[100:116])).Unmap(), binary.BigEndian.Uint16(after[118:]))
}

func balancing(backends ...string) sdk.Config {
	return sdk.Config{"virtual": balanced, "ports": "80", "check": "none", "backends": strings.Join(backends, "\n")}
}

const (
	isSYN = 1
	isACK = 8
)

// TestLoadbalancer: flows keep their backends whatever comes and goes, new ones are
// shared by weight, and answers come from the virtual address.
func TestLoadbalancer(t *testing.T) {
	b := newBench(t)
	b.Tell(compile, balancing("10.9.0.2", "10.9.0.3", "10.9.0.4:8080 weight 2"))
	chosen, shares := map[uint16]netip.AddrPort{}, map[netip.AddrPort]int{}
	for port := uint16(1000); port < 5000; port++ {
		chosen[port] = b.backendOf(dialled(port), isSYN)
		if again := b.backendOf(dialled(port), isACK); again != chosen[port] {
			t.Fatalf("a flow goes to %v and then to %v", chosen[port], again)
		}
		shares[chosen[port]]++
	}
	for to, want := range map[string]int{"10.9.0.2:0": 1000, "10.9.0.3:0": 1000, "10.9.0.4:8080": 2000} {
		if n := shares[netip.MustParseAddrPort(to)]; n < want*9/10 || n > want*11/10 {
			t.Errorf("%s has %d of 4000 flows, must have some %d: %v", to, n, want, shares)
		}
	}

	b.Tell(compile, balancing("10.9.0.2", "10.9.0.4:8080 weight 2", "10.9.0.5", "10.9.0.6"))
	for port, was := range chosen {
		if now := b.backendOf(dialled(port), isACK); now != was {
			t.Fatalf("a flow moved from %v to %v when backends changed", was, now)
		}
	}
	for port := uint16(5000); port < 6000; port++ {
		if to := b.backendOf(dialled(port), isSYN); to == netip.MustParseAddrPort("10.9.0.3:0") {
			t.Fatal("a new flow goes to a backend that was taken out")
		}
	}

	for was, want := range map[string]onpath.Tuple{
		"10.9.0.5:80":   dialled(7).Reverse(),
		"10.9.0.4:8080": dialled(7).Reverse(),
		"10.9.0.3:80":   dialled(7).Reverse(), // its flows are not over
		"10.9.0.5:22":   {},                   // not the service's
		"10.9.0.9:80":   {},                   // no backend
	} {
		answer, a := dialled(7).Reverse(), netip.MustParseAddrPort(was)
		answer.Src, answer.SrcPort = a.Addr(), a.Port()
		v, after := b.Run(functionbench.Packet{Tuple: answer, Reverse: true, Is: isACK})
		edited := binary.NativeEndian.Uint32(after[80:]) == 1
		if v != 0 || edited != (want.Protocol != 0) {
			t.Fatalf("an answer from %s gives verdict %d, edited %v", was, v, edited)
		}
		if !edited {
			continue
		}
		src := netip.AddrFrom16([16]byte(after[84:100])).Unmap()
		port := binary.BigEndian.Uint16(after[116:])
		if src != want.Src || port != 0 && port != want.SrcPort || port == 0 && a.Port() != want.SrcPort {
			t.Errorf("an answer from %s comes from %v:%d, must from %v:%d", was, src, port, want.Src, want.SrcPort)
		}
	}
	other := dialled(8)
	other.DstPort = 443
	v, after := b.Run(functionbench.Packet{Tuple: other, Is: isSYN})
	if v != 0 || binary.NativeEndian.Uint32(after[80:]) != 0 {
		t.Errorf("a packet to another port gives verdict %d, edit %d", v, binary.NativeEndian.Uint32(after[80:]))
	}
}

// TestLoadbalancerLeaving: what begins anew chooses another backend where its own is named no
// more or has weight 0; connections keep theirs, those that are named no more until drain.
func TestLoadbalancerLeaving(t *testing.T) {
	const minute = uint64(time.Minute)
	gone, left := netip.MustParseAddrPort("10.9.0.2:0"), netip.MustParseAddrPort("10.9.0.3:0")
	for _, leaves := range [][]string{{"10.9.0.2 weight 0", "10.9.0.3"}, {"10.9.0.3"}} {
		b := newBench(t)
		datagram := func(port uint16, now uint64) netip.AddrPort {
			f := dialled(port)
			f.Protocol = 17
			v, after := b.Run(functionbench.Packet{Tuple: f, Wire: 100, Now: now})
			if v != 0 {
				return netip.AddrPort{}
			}
			return netip.AddrPortFrom(netip.AddrFrom16([16]byte(after[100:116])).Unmap(), binary.BigEndian.Uint16(after[118:]))
		}
		tell := func(backends ...string) sdk.Config {
			c := balancing(backends...)
			c["protocol"], c["drain"] = "both", "10ms"
			b.Tell(compile, c)
			return c
		}
		tell("10.9.0.2")
		at := 100 * minute
		for port := uint16(1); port < 40; port++ {
			b.backendOf(dialled(port), isSYN)
			b.backendOf(dialled(port), isACK)
			datagram(port, at)
			datagram(port, at)
		}
		config := tell(leaves...)
		for port := uint16(1); port < 40; port++ {
			if to := b.backendOf(dialled(port), isACK); to != gone {
				t.Fatalf("with %q a connection moved to %v", leaves, to)
			}
			if to := datagram(port, at+3*minute); to != gone {
				t.Fatalf("with %q datagrams of a flow that goes on go to %v", leaves, to)
			}
			if to := datagram(port, at+5*minute); to != gone {
				t.Fatalf("with %q datagrams of a flow that goes on go to %v", leaves, to)
			}
			if port%2 == 0 {
				continue
			}
			if to := b.backendOf(dialled(port), isSYN); to != left {
				t.Fatalf("with %q a SYN goes to %v", leaves, to)
			}
			if to := b.backendOf(dialled(port), isACK); to != left {
				t.Fatalf("with %q what follows a SYN goes to %v", leaves, to)
			}
			if to := datagram(port, at+11*minute); to != left {
				t.Fatalf("with %q datagrams after a rest of six minutes go to %v", leaves, to)
			}
		}
		accompany(config, &sdk.Instance{Tables: b.Tables, Say: t.Logf})(t.Context())
		want := left
		if len(leaves) == 2 {
			want = gone // it is named still
		}
		if to := b.backendOf(dialled(2), isACK); to != want {
			t.Errorf("with %q after drain a connection is with %v, must be with %v", leaves, to, want)
		}
		tell("")
		if to := b.backendOf(dialled(3), isACK); to != left {
			t.Errorf("without backends a connection goes to %v", to)
		}
		for _, port := range []uint16{3, 77} {
			if to := b.backendOf(dialled(port), isSYN); to.IsValid() {
				t.Errorf("without backends a SYN goes to %v", to)
			}
		}
	}
}

// TestLoadbalancerDirect: who calls a backend by its own address is answered from there,
// until the same ports call the virtual address.
func TestLoadbalancerDirect(t *testing.T) {
	b := newBench(t)
	b.Tell(compile, balancing("10.9.0.2", "10.9.0.3"))
	own := netip.MustParseAddr("10.9.0.2")
	edits := func(x onpath.Tuple, reverse bool) uint32 {
		t.Helper()
		v, after := b.Run(functionbench.Packet{Tuple: x, Reverse: reverse, Is: isACK})
		if v != 0 {
			t.Fatalf("verdict %d", v)
		}
		return binary.NativeEndian.Uint32(after[80:])
	}
	balancedHere := 0
	for port := uint16(9000); port < 9020; port++ {
		direct := dialled(port)
		direct.Dst = own
		if e := edits(direct, false); e != 0 {
			t.Fatalf("a packet to a backend's own address is edited by %#x", e)
		}
		if e := edits(direct.Reverse(), true); e != 0 {
			t.Fatalf("the answer of a backend that was called by its own address is edited by %#x", e)
		}
		if b.backendOf(dialled(port), isSYN).Addr() != own {
			continue
		}
		balancedHere++
		if e := edits(direct.Reverse(), true); e != 1 {
			t.Errorf("the answer of a backend that was called by the virtual address is edited by %#x, must be by 1", e)
		}
	}
	if balancedHere == 0 {
		t.Error("none of 20 flows was balanced to the first of two backends")
	}
}

// TestBackendHealth: flows of a backend that dies go to another, those of others
// stay; without any, clients are told; and one that comes back is used again.
func TestBackendHealth(t *testing.T) {
	b := newBench(t)
	var lives []net.Listener
	for i := range 3 {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.%d:%d", 10+i, 0))
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		lives = append(lives, l)
	}
	// Loopback addresses are no machines: the check alone is tried with them.
	values, err := read(sdk.Config{"virtual": balanced, "ports": "80", "backends": "10.9.0.2", "every": "100ms"})
	if err != nil {
		t.Fatal(err)
	}
	values.targets = nil
	for _, l := range lives {
		values.targets = append(values.targets, target{l.Addr().(*net.TCPAddr).AddrPort(), 1})
	}
	if err := values.write(b.Tables); err != nil {
		t.Fatal(err)
	}
	ctx, known := context.Background(), map[uint32]*health{}
	said := 0
	round := func() {
		t.Helper()
		if err := values.checkAll(ctx, b.Tables, known, func(string, ...any) { said++ }); err != nil {
			t.Fatal(err)
		}
	}
	chosen := map[uint16]netip.AddrPort{}
	for port := uint16(1); port < 500; port++ {
		chosen[port] = b.backendOf(dialled(port), isSYN)
		b.backendOf(dialled(port), isACK)
	}
	dead := values.targets[1].addr
	lives[1].Close()
	round()
	round()
	if said != 0 {
		t.Error("a backend is called dead after two failures, must after three")
	}
	round()
	for port, was := range chosen {
		if now := b.backendOf(dialled(port), isACK); now == dead || was != dead && now != was {
			t.Fatalf("a flow of %v goes to %v after %v died", was, now, dead)
		}
	}
	lives[0].Close()
	lives[2].Close()
	for range 3 {
		round()
	}
	if to := b.backendOf(dialled(600), isSYN); to.IsValid() {
		t.Errorf("a flow goes to %v, and none lives", to)
	}
	if lives[1], err = net.Listen("tcp", dead.String()); err != nil {
		t.Fatal(err)
	}
	defer lives[1].Close()
	round()
	round()
	if to := b.backendOf(dialled(600), isSYN); to != dead {
		t.Errorf("a flow goes to %v, and only %v lives", to, dead)
	}
	if said != 4 {
		t.Errorf("%d changes were told, must be 4", said)
	}
}

// TestLoadbalancerErrors: faults say what and what to write.
func TestLoadbalancerErrors(t *testing.T) {
	with := func(name, value string) sdk.Config {
		c := balancing("10.9.0.2")
		c[name] = value
		return c
	}
	for _, c := range []sdk.Config{
		{}, with("virtual", ""), with("virtual", "198.51.100.7,198.51.100.8"), with("virtual", "here"), with("virtual", "2001:db8::1"),
		with("backends", "127.0.0.1"), with("backends", "10.9.0.2\n10.9.0.2"), with("backends", "10.9.0.2 weight x"),
		with("backends", "10.9.0.2 heavy"), with("backends", balanced), with("backends", "2001:db8::1"),
		with("ports", "0"), with("ports", "80,http"), with("by", "moon"), with("check", "ping"), with("every", "1ms"), with("speed", "1"),
		{"virtual": balanced, "backends": "10.9.0.2"}, {"virtual": balanced, "backends": "10.9.0.2:80"},
	} {
		if _, err := compile(c); onpath.CodeOf(err) != onpath.CodeInvalid {
			t.Errorf("%v gives %v", c, err)
		}
	}
}

// TestBackendsUnchecked: that backends cannot be checked is said once.
func TestBackendsUnchecked(t *testing.T) {
	b := newBench(t)
	v, err := read(balancing("10.9.0.2"))
	if err != nil {
		t.Fatal(err)
	}
	v.check.every = time.Millisecond
	bpfobject.CloseTables(b.Tables)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var said []string
	v.watch(ctx, b.Tables, func(format string, args ...any) {
		said = append(said, fmt.Sprintf(format, args...))
		time.AfterFunc(200*time.Millisecond, cancel) // and checks go on meanwhile
	})
	if len(said) != 1 || !strings.Contains(said[0], "backends cannot be checked") {
		t.Errorf("it says %d times: %q", len(said), said[:min(3, len(said))])
	}
}
