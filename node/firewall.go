package node

import (
	"fmt"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// firewall is what the host's netfilter does to forwarded packets. Steered
// packets do not pass it, so an uplink on which it matters is refused.
type firewall struct {
	drop string // the forward chain whose policy is drop
	nat  []natRule
}

// natRule is one translating rule; a device it does not concern is no matter.
type natRule struct {
	place string          // table and chain
	only  map[string]bool // device names it matches; nil: any
	not   map[string]bool // device names it excludes
}

// objection says why packets over the device must not pass the firewall by; ""
// if nothing speaks against it.
func (f firewall) objection(device string) string {
	if f.drop != "" {
		return fmt.Sprintf("the host's firewall drops what it does not know (chain %s has policy drop)", f.drop)
	}
	for _, r := range f.nat {
		if r.not[device] || r.only != nil && !r.only[device] {
			continue
		}
		return fmt.Sprintf("the host translates addresses on %s (a rule in chain %s)", device, r.place)
	}
	return ""
}

// inspectFirewall reads nftables (and iptables in its nft form) in the
// namespace at path, and old iptables where the kernel still has its tables.
func inspectFirewall(path string) (firewall, error) {
	opts := []nftables.ConnOption{}
	if path != "" {
		ns, err := netns.GetFromPath(path)
		if err != nil {
			return firewall{}, fmt.Errorf("open network namespace %s: %w", path, err)
		}
		defer ns.Close()
		opts = append(opts, nftables.WithNetNSFd(int(ns)))
	}
	conn, err := nftables.New(opts...)
	if err != nil {
		return firewall{}, fmt.Errorf("open nftables: %w", err)
	}
	chains, err := conn.ListChains()
	if err != nil {
		return firewall{}, fmt.Errorf("list nftables chains: %w", err)
	}
	var f firewall
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
			return f, fmt.Errorf("list the rules of nftables chain %s: %w", place, err)
		}
		for _, r := range rules {
			if translates(r) {
				f.nat = append(f.nat, devicesOf(r, place))
			}
		}
	}
	legacy, err := inspectLegacy(path)
	if err != nil {
		return f, err
	}
	if f.drop == "" {
		f.drop = legacy.drop
	}
	f.nat = append(f.nat, legacy.nat...)
	return f, nil
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

// devicesOf finds which devices a rule names: a look at the input or output
// device's name or index, directly followed by a comparison.
func devicesOf(r *nftables.Rule, place string) natRule {
	out := natRule{place: place}
	for i, e := range r.Exprs {
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
