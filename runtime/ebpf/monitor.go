package ebpf

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/inline"
	"github.com/onpath/onpath/internal/ipfix"
)

// monitorConfig is struct onpath_config of functions/ebpf-monitor/monitor.bpf.c.
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

// compileMonitor reads by, sample, prefix4, prefix6, collector and every.
func compileMonitor(o *inline.Object, config map[string]string) (write, error) {
	c, _, err := monitorValues(config)
	if err != nil {
		return nil, err
	}
	return func(tables map[string]*ebpf.Map) error { return tables[inline.ConfigTable].Put(uint32(0), c) }, nil
}

func monitorValues(config map[string]string) (c monitorConfig, x export, err error) {
	c, x = monitorConfig{Sample: 1, Prefix4: 32, Prefix6: 64}, export{every: defaultExport}
	for _, name := range slices.Sorted(maps.Keys(config)) {
		value := strings.TrimSpace(config[name])
		switch name {
		case "by":
			c.By, err = oneOf(name, value, "flow", "source", "destination", "protocol", "port")
		case "sample":
			if c.Sample, err = small(name, value, maxSample); c.Sample == 0 && err == nil {
				err = invalidValue(name, value, "write 1 to count all, n to count one in n")
			}
		case "prefix4":
			c.Prefix4, err = small(name, value, 32)
		case "prefix6":
			c.Prefix6, err = small(name, value, 128)
		case "collector":
			if x.collector, err = netip.ParseAddrPort(value); err != nil {
				err = invalidValue(name, value, "write ADDRESS:PORT; IPFIX collectors listen on port 4739")
			}
		case "every":
			if x.every, err = time.ParseDuration(value); err != nil || x.every < minExport || x.every > time.Hour {
				err = invalidValue(name, value, "write 1s to 1h")
			}
		default:
			e := onpath.Errorf(onpath.CodeInvalid, "the monitor cannot be told %q", name)
			e.Remedy = "it can be told by, collector, every, prefix4, prefix6, sample"
			err = e
		}
		if err != nil {
			return c, x, err
		}
	}
	return c, x, nil
}

// countKey and countValue are struct key and struct count.
type countKey struct {
	Src, Dst         [16]byte
	SrcPort, DstPort [2]byte
	Protocol, Family uint8
	Direction, Pad   uint8
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
			Src: k.addr(k.Src), Dst: k.addr(k.Dst), Protocol: k.Protocol, Family: k.Family, Reverse: k.Direction == 1,
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

// Keys implements onpath.KeyedCounters. Protocols and ports are counted for each IP
// version, which IPFIX tells apart and the name of a key does not: they are one.
func (p *process) Keys() ([]onpath.KeyCount, error) {
	if p.function.name != "monitor" || p.tables[countsTable] == nil {
		return nil, nil
	}
	all, err := readCounts(p.tables[countsTable])
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
