package machine

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
)

// firewall is what the host's netfilter does to forwarded packets. Steered
// packets do not pass it, so an uplink on which it matters is refused.
type firewall struct {
	drop string // the forward chain whose policy is drop
	nat  []natRule
	// guard is how many rules each chain of the guard has; nil: that could not be read.
	guard map[string]int
}

// natRule is one translating rule; a device it does not concern is no matter.
type natRule struct {
	place string          // table and chain
	only  map[string]bool // device names it matches; nil: any
	not   map[string]bool // device names it excludes
	// src and dst are the prefixes that it matches; the zero prefix: any.
	src, dst netip.Prefix
	local    bool // it is for packets to this machine alone
	// dnat: it leads packets to other addresses, the first to the last; zero: not known.
	dnat bool
	to   [2]netip.Addr
}

// transit is the traffic that may pass the firewall by.
type transit struct {
	selected []onpath.Match // what chains select; a zero prefix list is any address
	// behind are networks of this machine's other devices: nothing from there comes in at
	// an uplink.
	behind []netip.Prefix
}

// transitOf is the traffic of the chains in a plan.
func transitOf(plan *onpath.NodePlan, behind []netip.Prefix) transit {
	t := transit{behind: behind}
	if plan == nil {
		return t
	}
	c := &plan.Datapath
	for i := range c.Tables {
		if !isClassifier(c.Tables[i].ID) {
			continue
		}
		for _, r := range c.Tables[i].Rules {
			if r.Path != 0 {
				t.selected = append(t.selected, r.Match)
			}
		}
	}
	return t
}

// isClassifier tells the tables that packets meet at an edge.
func isClassifier(id onpath.TableID) bool {
	return id == onpath.ClassifierTable(onpath.TierOperator) || id == onpath.ClassifierTable(onpath.TierTenant)
}

// meets reports whether a translating rule concerns what chains select, or would if it
// came in by the address to which the rule leads it. One for all addresses does, whatever
// chains select.
func (t transit) meets(r natRule) bool {
	if !r.src.IsValid() && !r.dst.IsValid() && !r.local {
		return true
	}
	within := func(p netip.Prefix) bool { return p.Bits() <= r.src.Bits() && p.Overlaps(r.src) }
	if r.src.IsValid() && slices.ContainsFunc(t.behind, within) {
		return false
	}
	meets := func(list []netip.Prefix, p netip.Prefix) bool {
		return !p.IsValid() || len(list) == 0 || slices.ContainsFunc(list, p.Overlaps)
	}
	return slices.ContainsFunc(t.selected, func(m onpath.Match) bool {
		return meets(m.Src, r.src) && (!r.local && meets(m.Dst, r.dst) || r.dnat && t.leads(r.to, m.Dst))
	})
}

// leads reports whether a rule leads packets to where chains select them: not to networks
// behind a device that is no uplink.
func (t transit) leads(to [2]netip.Addr, selected []netip.Prefix) bool {
	first, last := to[0], to[1]
	if !first.IsValid() {
		return true
	}
	if slices.ContainsFunc(t.behind, func(p netip.Prefix) bool { return p.Contains(first) && p.Contains(last) }) {
		return false
	}
	return len(selected) == 0 || slices.ContainsFunc(selected, func(p netip.Prefix) bool {
		a := p.Masked().Addr()
		return p.Contains(first) || a.BitLen() == first.BitLen() && first.Less(a) && !last.Less(a)
	})
}

// objection says why packets over the device must not pass the firewall by; ""
// if nothing speaks against it.
func (f firewall) objection(device string, t transit) string {
	if f.drop != "" {
		return fmt.Sprintf("the host's firewall drops what it does not know (chain %s has policy drop)", f.drop)
	}
	for _, r := range f.nat {
		if r.not[device] || r.only != nil && !r.only[device] || !t.meets(r) {
			continue
		}
		if r.local {
			return fmt.Sprintf("the host leads packets on %s to other addresses, past their chains (a rule in chain %s)", device, r.place)
		}
		return fmt.Sprintf("the host translates addresses on %s (a rule in chain %s)", device, r.place)
	}
	return ""
}

// inspectFirewall reads nftables (and iptables in its nft form) in the
// namespace at path, and old iptables where the kernel still has its tables.
func inspectFirewall(path string) (f firewall, err error) {
	if err := withNFT(path, f.readNFT); err != nil {
		return f, err
	}
	legacy, err := inspectLegacy(path)
	f.drop, f.nat = cmp.Or(f.drop, legacy.drop), append(f.nat, legacy.nat...)
	return f, err
}

