package ratelimit

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/cilium/ebpf"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/sdk"
)

// Bounds of a list of circuits.
const (
	maxCircuits = 10_000
	maxPrefixes = 32_768 // half of the table, so that another list fits beside one in force
)

// circuit is a line of the list: addresses of one subscriber, and what they may receive
// and send together, bits a second.
type circuit struct {
	prefixes []prefixKey
	down, up uint64
}

// prefixKey is struct prefix.
type prefixKey struct {
	Bits uint32
	Addr [16]byte
}

// circuitValue is struct circuit.
type circuitValue struct {
	ID       uint32
	_        uint32
	Down, Up uint64
}

const lineRemedy = "write a circuit's addresses or prefixes, then its rates down and up: 192.0.2.7 2001:db8:7::/56 100Mbit 20Mbit"

// readCircuits reads one circuit a line. What follows a # is a comment.
func readCircuits(value string) (list []circuit, err error) {
	lines := map[prefixKey]int{}
	for i, line := range strings.Split(value, "\n") {
		line, _, _ = strings.Cut(line, "#")
		words := strings.FieldsFunc(line, func(r rune) bool { return r == ' ' || r == '\t' || r == '\r' || r == ',' })
		if len(words) == 0 {
			continue
		}
		c, err := readCircuit(words)
		if err != nil {
			return nil, sdk.InLine(i+1, err)
		}
		for j, p := range c.prefixes {
			if first, ok := lines[p]; ok {
				return nil, sdk.InLine(i+1, &onpath.Error{
					Code: onpath.CodeInvalid, Message: fmt.Sprintf("%s stands in line %d already", words[j], first),
					Remedy: "write each address once: it has one rate down and one up",
				})
			}
			lines[p] = i + 1
		}
		list = append(list, *c)
	}
	if len(list) == 0 {
		return nil, &onpath.Error{Code: onpath.CodeInvalid, Message: "the list is empty",
			Remedy: "write a circuit's addresses and rates, or leave the list out"}
	}
	if len(list) > maxCircuits || len(lines) > maxPrefixes {
		return nil, sdk.Invalid(fmt.Sprintf("a list of %d circuits with %d addresses", len(list), len(lines)),
			fmt.Sprintf("write at most %d circuits with %d addresses and prefixes in all", maxCircuits, maxPrefixes))
	}
	return list, nil
}

func readCircuit(words []string) (*circuit, error) {
	n := len(words) - 2
	if n < 1 {
		return nil, sdk.Invalid(strings.Join(words, " "), lineRemedy)
	}
	c := &circuit{}
	for _, w := range words[:n] {
		p, err := readPrefix(w)
		if err != nil {
			return nil, err
		}
		c.prefixes = append(c.prefixes, p)
	}
	for i, out := range []*uint64{&c.down, &c.up} {
		var r onpath.Rate
		if err := r.UnmarshalText([]byte(words[n+i])); err != nil || r < 1000 || r > maxRate {
			return nil, sdk.Invalid(words[n+i], "end the line with the rates down and up, from 1kbit to 100Gbit: 100Mbit 20Mbit")
		}
		*out = uint64(r)
	}
	return c, nil
}

// readPrefix reads an address or a prefix. Short ones are refused: they are no circuit's.
func readPrefix(word string) (k prefixKey, err error) {
	p, err := netip.ParsePrefix(word)
	if a, noPrefix := netip.ParseAddr(word); noPrefix == nil && a.Zone() == "" {
		p, err = netip.PrefixFrom(a.Unmap(), a.Unmap().BitLen()), nil
	}
	if err != nil || p.Addr().Is4In6() || p != p.Masked() || p.Bits() < 8 || p.Addr().Is6() && p.Bits() < 16 {
		return k, sdk.Invalid(word, lineRemedy+" (prefixes from /8, IPv6 from /16, without bits behind their length)")
	}
	k.Addr, k.Bits = p.Addr().As16(), uint32(p.Bits())
	if p.Addr().Is4() {
		k.Bits += 96
	}
	return k, nil
}

// writeCircuits makes the list the one in force. A circuit that has an address of one in force
// keeps the buckets, and what stays as it is is not written.
func writeCircuits(m *ebpf.Map, list []circuit) error {
	have, err := circuitsInForce(m)
	if err != nil {
		return fmt.Errorf("read the circuits in force: %w", err)
	}
	var keys []prefixKey
	var values []circuitValue
	ids := idsFor(list, have)
	for i, c := range list {
		for _, p := range c.prefixes {
			v := circuitValue{ID: ids[i], Down: c.down, Up: c.up}
			if was, ok := have[p]; !ok || was != v {
				keys, values = append(keys, p), append(values, v)
			}
			delete(have, p)
		}
	}
	for i := range keys {
		if err := m.Put(keys[i], values[i]); err != nil {
			return fmt.Errorf("add the circuits of %d prefixes: %w", len(keys), err)
		}
	}
	for p := range have {
		if err := m.Delete(p); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("take out the circuits of %d prefixes: %w", len(have), err)
		}
	}
	return nil
}

// idsFor gives circuits the ids of those in force that have an address of theirs, and the
// others ids that are free.
func idsFor(list []circuit, have map[prefixKey]circuitValue) []uint32 {
	ids, taken := make([]uint32, len(list)), map[uint32]bool{}
	for i, c := range list {
		for _, p := range c.prefixes {
			if v, ok := have[p]; ok && ids[i] == 0 && !taken[v.ID] {
				ids[i], taken[v.ID] = v.ID, true
			}
		}
	}
	for _, v := range have { // packets may still meet them
		taken[v.ID] = true
	}
	next := uint32(1)
	for i := range ids {
		for ; ids[i] == 0; next++ {
			if !taken[next] {
				ids[i] = next
			}
		}
	}
	return ids
}

func circuitsInForce(m *ebpf.Map) (map[prefixKey]circuitValue, error) {
	have := map[prefixKey]circuitValue{}
	keys, values := make([]prefixKey, 4096), make([]circuitValue, 4096)
	var at ebpf.MapBatchCursor
	for {
		n, err := m.BatchLookup(&at, keys, values, nil)
		for i := range n {
			have[keys[i]] = values[i]
		}
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			return have, nil
		}
		if err != nil {
			return nil, err
		}
	}
}
