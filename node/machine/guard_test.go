package machine

import (
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/netnsrun"
)

// guardOf is a guard in a network namespace of its own, and what sees that namespace.
func guardOf(t *testing.T) (*guard, func(func(*nftables.Conn) error)) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root to create network namespaces")
	}
	path := filepath.Join(t.TempDir(), "host")
	if err := netnsrun.Create(path); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := netnsrun.Remove(path); err != nil {
			t.Error(err)
		}
	})
	return &guard{netNS: path}, func(do func(*nftables.Conn) error) {
		t.Helper()
		if err := withNFT(path, do); err != nil {
			t.Fatal(err)
		}
	}
}

// rulesAt are so many strict rules that share nothing, with so many prefixes.
func rulesAt(rules, prefixes int) guardRules {
	g := guardRules{Uplinks: []guardedUplink{{"up0", 7}}, Tiers: make([][]guardRule, 2)}
	each := prefixes / rules
	for i := range rules {
		m := onpath.Match{Protocol: []uint8{unix.IPPROTO_TCP, unix.IPPROTO_UDP},
			SrcPorts: []onpath.PortRange{{First: uint16(i), Last: uint16(2 * i)}}, DstPorts: []onpath.PortRange{{First: 1, Last: uint16(i + 1)}}}
		for j := range each {
			n := i*each + j
			p := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(n >> 15), byte(n >> 7), byte(n << 1)}), 32)
			if j%2 == 1 {
				p = netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfd, 13: byte(n >> 16), 14: byte(n >> 8), 15: byte(n)}), 128)
			}
			m.Src = append(m.Src, p)
		}
		g.Tiers[i%2] = append(g.Tiers[i%2], guardRule{m, i%3 > 0})
	}
	return g
}

// TestGuardAtItsBounds: as many rules and prefixes as may be are in force, one by one.
func TestGuardAtItsBounds(t *testing.T) {
	g, see := guardOf(t)
	began := time.Now()
	if err := g.set(rulesAt(maxGuardRules, maxGuardPrefixes)); err != nil {
		t.Fatal(err)
	}
	t.Logf("to set them took %s", time.Since(began).Round(time.Millisecond))
	see(func(c *nftables.Conn) error {
		n := 0
		for _, chain := range []string{"tier1", "tier2"} {
			table := &nftables.Table{Family: nftables.TableFamilyINet, Name: GuardTable}
			rules, err := c.GetRules(table, &nftables.Chain{Table: table, Name: chain})
			if err != nil {
				return err
			}
			n += len(rules)
		}
		if n != 2*maxGuardRules { // each for both versions of IP
			t.Errorf("%d rules are in force, must be %d", n, 2*maxGuardRules)
		}
		return nil
	})
	began = time.Now()
	if err := look(t, g); err != nil {
		t.Fatal(err)
	}
	t.Logf("the check took %s", time.Since(began).Round(time.Millisecond))
}

// TestGuardComesBack: rules that somebody takes away are in force again after the next look,
// whatever is left of the table; a table of another's is left alone.
func TestGuardComesBack(t *testing.T) {
	g, see := guardOf(t)
	table := &nftables.Table{Family: nftables.TableFamilyINet, Name: GuardTable}
	rules := func() map[string]int {
		out := map[string]int{}
		see(func(c *nftables.Conn) error {
			chains, err := c.ListChainsOfTableFamily(nftables.TableFamilyINet)
			for _, chain := range chains {
				list, err := c.GetRules(chain.Table, chain)
				if err != nil {
					return err
				}
				out[chain.Table.Name+" "+chain.Name] = len(list)
			}
			return err
		})
		return out
	}
	see(func(c *nftables.Conn) error {
		c.AddChain(&nftables.Chain{Name: "mine", Table: c.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: "onpath"})})
		return c.Flush()
	})
	if err := g.set(rulesAt(20, 40)); err != nil {
		t.Fatal(err)
	}
	whole := rules()
	if whole[GuardTable+" forward"] != 2 || whole[GuardTable+" strict"] != 2 || whole[GuardTable+" tier1"] != 20 {
		t.Fatalf("the rules are %v", whole)
	}
	for name, take := range map[string]func(*nftables.Conn){
		"the table":     func(c *nftables.Conn) { c.DelTable(table) },
		"all rules":     func(c *nftables.Conn) { c.FlushTable(table) },
		"a tier's":      func(c *nftables.Conn) { c.FlushChain(&nftables.Chain{Table: table, Name: "tier2"}) },
		"the forward's": func(c *nftables.Conn) { c.FlushChain(&nftables.Chain{Table: table, Name: "forward"}) },
	} {
		see(func(c *nftables.Conn) error { take(c); return c.Flush() })
		if maps.Equal(rules(), whole) {
			t.Fatalf("%s: nothing was taken away", name)
		}
		if err := look(t, g); err != nil {
			t.Fatal(err)
		}
		if got := rules(); !maps.Equal(got, whole) {
			t.Errorf("%s: the rules are %v, must be %v", name, got, whole)
		}
	}
	found, err := RemoveGuard(g.netNS)
	if got := rules(); err != nil || !found || len(got) != 1 {
		t.Errorf("removed: %t, %v; left are %v", found, err, got)
	}
}

// look checks a guard as each look at the machine does.
func look(t *testing.T, g *guard) error {
	t.Helper()
	f, err := inspectFirewall(g.netNS)
	return g.check(f.guard, err)
}
