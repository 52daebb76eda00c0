// Package firewall is the stateless firewall that comes with onpath: rules compiled to
// bit vectors, one for each field (Lakshman and Stiliadis, SIGCOMM 1998).
package firewall

import (
	_ "embed" // for the object
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/cilium/ebpf"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/sdk"
)

//go:generate make -C ../../bpf functions

//go:embed firewall.o
var object []byte

// Function is the firewall.
var Function = sdk.Function{Name: "firewall", Object: object, Compile: compile, Lists: map[string]string{theList: "listed"}}

// bitVector is struct vector: the rules that a value of one field allows.
type bitVector struct {
	Summary uint64
	Words   [firewallRules / 64]uint64
}

func (v *bitVector) set(rule int) {
	v.Words[rule/64] |= 1 << (rule % 64)
	v.Summary |= 1 << (rule / 64)
}

// fireTables is what one generation of the firewall's tables holds.
type fireTables struct {
	vectors  []bitVector
	index    map[bitVector]uint32
	from, to map[netip.Prefix]uint32
	// fromPorts and ports have one for each port, and one for packets without.
	fromPorts, ports []uint32
	protocols        [256]uint32
	actions          []uint32
	// ends has the rules for each way in which ends can be listed, and what rules ask of.
	ends        [firewallEnds]uint32
	list        []netip.Prefix
	otherwise   uint32
	established uint32
}

// compile reads what the firewall is told.
func compile(config sdk.Config) (sdk.Write, error) {
	t := &fireTables{index: map[bitVector]uint32{}, otherwise: fireActions["allow"]}
	var rules []fireRule
	err := config.Read("firewall", sdk.Readers{
		"default": func(value string) error {
			var ok bool
			if t.otherwise, ok = fireActions[strings.TrimSpace(value)]; !ok {
				return onpath.Errorf(onpath.CodeInvalid, "%q is neither allow, drop nor refuse", value)
			}
			return nil
		},
		"established": func(value string) error {
			switch strings.TrimSpace(value) {
			case "true":
				t.established = 1
			case "false":
			default:
				return onpath.Errorf(onpath.CodeInvalid, "%q is neither true nor false", value)
			}
			return nil
		},
		"rules": func(value string) (err error) {
			rules, err = parseRules(value)
			return err
		},
		theList: func(value string) error {
			var err error
			if t.list, _, err = onpath.ReadAddresses(value); err == nil && len(t.list) == 0 {
				err = &onpath.Error{Code: onpath.CodeInvalid, Message: "the list is empty",
					Remedy: "write what is to be blocked, or leave the list out"}
			}
			return err
		},
	})
	if err != nil {
		return nil, err
	}
	named := slices.IndexFunc(rules, func(r fireRule) bool { return r.listed != 0 })
	switch {
	case named >= 0 && t.list == nil:
		return nil, sdk.Missing(theList, "name a file in files: rules speak of it")
	case named < 0 && t.list != nil:
		drop := fireActions["drop"]
		rules = append([]fireRule{{action: drop, listed: fromListed}, {action: drop, listed: toListed}}, rules...)
	}
	if len(rules) > firewallRules {
		return nil, sdk.About("rules", onpath.Errorf(onpath.CodeInvalid,
			"there are %d rules, two for the list; at most %d", len(rules), firewallRules))
	}
	if err := t.fill(rules); err != nil {
		return nil, sdk.About("rules", err)
	}
	return t.write, nil
}

