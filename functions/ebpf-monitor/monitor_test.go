package monitor

import (
	"context"
	"log/slog"
	"math"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/bpfobject/functionbench"
	"github.com/onpath/onpath/sdk"
)

// TestMonitor: counts by key, exact without and near with sampling.
func TestMonitor(t *testing.T) {
	b := functionbench.Load(t, "monitor", object)
	b.Tell(compile, sdk.Config{"by": "source", "prefix4": "24"})
	for i := range uint16(300) {
		b.Verdict(functionbench.Packet{Tuple: udpFrom("10.1.0.2", i), Wire: 100, Now: uint64(time.Hour)})
		b.Verdict(functionbench.Packet{Tuple: udpFrom("10.1.1.2", i), Wire: 50, Now: uint64(time.Hour)})
	}
	counts, err := keys(b.Tables)
	if err != nil {
		t.Fatal(err)
	}
	if len(counts) != 2 || counts[0].Key != "src=10.1.0.0" || counts[0].Count != (onpath.Tally{Packets: 300, Bytes: 30000}) || counts[1].Count.Bytes != 15000 {
		t.Errorf("the monitor counts %+v", counts)
	}
	b.Tell(compile, sdk.Config{"by": "port", "sample": "10"})
	for range 20000 {
		b.Verdict(functionbench.Packet{Tuple: udpFrom("10.1.0.2", 1), Wire: 100, Now: uint64(time.Hour)})
	}
	counts, err = keys(b.Tables)
	if err != nil {
		t.Fatal(err)
	}
	// Binomial: 2,000 ± 42; six deviations.
	if k := counts[0]; k.Key != "protocol=17 dport=53" || math.Abs(float64(k.Count.Packets)-20000) > 10*6*42 {
		t.Errorf("with sampling the monitor counts %+v, must be near 20,000", k)
	}
}

// TestMonitorVersions: keys without an address are one key for both IP versions, as
// their names are one: metrics of the same name twice would be no metrics at all.
func TestMonitorVersions(t *testing.T) {
	b := functionbench.Load(t, "monitor", object)
	six := udpFrom("10.1.0.2", 1)
	six.Src, six.Dst = netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::2")
	for by, want := range map[string]string{"protocol": "protocol=17", "port": "protocol=17 dport=53"} {
		b.Tell(compile, sdk.Config{"by": by})
		for range 3 {
			b.Verdict(functionbench.Packet{Tuple: udpFrom("10.1.0.2", 1), Wire: 100, Now: uint64(time.Hour)})
		}
		for range 2 {
			b.Verdict(functionbench.Packet{Tuple: six, Wire: 50, Now: uint64(time.Hour)})
		}
		b.Verdict(functionbench.Packet{Tuple: six, Reverse: by == "protocol", Wire: 10, Now: uint64(time.Hour)})
		counts, err := keys(b.Tables)
		if err != nil {
			t.Fatal(err)
		}
		n, sum := 0, onpath.Tally{}
		for _, k := range counts {
			if k.Key == want && !k.Reverse {
				n, sum = n+1, k.Count
			}
		}
		all := onpath.Tally{Packets: 5, Bytes: 400}
		if by == "port" {
			all = onpath.Tally{Packets: 6, Bytes: 410}
		}
		if n != 1 || sum != all {
			t.Errorf("by %s the monitor counts %s %d times, last %+v; must be once, %+v: %+v", by, want, n, sum, all, counts)
		}
	}
}

// TestMonitorExport: an instance sends what it counted to its collector.
func TestMonitorExport(t *testing.T) {
	b := functionbench.Load(t, "monitor", object)
	l, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	config := sdk.Config{"collector": l.LocalAddr().String(), "every": "1s"}
	b.Tell(compile, config)
	run := accompany(config, &sdk.Instance{ID: "x", Tables: b.Tables, Log: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithCancel(t.Context())
	var done sync.WaitGroup
	done.Go(func() { run(ctx) })
	defer done.Wait()
	defer cancel()
	l.SetReadDeadline(time.Now().Add(time.Minute))
	for range 10 {
		b.Verdict(functionbench.Packet{Tuple: udpFrom("10.1.0.2", 7), Wire: 100, Now: monotonic()})
	}
	m := make([]byte, 2000)
	n, err := l.Read(m)
	if err != nil {
		t.Fatal(err)
	}
	if m[1] != 10 || n < 100 {
		t.Errorf("the collector got %d bytes of version %d", n, m[1])
	}
}

// TestMonitorICMP: messages of ICMP are counted by type and code, whatever identifiers their
// echoes have; what has none, as a later fragment, is counted apart.
func TestMonitorICMP(t *testing.T) {
	b := functionbench.Load(t, "monitor", object)
	for by, names := range map[string][3]string{
		"flow": {"src=10.1.0.2 dst=10.9.0.2 protocol=1 type=8 code=0", "src=10.1.0.2 dst=10.9.0.2 protocol=1 type=3 code=13", "src=10.1.0.2 dst=10.9.0.2 protocol=1"},
		"port": {"protocol=1 type=8 code=0", "protocol=1 type=3 code=13", "protocol=1"},
	} {
		b.Tell(compile, sdk.Config{"by": by})
		for id := range uint16(50) {
			p := functionbench.Packet{Tuple: udpFrom("10.1.0.2", id), Wire: 100, Now: uint64(time.Hour), ICMPType: 8}
			p.Tuple.Protocol, p.Tuple.DstPort = 1, id
			b.Verdict(p)
			if id < 20 {
				p.ICMPType, p.ICMPCode = 3, 13
				b.Verdict(p)
			}
			if id < 5 {
				p.ICMPType, p.ICMPCode, p.Is = 0, 0, 0x20 // ONPATH_IS_FRAGMENT
				b.Verdict(p)
			}
		}
		counts, err := keys(b.Tables)
		if err != nil {
			t.Fatal(err)
		}
		for i, want := range []uint64{50, 20, 5} {
			at := slices.IndexFunc(counts, func(k onpath.KeyCount) bool { return k.Key == names[i] })
			if at < 0 || counts[at].Count.Packets != want {
				t.Errorf("by %s %q must be counted %d times: %+v", by, names[i], want, counts)
			}
		}
	}
	all, err := readCounts(b.Tables[countsTable])
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range deltas(nil, all, time.Now(), time.Now(), monotonic()) {
		if r.Typed != (r.DstPort != 0) || r.Typed && r.DstPort != 8<<8 && r.DstPort != 3<<8|13 {
			t.Errorf("a record for the collector is %+v", r)
		}
	}
}

func udpFrom(src string, port uint16) onpath.Tuple {
	return onpath.Tuple{Protocol: 17, Src: netip.MustParseAddr(src), Dst: netip.MustParseAddr("10.9.0.2"), SrcPort: port, DstPort: 53}
}
