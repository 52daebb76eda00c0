// Package monitor is the flow monitor that comes with onpath: it counts by keys, and
// exports its counts by IPFIX (RFC 7011).
package monitor

import (
	"cmp"
	"context"
	_ "embed" // for the object
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/functions/ebpf-monitor/ipfix"
	"github.com/onpath/onpath/sdk"
)

//go:generate make -C ../../bpf functions

//go:embed monitor.o
var object []byte

// Function is the monitor.
var Function = sdk.Function{Name: "monitor", Object: object, Compile: compile, Accompany: accompany, Keys: keys}

// monitorConfig is struct onpath_config of monitor.bpf.c.
type monitorConfig struct{ By, Sample, Prefix4, Prefix6 uint32 }

// export says where counts go.
type export struct {
	collector netip.AddrPort // not valid: nowhere
	every     time.Duration
}

const (
	defaultExport = 10 * time.Second
	minExport     = time.Second
	maxSample     = 1_000_000
	countsTable   = "counts"
)

// compile reads what the monitor is told.
func compile(config sdk.Config) (sdk.Write, error) {
	c, _, err := read(config)
	if err != nil {
		return nil, err
	}
	return func(tables sdk.Tables) error { return tables[sdk.ConfigTable].Put(uint32(0), c) }, nil
}

func read(config sdk.Config) (c monitorConfig, x export, err error) {
	c, x = monitorConfig{Sample: 1, Prefix4: 32, Prefix6: 64}, export{every: defaultExport}
	err = config.Read("monitor", sdk.Readers{
		"by": sdk.OneOf(&c.By, "flow", "source", "destination", "protocol", "port"),
		"sample": func(value string) error {
			if err := sdk.UpTo(&c.Sample, maxSample)(value); err != nil || c.Sample > 0 {
				return err
			}
			return sdk.Invalid(value, "write 1 to count all, n to count one in n")
		},
		"prefix4": sdk.UpTo(&c.Prefix4, 32),
		"prefix6": sdk.UpTo(&c.Prefix6, 128),
		"collector": func(value string) (err error) {
			if x.collector, err = netip.ParseAddrPort(strings.TrimSpace(value)); err != nil {
				return sdk.Invalid(value, "write ADDRESS:PORT; IPFIX collectors listen on port 4739")
			}
			return nil
		},
		"every": sdk.Within(&x.every, minExport, time.Hour, "write 1s to 1h"),
	})
	return c, x, err
}

// accompany sends what an instance counts to its collector.
func accompany(config sdk.Config, in *sdk.Instance) func(context.Context) {
	_, x, err := read(config)
	if err != nil || !x.collector.IsValid() {
		return nil
	}
	before, err := readCounts(in.Tables[countsTable])
	if err != nil {
		in.Log.Warn("cannot export flows", "instance", in.ID, "err", err)
	}
	return func(ctx context.Context) { runExport(ctx, in, x, before) }
}

// countKey and countValue are struct key and struct count.
type countKey struct {
	Src, Dst         [16]byte
	SrcPort, DstPort [2]byte
	Protocol, Family uint8
	Direction        uint8
	Typed            uint8 // ICMP: DstPort is its type and code
}

type countValue struct {
	Packets, Bytes uint64
	First, Last    uint64 // ns, monotonic
}

func readCounts(m *ebpf.Map) (map[countKey]countValue, error) {
	out := map[countKey]countValue{}
	var k countKey
	var v countValue
	it := m.Iterate()
	for it.Next(&k, &v) {
		out[k] = v
	}
	if err := it.Err(); err != nil {
		return nil, fmt.Errorf("read the monitor's counts: %w", err)
	}
	return out, nil
}

func (k countKey) addr(a [16]byte) netip.Addr {
	if a == [16]byte{} {
		return netip.Addr{}
	}
	return netip.AddrFrom16(a).Unmap()
}

// String is the key as a label: the parts that it has.
func (k countKey) String() string {
	var parts []string
	add := func(name, value string) { parts = append(parts, name+"="+value) }
	if a := k.addr(k.Src); a.IsValid() {
		add("src", a.String())
	}
	if a := k.addr(k.Dst); a.IsValid() {
		add("dst", a.String())
	}
	if k.Protocol != 0 {
		add("protocol", fmt.Sprint(k.Protocol))
	}
	if k.Typed != 0 {
		add("type", fmt.Sprint(k.DstPort[0]))
		add("code", fmt.Sprint(k.DstPort[1]))
		return strings.Join(parts, " ")
	}
	if p := binary.BigEndian.Uint16(k.SrcPort[:]); p != 0 {
		add("sport", fmt.Sprint(p))
	}
	if p := binary.BigEndian.Uint16(k.DstPort[:]); p != 0 {
		add("dport", fmt.Sprint(p))
	}
	return strings.Join(parts, " ")
}

// deltas are the records of what changed between two readings. now and mono are
// the same instant by two clocks.
func deltas(before, after map[countKey]countValue, since, now time.Time, mono uint64) []ipfix.Record {
	var out []ipfix.Record
	for k, v := range after {
		old := before[k]
		if v.Packets < old.Packets { // went and came again
			old = countValue{}
		}
		if v.Packets == old.Packets {
			continue
		}
		r := ipfix.Record{
			Src: k.addr(k.Src), Dst: k.addr(k.Dst), Protocol: k.Protocol, Family: k.Family, Reverse: k.Direction == 1, Typed: k.Typed != 0,
			SrcPort: binary.BigEndian.Uint16(k.SrcPort[:]), DstPort: binary.BigEndian.Uint16(k.DstPort[:]),
			Packets: v.Packets - old.Packets, Bytes: v.Bytes - old.Bytes,
			Start: since, End: now.Add(-time.Duration(mono - v.Last)),
		}
		if old.Packets == 0 {
			r.Start = now.Add(-time.Duration(mono - v.First))
		}
		out = append(out, r)
	}
	slices.SortFunc(out, func(a, b ipfix.Record) int { return cmp.Compare(b.Packets, a.Packets) })
	return out
}

func monotonic() uint64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return 0
	}
	return uint64(ts.Nano())
}

// maxKeys are shown as metrics, those with the most packets.
const maxKeys = 1000

// keys are those with the most packets. Protocols and ports are counted for each IP
// version, which IPFIX tells apart and the name of a key does not: they are one.
func keys(tables sdk.Tables) ([]onpath.KeyCount, error) {
	all, err := readCounts(tables[countsTable])
	if err != nil {
		return nil, err
	}
	type named struct {
		key     string
		reverse bool
	}
	sums := make(map[named]onpath.Tally, len(all))
	for k, v := range all {
		n := named{k.String(), k.Direction == 1}
		sum := sums[n]
		sums[n] = onpath.Tally{Packets: sum.Packets + v.Packets, Bytes: sum.Bytes + v.Bytes}
	}
	out := make([]onpath.KeyCount, 0, len(sums))
	for n, sum := range sums {
		out = append(out, onpath.KeyCount{Key: n.key, Reverse: n.reverse, Count: sum})
	}
	slices.SortFunc(out, func(a, b onpath.KeyCount) int {
		return cmp.Or(cmp.Compare(b.Count.Packets, a.Count.Packets), cmp.Compare(a.Key, b.Key))
	})
	return out[:min(len(out), maxKeys)], nil
}