// fill works out the vectors of all fields.
func (t *fireTables) fill(rules []fireRule) (err error) {
	for _, r := range rules {
		action := r.action
		if r.listed != 0 {
			action |= namesList
		}
		t.actions = append(t.actions, action)
		t.ends[firewallEnds-1] |= r.listed
	}
	if t.from, err = t.prefixes("from", rules, func(r *fireRule) []netip.Prefix { return r.from }); err != nil {
		return err
	}
	if t.to, err = t.prefixes("to", rules, func(r *fireRule) []netip.Prefix { return r.to }); err != nil {
		return err
	}
	t.fromPorts = t.portClasses(rules, func(r *fireRule) []onpath.PortRange { return r.fromPorts })
	t.ports = t.portClasses(rules, func(r *fireRule) []onpath.PortRange { return r.ports })
	for p := range 256 {
		var v bitVector
		for i, r := range rules {
			if len(r.protocols) == 0 || slices.Contains(r.protocols, uint8(p)) {
				v.set(i)
			}
		}
		t.protocols[p] = t.vector(v)
	}
	for ends := range uint32(firewallEnds - 1) {
		var v bitVector
		for i, r := range rules {
			if r.listed&^ends == 0 {
				v.set(i)
			}
		}
		t.ends[ends] = t.vector(v)
	}
	if len(t.vectors) > firewallVectors {
		e := onpath.Errorf(onpath.CodeNoCapacity, "the rules need %d different sets; there is room for %d", len(t.vectors), firewallVectors)
		e.Remedy = "join rules that differ in their prefixes only"
		return e
	}
	return nil
}

func (t *fireTables) vector(v bitVector) uint32 {
	i, ok := t.index[v]
	if !ok {
		i = uint32(len(t.vectors))
		t.index[v] = i
		t.vectors = append(t.vectors, v)
	}
	return i
}

// allIPv4 are the IPv4 addresses as the program sees them: mapped.
var allIPv4 = netip.PrefixFrom(netip.AddrFrom16(netip.IPv4Unspecified().As16()), 96)

// prefixes gives each prefix the rules of all of its IP version that hold it, itself
// included: the longest prefix of an address decides.
func (t *fireTables) prefixes(what string, rules []fireRule, of func(*fireRule) []netip.Prefix) (map[netip.Prefix]uint32, error) {
	all := netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	named := map[netip.Prefix][]int{all: nil} // rules that name it
	var everywhere []int
	for i := range rules {
		list := of(&rules[i])
		if len(list) == 0 {
			everywhere = append(everywhere, i)
		}
		for _, p := range list {
			named[p] = append(named[p], i)
			if p.Bits() < allIPv4.Bits() && p.Contains(allIPv4.Addr()) && named[allIPv4] == nil {
				named[allIPv4] = []int{} // for IPv4 addresses that no IPv4 prefix holds
			}
		}
	}
	if len(named) > firewallPrefixes {
		return nil, onpath.Errorf(onpath.CodeNoCapacity, "the rules name %d different prefixes behind %s; there is room for %d",
			len(named), what, firewallPrefixes)
	}
	out := map[netip.Prefix]uint32{}
	for p := range named {
		var v bitVector
		for _, i := range everywhere {
			v.set(i)
		}
		least := 0
		if p.Addr().Is4In6() && p.Bits() >= allIPv4.Bits() {
			least = allIPv4.Bits()
		}
		for bits := least; bits <= p.Bits(); bits++ {
			for _, i := range named[netip.PrefixFrom(p.Addr(), bits).Masked()] {
				v.set(i)
			}
		}
		out[p] = t.vector(v)
	}
	return out, nil
}

// portClasses gives each port the rules that allow it.
func (t *fireTables) portClasses(rules []fireRule, of func(*fireRule) []onpath.PortRange) []uint32 {
	cuts := []int{0, firewallPorts - 1}
	for i := range rules {
		for _, r := range of(&rules[i]) {
			cuts = append(cuts, int(r.First), int(r.Last)+1)
		}
	}
	slices.Sort(cuts)
	cuts = slices.Compact(cuts)
	out := make([]uint32, firewallPorts)
	for k, begin := range cuts {
		end := firewallPorts
		if k+1 < len(cuts) {
			end = cuts[k+1]
		}
		var v bitVector
		for i := range rules {
			list := of(&rules[i])
			in := slices.ContainsFunc(list, func(r onpath.PortRange) bool { return begin < firewallPorts-1 && r.Contains(uint16(begin)) })
			if len(list) == 0 || in {
				v.set(i)
			}
		}
		n := t.vector(v)
		for port := begin; port < end; port++ {
			out[port] = n
		}
	}
	return out
}

