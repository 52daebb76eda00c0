// Package publicaddr tells which addresses lead to somebody on the internet, for programs
// that connect to where strangers say.
package publicaddr

import (
	"net/netip"
	"slices"
)

// others lead to a machine's own surroundings (RFC 6890 and its registries), or to where
// clouds tell machines who they are, beside link-local addresses.
var others = prefixes("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12",
	"192.0.0.0/24", "192.168.0.0/16", "198.18.0.0/15", "224.0.0.0/3", "168.63.129.16/32",
	"::/96", "64:ff9b::/96", "64:ff9b:1::/48", "100::/64", "2001::/23", "2002::/16", "fc00::/7", "fe80::/9", "ff00::/8")

func prefixes(texts ...string) (out []netip.Prefix) {
	for _, t := range texts {
		out = append(out, netip.MustParsePrefix(t))
	}
	return out
}

// Is reports whether an address is public. It is to be asked when a connection is made, after
// all names are resolved: a name that changes its address then does not help.
func Is(a netip.Addr) bool { return !In(others, a) }

// In reports whether one of the prefixes has an address, or what it stands for: the IPv4
// address of a mapped one, without a zone.
func In(list []netip.Prefix, a netip.Addr) bool {
	a = a.Unmap().WithZone("")
	return slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(a) })
}
