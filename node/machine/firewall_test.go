package machine

import (
	"net/netip"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
)

// TestLeadsPastChains: a rule that leads packets for the router's address to where a chain
// selects them is an objection; one that leads them elsewhere, or behind a device that is no
// uplink, is none.
func TestLeadsPastChains(t *testing.T) {
	host := func(a ...byte) []netip.Prefix {
		return []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte(a)), 32)}
	}
	chains := transit{selected: []onpath.Match{{Dst: host(10, 0, 0, 5)}}, behind: []netip.Prefix{netip.MustParsePrefix("172.17.0.0/16")}}
	router := []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 16, Len: 4},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{203, 0, 113, 5}},
	}
	local := []expr.Any{
		&expr.Fib{Register: 1, FlagDADDR: true, ResultADDRTYPE: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.RTN_LOCAL, 0, 0, 0}},
	}
	to := func(first, last []byte) []expr.Any {
		nat := &expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: 1}
		out := []expr.Any{&expr.Immediate{Register: 1, Data: first}}
		if last != nil {
			nat.RegAddrMax = 2
			out = append(out, &expr.Immediate{Register: 2, Data: last})
		}
		return append(out, nat)
	}
	unread := []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 12, Len: 4},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: 1},
	}
	for _, k := range []struct {
		name   string
		exprs  []expr.Any
		jumped bool // from a rule for packets to this machine
		object bool
	}{
		{"to what a chain selects", append(router[:2:2], to([]byte{10, 0, 0, 5}, nil)...), false, true},
		{"to a range with it", append(router[:2:2], to([]byte{10, 0, 0, 1}, []byte{10, 0, 0, 9})...), false, true},
		{"to another", append(router[:2:2], to([]byte{10, 0, 0, 6}, nil)...), false, false},
		{"to a range without it", append(router[:2:2], to([]byte{10, 0, 0, 6}, []byte{10, 0, 0, 9})...), false, false},
		{"behind no uplink", append(router[:2:2], to([]byte{172, 17, 0, 2}, nil)...), false, false},
		{"to nobody knows where", append(router[:2:2], unread...), false, true},
		{"for this machine's addresses", append(local[:2:2], to([]byte{10, 0, 0, 5}, nil)...), false, true},
		{"for this machine's, behind no uplink", append(local[:2:2], to([]byte{172, 17, 0, 2}, nil)...), false, false},
		{"as Docker publishes a port", to([]byte{172, 17, 0, 2}, nil), true, false},
		{"as Docker would to a chain's", to([]byte{10, 0, 0, 5}, nil), true, true},
		{"to a port of the machine's", append(local[:2:2], &expr.Redir{}), false, false},
	} {
		t.Run(k.name, func(t *testing.T) {
			g, see := guardOf(t)
			see(func(c *nftables.Conn) error {
				table := c.AddTable(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: "host"})
				in := c.AddChain(&nftables.Chain{Table: table, Name: "in", Type: nftables.ChainTypeNAT,
					Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityNATDest})
				if k.jumped {
					from := in
					in = c.AddChain(&nftables.Chain{Table: table, Name: "published"})
					c.AddRule(&nftables.Rule{Table: table, Chain: from, Exprs: append(local[:2:2], jump("published"))})
				}
				c.AddRule(&nftables.Rule{Table: table, Chain: in, Exprs: k.exprs})
				return c.Flush()
			})
			f, err := inspectFirewall(g.netNS)
			if err != nil {
				t.Fatal(err)
			}
			if why := f.objection("up0", chains); (why != "") != k.object {
				t.Errorf("it says %q", why)
			}
			if why := f.objection("up0", transit{}); why != "" && !k.jumped {
				t.Errorf("without a chain it says %q", why)
			}
		})
	}
	table := &nftables.Table{Family: nftables.TableFamilyIPv4}
	four, six := []byte{10, 0, 0, 5}, netip.MustParseAddr("fd00::5").AsSlice()
	for _, info := range []xt.InfoAny{ // as iptables says it
		&xt.NatIPv4MultiRangeCompat{{MinIP: four, MaxIP: four}},
		&xt.NatRange{MinIP: six, MaxIP: six}, &xt.NatRange2{NatRange: xt.NatRange{MinIP: four, MaxIP: four}},
	} {
		got, dnat := leadsTo(&nftables.Rule{Table: table, Exprs: []expr.Any{&expr.Target{Name: "DNAT", Info: info}}})
		if s := got[0].String(); !dnat || s != "10.0.0.5" && s != "fd00::5" || got[0] != got[1] {
			t.Errorf("%T leads to %v, %t", info, got, dnat)
		}
	}
}