func (f *firewall) readNFT(conn *nftables.Conn) error {
	chains, err := conn.ListChains()
	if err != nil {
		return fmt.Errorf("list nftables chains: %w", err)
	}
	guard := map[string]int{}
	var nat []placedRule
	entries := map[string]int{} // to chains of rules by jumps: 1: for this machine alone, 2: for others
	for _, c := range chains {
		if !forwardsIP(c.Table.Family) {
			continue
		}
		place := familyName(c.Table.Family) + " " + c.Table.Name + " " + c.Name
		if c.Hooknum != nil && *c.Hooknum == *nftables.ChainHookForward && c.Policy != nil && *c.Policy == nftables.ChainPolicyDrop {
			f.drop = place
		}
		// A translation may also stand in a chain that a base chain jumps to.
		rules, err := conn.GetRules(c.Table, c)
		if err != nil {
			return fmt.Errorf("list the rules of nftables chain %s: %w", place, err)
		}
		if c.Table.Family == nftables.TableFamilyINet && c.Table.Name == GuardTable {
			guard[c.Name] = len(rules)
		}
		for _, r := range rules {
			if translates(r) {
				nat = append(nat, placedRule{r, place, c.Hooknum != nil})
			}
			for _, e := range r.Exprs {
				if v, ok := e.(*expr.Verdict); ok && v.Chain != "" {
					to := familyName(c.Table.Family) + " " + c.Table.Name + " " + v.Chain
					entries[to] = max(entries[to], 1)
					if !forItself(r) {
						entries[to] = 2
					}
				}
			}
		}
	}
	for _, r := range nat {
		rule := natRuleOf(r.Rule, r.place)
		rule.local = forItself(r.Rule) || !r.base && entries[r.place] == 1
		if rule.dnat || !rule.local {
			f.nat = append(f.nat, rule)
		}
	}
	f.guard = guard
	return nil
}

func forwardsIP(f nftables.TableFamily) bool {
	return f == nftables.TableFamilyIPv4 || f == nftables.TableFamilyIPv6 || f == nftables.TableFamilyINet
}

func familyName(f nftables.TableFamily) string {
	switch f {
	case nftables.TableFamilyIPv4:
		return "ip"
	case nftables.TableFamilyIPv6:
		return "ip6"
	}
	return "inet"
}

// translates reports whether the rule rewrites addresses.
func translates(r *nftables.Rule) bool {
	for _, e := range r.Exprs {
		switch e := e.(type) {
		case *expr.NAT, *expr.Masq, *expr.Redir:
			return true
		case *expr.Target: // iptables' in nft form
			switch e.Name {
			case "SNAT", "DNAT", "MASQUERADE", "REDIRECT", "NETMAP":
				return true
			}
		}
	}
	return false
}

// placedRule is a translating rule where it stands: in a chain of the kernel's (base) or
// in one that others jump to.
type placedRule struct {
	*nftables.Rule
	place string
	base  bool
}

// leadsTo reports whether a rule changes destinations, and to which, the first to the last;
// zero: they cannot be told.
func leadsTo(r *nftables.Rule) (to [2]netip.Addr, dnat bool) {
	between := func(first, last []byte) [2]netip.Addr {
		a, _ := netip.AddrFromSlice(first)
		b, ok := netip.AddrFromSlice(last)
		if !ok {
			b = a
		}
		return [2]netip.Addr{a.Unmap(), b.Unmap()}
	}
	for i, e := range r.Exprs {
		switch e := e.(type) {
		case *expr.NAT:
			if e.Type != expr.NATTypeDestNAT || e.RegAddrMin == 0 { // the port alone
				continue
			}
			var first, last []byte
			for i--; i >= 0; i-- {
				v, ok := r.Exprs[i].(*expr.Immediate)
				switch {
				case !ok:
					i = 0 // what comes before is not for the translation
				case v.Register == e.RegAddrMin:
					first = v.Data
				case v.Register == e.RegAddrMax:
					last = v.Data
				}
			}
			return between(first, last), true
		case *expr.Target:
			switch e.Name {
			case "NETMAP":
				return to, true
			case "DNAT":
				switch info := e.Info.(type) {
				case *xt.NatIPv4MultiRangeCompat:
					if len(*info) == 1 {
						return between((*info)[0].MinIP, (*info)[0].MaxIP), true
					}
				case *xt.NatRange:
					return between(info.MinIP, info.MaxIP), true
				case *xt.NatRange2:
					return between(info.MinIP, info.MaxIP), true
				}
				return to, true
			}
		}
	}
	return to, false
}

