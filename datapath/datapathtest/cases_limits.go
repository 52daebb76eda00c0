package datapathtest

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/onpath/onpath"
)

// limits: a configuration may be as large as the contract says, and no larger: then it
// is refused by its limit, and the one before stays.
func limits(b *testbed) {
	fw := b.instance("fw", gateway)
	l := one(&chain{path: 1, match: toServer()}, fw)
	b.apply(l)
	for _, x := range []struct {
		what  string
		limit int
		// fill adds until there are n, and says in which field.
		fill func(c *onpath.DatapathConfig, n int) (field string)
	}{
		{"cells", onpath.MaxTableCells, fillCells},
		{"members", onpath.MaxMembers, fillMembers},
		{"paths", onpath.MaxPaths, func(c *onpath.DatapathConfig, n int) string {
			for id := onpath.PathID(2); len(c.Paths) < n; id++ {
				c.Paths = append(c.Paths, onpath.Path{ID: id, Chain: "exam/chain", Tenant: "exam"})
			}
			return "paths"
		}},
		{"addresses of instances", onpath.MaxOwn, func(c *onpath.DatapathConfig, n int) string {
			for at := range n {
				v := &c.Vports[slices.IndexFunc(c.Vports, func(v onpath.Vport) bool { return v.Kind == onpath.VportInstance })]
				v.Own = append(v.Own, netip.AddrFrom4([4]byte{10, 200, byte(at >> 8), byte(at)}))
			}
			return "vports"
		}},
		{"vports", onpath.MaxVports, func(c *onpath.DatapathConfig, n int) string {
			for id := onpath.VportID(1000); len(c.Vports)+1 < n; id++ { // with the edge
				c.Vports = append(c.Vports, elsewhere(id))
			}
			return "vports"
		}},
		{"tables", onpath.MaxTables, func(c *onpath.DatapathConfig, n int) string {
			for id := onpath.TableID(1 << 20); len(c.Tables) < n; id++ {
				c.Tables = append(c.Tables, onpath.Table{ID: id, Miss: onpath.Action{Kind: onpath.ActionExit}})
			}
			return "tables"
		}},
		{"prefixes", onpath.MaxNAT, func(c *onpath.DatapathConfig, n int) string {
			for i := range n {
				c.Edge.NAT = append(c.Edge.NAT, netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 168, byte(i), 0}), 24))
			}
			return "edge.nat"
		}},
	} {
		full, over := b.config(gateway, l), b.config(gateway, l)
		x.fill(full, x.limit)
		b.configure(gateway, full)
		b.forward(udp4(1), fw)
		field := x.fill(over, x.limit+1)
		if x.what != "members" {
			over.Groups = nil // would show if any of it came into force
		}
		err := b.nodes[gateway].dp.Apply(b.t.Context(), over)
		if err == nil {
			b.t.Fatalf("%d %s were accepted", x.limit+1, x.what)
		}
		if onpath.CodeOf(err) != onpath.CodeNoCapacity || !strings.Contains(err.Error(), field) || !strings.Contains(err.Error(), strconv.Itoa(x.limit)) {
			b.t.Errorf("%d %s give %q (%v), must be %q with %s and the limit %d", x.limit+1, x.what, onpath.CodeOf(err), err, onpath.CodeNoCapacity, field, x.limit)
		}
		b.forward(udp4(1), fw)
		b.backward(udp4(1), fw)
	}
}

// elsewhere is a vport of another node that takes nothing.
func elsewhere(id onpath.VportID) onpath.Vport {
	return onpath.Vport{ID: id, Kind: onpath.VportRemote, State: onpath.VportClosed, Peer: "n2"}
}

func fillMembers(c *onpath.DatapathConfig, n int) string {
	for id := onpath.VportID(1000); len(c.Groups[0].Members) < n; id++ {
		c.Vports = append(c.Vports, elsewhere(id))
		c.Groups[0].Members = append(c.Groups[0].Members, onpath.Member{Vport: id, Key: uint32(id), Weight: 1})
	}
	return "groups[0].members"
}

func fillCells(c *onpath.DatapathConfig, n int) string {
	for _, t := range c.Tables {
		n--
		for i := range t.Rules {
			n -= t.Rules[i].Match.PlainRules()
		}
	}
	policy := onpath.Action{Kind: onpath.ActionDrop, Reason: onpath.DropPolicy}
	for id := onpath.TableID(1 << 20); n > 0; id++ {
		t := onpath.Table{ID: id, Miss: policy}
		for range min(n-1, onpath.SmallTable) {
			t.Rules = append(t.Rules, onpath.Rule{Action: policy})
		}
		n -= 1 + len(t.Rules)
		c.Tables = append(c.Tables, t)
	}
	return "tables"
}
