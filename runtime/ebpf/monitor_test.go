package ebpf

import (
	"math"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/onpath/onpath"
)

// TestMonitor: counts by key, exact without and near with sampling.
func TestMonitor(t *testing.T) {
	b := newBench(t, "monitor")
	b.tell(map[string]string{"by": "source", "prefix4": "24"})
	for i := range uint16(300) {
		b.run(packet{tuple: udpFrom("10.1.0.2", i), wire: 100, now: uint64(time.Hour)})
		b.run(packet{tuple: udpFrom("10.1.1.2", i), wire: 50, now: uint64(time.Hour)})
	}
	p := &process{function: b.f, tables: b.tables}
	p.function.name = "monitor"
	keys, err := p.Keys()
	if err != nil {
		t.Fatal(err)
	}
	if len(keys) != 2 || keys[0].Key != "src=10.1.0.0" || keys[0].Count != (onpath.Tally{Packets: 300, Bytes: 30000}) || keys[1].Count.Bytes != 15000 {
		t.Errorf("the monitor counts %+v", keys)
	}
	b.tell(map[string]string{"by": "port", "sample": "10"})
	for range 20000 {
		b.run(packet{tuple: udpFrom("10.1.0.2", 1), wire: 100, now: uint64(time.Hour)})
	}
	keys, err = p.Keys()
	if err != nil {
		t.Fatal(err)
	}
	// Binomial: 2,000 ± 42; six deviations.
	if k := keys[0]; k.Key != "protocol=17 dport=53" || math.Abs(float64(k.Count.Packets)-20000) > 10*6*42 {
		t.Errorf("with sampling the monitor counts %+v, must be near 20,000", k)
	}
}

// TestMonitorVersions: keys without an address are one key for both IP versions, as
// their names are one: metrics of the same name twice would be no metrics at all.
func TestMonitorVersions(t *testing.T) {
	b := newBench(t, "monitor")
	p := &process{function: b.f, tables: b.tables}
	six := udpFrom("10.1.0.2", 1)
	six.Src, six.Dst = netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::2")
	for by, want := range map[string]string{"protocol": "protocol=17", "port": "protocol=17 dport=53"} {
		b.tell(map[string]string{"by": by})
		for range 3 {
			b.run(packet{tuple: udpFrom("10.1.0.2", 1), wire: 100, now: uint64(time.Hour)})
		}
		for range 2 {
			b.run(packet{tuple: six, wire: 50, now: uint64(time.Hour)})
		}
		b.run(packet{tuple: six, reverse: by == "protocol", wire: 10, now: uint64(time.Hour)})
		keys, err := p.Keys()
		if err != nil {
			t.Fatal(err)
		}
		n, sum := 0, onpath.Tally{}
		for _, k := range keys {
			if k.Key == want && !k.Reverse {
				n, sum = n+1, k.Count
			}
		}
		all := onpath.Tally{Packets: 5, Bytes: 400}
		if by == "port" {
			all = onpath.Tally{Packets: 6, Bytes: 410}
		}
		if n != 1 || sum != all {
			t.Errorf("by %s the monitor counts %s %d times, last %+v; must be once, %+v: %+v", by, want, n, sum, all, keys)
		}
	}
}

// TestMonitorExport: an instance sends what it counted to its collector.
func TestMonitorExport(t *testing.T) {
	b := newBench(t, "monitor")
	l, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	d, err := New(Options{Dir: t.TempDir(), PinPath: DefaultPinPath})
	if err != nil {
		t.Fatal(err)
	}
	config := map[string]string{"collector": l.LocalAddr().String(), "every": "1s"}
	b.tell(config)
	p := &process{d: d, id: "x", function: b.f, tables: b.tables}
	p.accompany(&onpath.FunctionSpec{EBPF: &onpath.EBPFSpec{Object: "monitor", Config: config}})
	defer p.abandon()
	l.SetReadDeadline(time.Now().Add(10 * time.Second))
	for range 10 {
		b.run(packet{tuple: udpFrom("10.1.0.2", 7), wire: 100, now: monotonic()})
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
