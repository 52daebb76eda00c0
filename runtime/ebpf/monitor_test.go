package ebpf

import (
	"math"
	"net"
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
