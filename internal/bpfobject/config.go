package bpfobject

import (
	"encoding/binary"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/sdk"
)

// Values encodes what a function is told as its struct onpath_config. Members that
// are not named are zero.
func (o *Object) Values(config map[string]string) ([]byte, error) {
	if o.Config == nil {
		if len(config) > 0 {
			name := slices.Sorted(maps.Keys(config))[0]
			return nil, sdk.About(name, refuse("take it out", "the function has no setting %s: it declares no configuration", quoted(name)))
		}
		return nil, nil
	}
	out := make([]byte, o.Config.Size)
	members := map[string]btf.Member{}
	for _, m := range o.Config.Members {
		members[m.Name] = m
	}
	for _, name := range slices.Sorted(maps.Keys(config)) {
		m, ok := members[name]
		if !ok {
			known := slices.Sorted(maps.Keys(members))
			remedy := "its settings are " + strings.Join(known, ", ")
			if w := onpath.Nearest(name, known); w != "" {
				remedy = "did you mean " + w + "?"
			}
			return nil, sdk.About(name, refuse(remedy, "the function has no setting %s", quoted(name)))
		}
		if err := encodeMember(out[m.Offset.Bytes():], m.Type, strings.TrimSpace(config[name])); err != nil {
			return nil, sdk.About(name, err)
		}
	}
	return out, nil
}

func encodeMember(out []byte, t btf.Type, value string) error {
	switch t := btf.UnderlyingType(t).(type) {
	case *btf.Int:
		n, err := number(value)
		if err != nil {
			return err
		}
		if t.Size < 8 && n>>(t.Size*8) != 0 {
			return refuse("", "%s is too large for %d bits", quoted(value), t.Size*8)
		}
		var b [8]byte
		binary.NativeEndian.PutUint64(b[:], n) // the machine is little-endian, as the programs are
		copy(out[:t.Size], b[:])
		return nil
	case *btf.Array:
		el, ok := btf.UnderlyingType(t.Type).(*btf.Int)
		if !ok || el.Size != 1 {
			break
		}
		if el.Encoding == btf.Char || el.Name == "char" {
			if len(value) >= int(t.Nelems) {
				return refuse("", "%s has more than %d letters", quoted(value), t.Nelems-1)
			}
			copy(out, value)
			return nil
		}
		if t.Nelems == 16 {
			a, err := netip.ParseAddr(value)
			if err != nil {
				return refuse("write an IPv4 or IPv6 address", "%s is not an address", quoted(value))
			}
			b := a.As16()
			copy(out, b[:])
			return nil
		}
	}
	return refuse("declare it as an integer, __u8[16] or char[]", "it is of a type that cannot be told")
}

// number reads an integer, true or false, a duration (ns), a rate (bits a second)
// or a size (bytes).
func number(s string) (uint64, error) {
	switch s {
	case "true", "yes", "on":
		return 1, nil
	case "false", "no", "off", "":
		return 0, nil
	}
	if n, err := strconv.ParseUint(s, 0, 64); err == nil {
		return n, nil
	}
	if d, err := time.ParseDuration(s); err == nil && d >= 0 {
		return uint64(d), nil
	}
	var r onpath.Rate
	if err := r.UnmarshalText([]byte(s)); err == nil && r >= 0 {
		return uint64(r), nil
	}
	var z onpath.Size
	if err := z.UnmarshalText([]byte(s)); err == nil && z >= 0 {
		return uint64(z), nil
	}
	return 0, refuse("write a number, true or false, 10ms, 100Mbit or 64Ki", "%s is not a number", quoted(s))
}

// Configure encodes and writes the configuration, in one step.
func (o *Object) Configure(tables map[string]*ebpf.Map, config map[string]string) error {
	b, err := o.Values(config)
	if err != nil || b == nil {
		return err
	}
	return tables[ConfigTable].Put(uint32(0), b)
}

// ReadCounters gives the declared counters, summed over CPUs.
func (o *Object) ReadCounters(tables map[string]*ebpf.Map) (map[string]uint64, error) {
	if o.Counters == nil {
		return nil, nil
	}
	var perCPU [][]byte
	if err := tables[CountersTable].Lookup(uint32(0), &perCPU); err != nil {
		return nil, err
	}
	out := map[string]uint64{}
	for _, m := range o.Counters.Members {
		at := m.Offset.Bytes()
		if n, ok := btf.UnderlyingType(m.Type).(*btf.Int); !ok || n.Size != 8 {
			continue
		}
		for _, b := range perCPU {
			out[m.Name] += binary.NativeEndian.Uint64(b[at:])
		}
	}
	return out, nil
}