// forItself reports whether a rule is for packets to this machine alone, which no chain
// selects: the destination's type must be local.
func forItself(r *nftables.Rule) bool {
	for i, e := range r.Exprs {
		switch e := e.(type) {
		case *expr.Fib:
			if i+1 < len(r.Exprs) && e.ResultADDRTYPE && e.FlagDADDR {
				c, ok := r.Exprs[i+1].(*expr.Cmp)
				return ok && c.Op == expr.CmpOpEq && len(c.Data) == 4 && binary.NativeEndian.Uint32(c.Data) == unix.RTN_LOCAL
			}
		case *expr.Match: // iptables' in nft form
			switch info := e.Info.(type) {
			case *xt.AddrType:
				return info.Dest == 1<<unix.RTN_LOCAL && !info.InvertDest
			case *xt.AddrTypeV1:
				const invertDest = 2
				return info.Dest == 1<<unix.RTN_LOCAL && info.Flags&invertDest == 0
			}
		}
	}
	return false
}

// prefixAt is the prefix with which the i-th expression of a rule, a look at the packet's
// addresses, is compared, and whether it is the source.
func prefixAt(r *nftables.Rule, i int) (p netip.Prefix, src, ok bool) {
	load, is := r.Exprs[i].(*expr.Payload)
	if !is || load.Base != expr.PayloadBaseNetworkHeader {
		return p, false, false
	}
	long := r.Table.Family == nftables.TableFamilyIPv6
	size := 4
	switch {
	case !long && load.Len <= 4 && (load.Offset == 12 || load.Offset == 16):
		src = load.Offset == 12
	case r.Table.Family != nftables.TableFamilyIPv4 && load.Len <= 16 && (load.Offset == 8 || load.Offset == 24):
		src, size = load.Offset == 8, 16
	default:
		return p, false, false
	}
	bits := int(load.Len) * 8
	i++
	if i < len(r.Exprs) {
		if mask, is := r.Exprs[i].(*expr.Bitwise); is {
			ones, all := net.IPMask(mask.Mask).Size()
			if all == 0 && ones == 0 {
				return p, false, false
			}
			bits = ones
			i++
		}
	}
	if i >= len(r.Exprs) {
		return p, false, false
	}
	c, is := r.Exprs[i].(*expr.Cmp)
	if !is || c.Op != expr.CmpOpEq || len(c.Data) > size {
		return p, false, false
	}
	a, _ := netip.AddrFromSlice(append(slices.Clone(c.Data), make([]byte, size-len(c.Data))...))
	return netip.PrefixFrom(a, bits), src, true
}

// natRuleOf finds which devices a rule names, and which addresses: a look at the input or
// output device's name or index, or at an address, directly followed by a comparison.
func natRuleOf(r *nftables.Rule, place string) natRule {
	out := natRule{place: place}
	out.to, out.dnat = leadsTo(r)
	for i, e := range r.Exprs {
		if p, src, ok := prefixAt(r, i); ok && src {
			out.src = p
		} else if ok {
			out.dst = p
		}
		m, ok := e.(*expr.Meta)
		if !ok || m.Key != expr.MetaKeyOIFNAME && m.Key != expr.MetaKeyIIFNAME || i+1 >= len(r.Exprs) {
			continue
		}
		c, ok := r.Exprs[i+1].(*expr.Cmp)
		if !ok || c.Register != m.Register {
			continue
		}
		name := unix.ByteSliceToString(c.Data)
		if len(name) == len(c.Data) {
			continue // a prefix ("eth*"): any device may be meant
		}
		switch c.Op {
		case expr.CmpOpEq:
			if out.only == nil {
				out.only = map[string]bool{}
			}
			out.only[name] = true
		case expr.CmpOpNeq:
			if out.not == nil {
				out.not = map[string]bool{}
			}
			out.not[name] = true
		}
	}
	return out
}

// legacyNames are where old iptables lists the tables in use.
var legacyNames = []string{"/proc/thread-self/net/ip_tables_names", "/proc/thread-self/net/ip6_tables_names"}

// legacyTables are the names in such a file.
func legacyTables(data string) (nat, filter bool) {
	for _, name := range strings.Fields(data) {
		nat = nat || name == "nat"
		filter = filter || name == "filter"
	}
	return nat, filter
}
