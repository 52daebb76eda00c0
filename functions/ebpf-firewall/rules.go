package firewall

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/onpath/onpath"
)

// Limits of firewall.bpf.c.
const (
	firewallRules    = 4096
	firewallVectors  = 8192
	firewallPrefixes = 8192
	firewallPorts    = 65537 // and one for packets without
	firewallEnds     = 5
	fromListed       = 1 // bits in what ends has at firewallEnds - 1
	toListed         = 2
	namesList        = 256 // in an action
)

// fireRule is one rule; empty lists match everything.
type fireRule struct {
	action           uint32
	protocols        []uint8
	from, to         []netip.Prefix // IPv4 ones mapped
	fromPorts, ports []onpath.PortRange
	listed           uint32 // ends that must be in the list
}

// theList is what stands in rules for what is in the list of addresses.
const theList = "blocklist"

var fireActions = map[string]uint32{"allow": 0, "drop": 1, "refuse": 2}

// parseRules reads one rule a line:
//
//	allow|drop|refuse [PROTOCOL[,…]] [from PREFIX[,…]|any|blocklist] [port P[-Q][,…]] [to PREFIX[,…]|any|blocklist] [port P[-Q][,…]]
//
// A port behind from is the source's, else the destination's.
func parseRules(text string) ([]fireRule, error) {
	var out []fireRule
	for n, line := range strings.Split(text, "\n") {
		line, _, _ = strings.Cut(line, "#")
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		r, err := parseRule(words)
		if err != nil {
			e := onpath.Errorf(onpath.CodeInvalid, "line %d: %w", n+1, err)
			e.Remedy = "write: allow|drop|refuse [tcp,udp,icmp,NUMBER] [from PREFIX,…] [port P-Q,…] [to PREFIX,…] [port P-Q,…]"
			return nil, e
		}
		if out = append(out, r); len(out) > firewallRules {
			return nil, onpath.Errorf(onpath.CodeInvalid, "line %d: there are more than %d rules", n+1, firewallRules)
		}
	}
	return out, nil
}

func parseRule(words []string) (r fireRule, err error) {
	action, ok := fireActions[words[0]]
	if !ok {
		return r, onpath.Errorf(onpath.CodeInvalid, "%q is neither allow, drop nor refuse", words[0])
	}
	r.action = action
	words = words[1:]
	if len(words) > 0 && !slices.Contains([]string{"from", "to", "port"}, words[0]) {
		if r.protocols, err = parseProtocols(words[0]); err != nil {
			return r, err
		}
		words = words[1:]
	}
	source := false
	seen := map[string]bool{}
	for len(words) > 0 {
		if words[0] != "port" && seen[words[0]] {
			return r, onpath.Errorf(onpath.CodeInvalid, "%q stands here twice", words[0])
		}
		seen[words[0]] = true
		if len(words) == 1 {
			return r, onpath.Errorf(onpath.CodeInvalid, "nothing stands behind %q", words[0])
		}
		switch words[0] {
		case "from":
			source = true
			if words[1] == theList {
				r.listed |= fromListed
				break
			}
			r.from, err = parsePrefixes(words[1])
		case "to":
			source = false
			if words[1] == theList {
				r.listed |= toListed
				break
			}
			r.to, err = parsePrefixes(words[1])
		case "port", "ports":
			var ports []onpath.PortRange
			if ports, err = parsePorts(words[1]); source {
				r.fromPorts = ports
			} else {
				r.ports = ports
			}
		default:
			err = onpath.Errorf(onpath.CodeInvalid, "%q is not understood", words[0])
		}
		if err != nil {
			return r, err
		}
		words = words[2:]
	}
	for _, p := range r.protocols {
		if len(r.ports)+len(r.fromPorts) > 0 && !slices.Contains([]uint8{6, 17, 132, 136}, p) {
			return r, onpath.Errorf(onpath.CodeInvalid, "protocol %d has no ports", p)
		}
	}
	return r, nil
}

func parseProtocols(s string) (out []uint8, err error) {
	for _, w := range strings.Split(s, ",") {
		switch w {
		case "any":
			return nil, nil
		case "tcp":
			out = append(out, 6)
		case "udp":
			out = append(out, 17)
		case "icmp":
			out = append(out, 1, 58)
		default:
			n, err := strconv.ParseUint(w, 10, 8)
			if err != nil {
				return nil, onpath.Errorf(onpath.CodeInvalid, "%q is not a protocol", w)
			}
			out = append(out, uint8(n))
		}
	}
	return out, nil
}

func parsePrefixes(s string) (out []netip.Prefix, err error) {
	if s == "any" {
		return nil, nil
	}
	for _, w := range strings.Split(s, ",") {
		p, err := netip.ParsePrefix(w)
		if a, aerr := netip.ParseAddr(w); aerr == nil {
			p, err = netip.PrefixFrom(a, a.BitLen()), nil
		}
		if err != nil {
			return nil, onpath.Errorf(onpath.CodeInvalid, "%q is not a prefix", w)
		}
		out = append(out, mapped(p))
	}
	return out, nil
}

// mapped is a prefix as the programs see it.
func mapped(p netip.Prefix) netip.Prefix {
	if p = p.Masked(); p.Addr().Is4() {
		return netip.PrefixFrom(netip.AddrFrom16(p.Addr().As16()), p.Bits()+96)
	}
	return p
}

func parsePorts(s string) (out []onpath.PortRange, err error) {
	for _, w := range strings.Split(s, ",") {
		var r onpath.PortRange
		if err := r.UnmarshalText([]byte(w)); err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	return out, nil
}