// fireConfig is struct onpath_config of the firewall.
type fireConfig struct{ Generation, Otherwise, Established, Rules uint32 }

// write fills the generation that is not in use, and then makes it the present. The list
// grows before and shrinks behind. On an error what was before is in force.
func (t *fireTables) write(tables sdk.Tables) error {
	var now fireConfig
	if err := tables[sdk.ConfigTable].Lookup(uint32(0), &now); err != nil {
		return err
	}
	g := now.Generation&1 ^ 1
	list, err := difference(tables["listed"], t.list)
	if err != nil {
		return err
	}
	listed, present := tables["listed"], tables[sdk.ConfigTable]
	if err = t.fillGeneration(tables, g, list); err == nil {
		err = present.Put(uint32(0), fireConfig{g, t.otherwise, t.established, uint32(len(t.actions))})
	}
	if err != nil {
		return errors.Join(err, list.forget(listed))
	}
	if err = list.shrink(listed); err != nil { // what is gone comes back before the rules that ask for it
		return errors.Join(err, list.gone.write(listed), present.Put(uint32(0), now), list.forget(listed))
	}
	return nil
}

// fillGeneration writes what no packet is judged by yet, and what is new in the list.
func (t *fireTables) fillGeneration(tables sdk.Tables, g uint32, list *listChange) error {
	steps := []func() error{
		func() error { return list.added.write(tables["listed"]) },
		func() error { return writeArray(tables["ends"], g*firewallEnds, t.ends[:]) },
		func() error { return writePrefixes(tables["sources"], g, t.from) },
		func() error { return writePrefixes(tables["destinations"], g, t.to) },
		func() error { return writeArray(tables["vectors"], g*firewallVectors, t.vectors) },
		func() error { return writeArray(tables["source_ports"], g*firewallPorts, t.fromPorts) },
		func() error { return writeArray(tables["destination_ports"], g*firewallPorts, t.ports) },
		func() error { return writeArray(tables["protocols"], g*256, t.protocols[:]) },
		func() error { return writeArray(tables["actions"], g*firewallRules, t.actions) },
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// writeArray writes values from an index on.
func writeArray[V any](m *ebpf.Map, base uint32, values []V) error {
	const batch = 4096
	for len(values) > 0 {
		n := min(len(values), batch)
		keys := make([]uint32, n)
		for i := range keys {
			keys[i] = base + uint32(i)
		}
		if _, err := m.BatchUpdate(keys, values[:n], nil); err != nil {
			return fmt.Errorf("write %d entries: %w", n, err)
		}
		base, values = base+uint32(n), values[n:]
	}
	return nil
}

// prefixKey is struct prefix.
type prefixKey [4 + 1 + 16]byte

func keyOf(g uint32, p netip.Prefix) (k prefixKey) {
	binary.NativeEndian.PutUint32(k[:4], uint32(8+p.Bits()))
	k[4] = byte(g)
	a := p.Addr().As16()
	copy(k[5:], a[:])
	return k
}

// writePrefixes makes a generation hold these prefixes and no other.
func writePrefixes(m *ebpf.Map, g uint32, want map[netip.Prefix]uint32) error {
	var k prefixKey
	var v uint32
	var stale []prefixKey
	it := m.Iterate()
	for it.Next(&k, &v) {
		a := netip.AddrFrom16([16]byte(k[5:]))
		bits := int(binary.NativeEndian.Uint32(k[:4])) - 8
		if _, ok := want[netip.PrefixFrom(a, bits)]; k[4] == byte(g) && !ok {
			stale = append(stale, k)
		}
	}
	if err := it.Err(); err != nil {
		return err
	}
	for _, k := range stale {
		if err := m.Delete(k); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return err
		}
	}
	for p, v := range want {
		if err := m.Put(keyOf(g, p), v); err != nil {
			return err
		}
	}
	return nil
}
