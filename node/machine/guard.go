package machine

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/node/base"
)

// guard is a table of nftables, which needs no agent: what strict chains select is dropped
// where the kernel forwards it from a device that has an uplink's name and is not the one
// to which the data path is attached. What the data path steers is not seen there.
type guard struct {
	netNS string

	mu     sync.Mutex
	rules  guardRules
	hash   string         // of rules in force
	counts map[string]int // of rules in force, by chain
	tried  bool
	failed error
}

// guardRules say what is dropped where.
type guardRules struct {
	Uplinks []guardedUplink
	// Tiers are the selections of strict chains in order of precedence, by tier. One that
	// is not dropped ends its tier.
	Tiers [][]guardRule
	// All of what is forwarded there is dropped: there are too many rules.
	All bool
}

type guardedUplink struct {
	Device string
	Index  int // 0: none has the data path
}

type guardRule struct {
	Match onpath.Match
	Drop  bool
}

// GuardTable is the name of the table, in the family inet.
const GuardTable = "onpath-guard"

// Beyond these, all is dropped that is forwarded from such a device.
const (
	maxGuardRules    = 2000
	maxGuardPrefixes = 20000
)

// guardRulesOf are for the uplinks that are held, and what is in force.
func guardRulesOf(c *onpath.DatapathConfig, edge *onpath.Edge, held map[string]heldUplink) (g guardRules) {
	strict := map[onpath.PathID]bool{}
	for _, p := range c.Paths {
		strict[p.ID] = p.Strict
	}
	rules, prefixes, drops := 0, 0, false
	for _, tier := range []onpath.Tier{onpath.TierOperator, onpath.TierTenant} {
		i := slices.IndexFunc(c.Tables, func(t onpath.Table) bool { return t.ID == onpath.ClassifierTable(tier) })
		if i < 0 {
			continue
		}
		var list []guardRule
		for _, r := range c.Tables[i].Rules {
			list = append(list, guardRule{r.Match, strict[r.Path]})
			drops = drops || strict[r.Path]
			rules++
			prefixes += len(r.Match.Src) + len(r.Match.Dst)
		}
		g.Tiers = append(g.Tiers, list)
	}
	if !drops || edge == nil {
		return guardRules{}
	}
	for _, u := range edge.Uplinks {
		if h, ok := held[u.Name]; ok && needsForwarding(u) {
			g.Uplinks = append(g.Uplinks, guardedUplink{h.Device, h.Index})
		}
	}
	if len(g.Uplinks) == 0 {
		return guardRules{}
	}
	if rules > maxGuardRules || prefixes > maxGuardPrefixes {
		g.Tiers, g.All = nil, true
	}
	return g
}

// set has the rules in force, unless they are.
func (g *guard) set(rules guardRules) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.rules = rules
	if hash := base.Hash(rules); !g.tried || hash != g.hash || g.failed != nil {
		g.failed = g.write()
		g.tried, g.hash = true, hash
	}
	return g.failed
}

// check puts the rules in force again if somebody took some away, and says why they are
// not, if so. there is how many rules each chain has; nil: that could not be read, by err.
func (g *guard) check(there map[string]int, err error) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.tried || len(g.rules.Uplinks) == 0 {
		return g.failed
	}
	if there == nil && g.failed == nil {
		return err
	}
	if g.failed != nil || !maps.Equal(there, g.counts) {
		g.failed = g.write()
	}
	return g.failed
}

// guardBatch is more than the rules at the bounds need in one step, in bytes; the kernel
// answers each message of it before the first answer is read.
const guardBatch = 64 << 20

// withNFT opens nftables in a network namespace.
func withNFT(netNS string, do func(*nftables.Conn) error) error {
	opts := []nftables.ConnOption{nftables.WithSockOptions(
		func(c *netlink.Conn) error { return c.SetWriteBuffer(guardBatch) },
		func(c *netlink.Conn) error { return c.SetReadBuffer(2 * guardBatch) },
	)}
	if netNS != "" {
		ns, err := netns.GetFromPath(netNS)
		if err != nil {
			return fmt.Errorf("open network namespace %s: %w", netNS, err)
		}
		defer ns.Close()
		opts = append(opts, nftables.WithNetNSFd(int(ns)))
	}
	conn, err := nftables.New(opts...)
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	return do(conn)
}

// RemoveGuard takes the table away; there may be none.
func RemoveGuard(netNS string) (found bool, err error) {
	err = withNFT(netNS, func(c *nftables.Conn) error {
		tables, err := c.ListTablesOfFamily(nftables.TableFamilyINet)
		i := slices.IndexFunc(tables, func(t *nftables.Table) bool { return t.Name == GuardTable })
		if found = i >= 0; !found {
			return err
		}
		c.DelTable(tables[i])
		return c.Flush()
	})
	return found, err
}

// write replaces the table, in one step.
func (g *guard) write() error {
	if len(g.rules.Uplinks) == 0 {
		_, err := RemoveGuard(g.netNS)
		if g.hash == "" {
			return nil // there was none, and a kernel without nftables needs none
		}
		return err
	}
	return withNFT(g.netNS, func(c *nftables.Conn) error {
		t := &nftables.Table{Family: nftables.TableFamilyINet, Name: GuardTable}
		c.AddTable(t)
		c.DelTable(t)
		w := &guardWriter{conn: c, table: c.AddTable(t), sets: map[string]*nftables.Set{}, counts: map[string]int{}}
		if err := w.write(g.rules); err != nil {
			return err
		}
		if err := c.Flush(); err != nil {
			return fmt.Errorf("set table inet %s: %w", GuardTable, err)
		}
		g.counts = w.counts
		return nil
	})
}

type guardWriter struct {
	conn   *nftables.Conn
	table  *nftables.Table
	sets   map[string]*nftables.Set
	counts map[string]int // of rules, by chain
}

func (w *guardWriter) write(rules guardRules) error {
	strict := w.chain(&nftables.Chain{Name: "strict"})
	var tiers []*nftables.Chain
	for i := range rules.Tiers {
		tiers = append(tiers, w.chain(&nftables.Chain{Name: fmt.Sprintf("tier%d", i+1)}))
	}
	for i, list := range rules.Tiers {
		for _, r := range list {
			if err := w.selection(tiers[i], r); err != nil {
				return err
			}
		}
		w.rule(strict, jump(tiers[i].Name))
	}
	if rules.All {
		w.rule(strict, verdict(expr.VerdictDrop))
	}
	accept := nftables.ChainPolicyAccept
	forward := w.chain(&nftables.Chain{Name: "forward", Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityRef(*nftables.ChainPriorityFilter - 10), Policy: &accept})
	for _, u := range rules.Uplinks {
		name := make([]byte, unix.IFNAMSIZ)
		copy(name, u.Device)
		// What came in by a port of a VRF comes in by the VRF's own device there.
		for _, key := range [][2]expr.MetaKey{{expr.MetaKeyIIFNAME, expr.MetaKeyIIF}, {metaSDIFName, metaSDIF}} {
			exprs := []expr.Any{&expr.Meta{Key: key[0], Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: name}}
			if u.Index != 0 {
				exprs = append(exprs, &expr.Meta{Key: key[1], Register: 1},
					&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: binaryutil.NativeEndian.PutUint32(uint32(u.Index))})
			}
			w.rule(forward, append(exprs, jump(strict.Name))...)
		}
	}
	return nil
}

// These name the port of a VRF by which a packet came in (NFT_META_SDIF, NFT_META_SDIFNAME;
// Linux 5.6).
const (
	metaSDIF     expr.MetaKey = 33
	metaSDIFName expr.MetaKey = 34
)

func (w *guardWriter) chain(c *nftables.Chain) *nftables.Chain {
	c.Table = w.table
	w.counts[c.Name] = 0
	return w.conn.AddChain(c)
}

func (w *guardWriter) rule(c *nftables.Chain, exprs ...expr.Any) {
	w.counts[c.Name]++
	w.conn.AddRule(&nftables.Rule{Table: w.table, Chain: c, Exprs: exprs})
}

func verdict(k expr.VerdictKind) expr.Any { return &expr.Verdict{Kind: k} }

func jump(chain string) expr.Any { return &expr.Verdict{Kind: expr.VerdictJump, Chain: chain} }

// selection adds the rules for a match: one for each version of IP.
func (w *guardWriter) selection(c *nftables.Chain, r guardRule) error {
	m := &r.Match
	for _, v6 := range []bool{false, true} {
		family, offset, size := byte(unix.NFPROTO_IPV4), uint32(12), uint32(4)
		if v6 {
			family, offset, size = unix.NFPROTO_IPV6, 8, 16
		}
		src, dst := ofVersion(m.Src, v6), ofVersion(m.Dst, v6)
		if m.Family == 4 && v6 || m.Family == 6 && !v6 || len(m.Src) > 0 && len(src) == 0 || len(m.Dst) > 0 && len(dst) == 0 {
			continue
		}
		exprs := []expr.Any{&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{family}}}
		for i, list := range [][]netip.Prefix{src, dst} {
			in, err := w.addresses(list, v6)
			if err != nil {
				return err
			}
			if in != nil {
				load := &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset + uint32(i)*size, Len: size}
				exprs = append(exprs, load, in)
			}
		}
		if len(m.Protocol) > 0 {
			var list []span
			for _, p := range m.Protocol {
				list = append(list, span{[]byte{p}, []byte{p}})
			}
			in, err := w.lookup(list, nftables.TypeInetProto)
			if err != nil {
				return err
			}
			exprs = append(exprs, &expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, in)
		}
		for i, list := range [][]onpath.PortRange{m.SrcPorts, m.DstPorts} {
			if len(list) == 0 {
				continue
			}
			var spans []span
			for _, p := range list {
				spans = append(spans, span{binary.BigEndian.AppendUint16(nil, p.First), binary.BigEndian.AppendUint16(nil, p.Last)})
			}
			in, err := w.lookup(spans, nftables.TypeInetService)
			if err != nil {
				return err
			}
			exprs = append(exprs, &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: uint32(i) * 2, Len: 2}, in)
		}
		k := expr.VerdictReturn
		if r.Drop {
			k = expr.VerdictDrop
		}
		w.rule(c, append(exprs, verdict(k))...)
	}
	return nil
}

func ofVersion(list []netip.Prefix, v6 bool) (out []netip.Prefix) {
	for _, p := range list {
		if p.Addr().Is6() == v6 {
			out = append(out, p)
		}
	}
	return out
}

// span is from one value to another, both included.
type span struct{ from, to []byte }

// addresses matches a list of prefixes; nil: all addresses.
func (w *guardWriter) addresses(list []netip.Prefix, v6 bool) (expr.Any, error) {
	var spans []span
	for _, p := range list {
		if p.Bits() == 0 {
			return nil, nil
		}
		from := p.Masked().Addr().AsSlice()
		to := slices.Clone(from)
		for bit := p.Bits(); bit < len(to)*8; bit++ {
			to[bit/8] |= 0x80 >> (bit % 8)
		}
		spans = append(spans, span{from, to})
	}
	if len(spans) == 0 {
		return nil, nil
	}
	if v6 {
		return w.lookup(spans, nftables.TypeIP6Addr)
	}
	return w.lookup(spans, nftables.TypeIPAddr)
}

// setBatch is how many ranges fit into one message to the kernel.
const setBatch = 400

// lookup matches what register 1 has against ranges; equal lists share a set.
func (w *guardWriter) lookup(list []span, of nftables.SetDatatype) (expr.Any, error) {
	slices.SortFunc(list, func(a, b span) int { return bytes.Compare(a.from, b.from) })
	var key strings.Builder
	fmt.Fprint(&key, of.Name)
	var merged []span
	for _, s := range list {
		if n := len(merged); n > 0 && bytes.Compare(s.from, after(merged[n-1].to)) <= 0 || n > 0 && after(merged[n-1].to) == nil {
			if bytes.Compare(s.to, merged[n-1].to) > 0 {
				merged[n-1].to = s.to
			}
			continue
		}
		merged = append(merged, s)
	}
	if len(merged) == 1 { // thousands of sets would take the kernel seconds
		return &expr.Range{Op: expr.CmpOpEq, Register: 1, FromData: merged[0].from, ToData: merged[0].to}, nil
	}
	for _, s := range merged {
		fmt.Fprintf(&key, " %x-%x", s.from, s.to)
	}
	set := w.sets[key.String()]
	if set == nil {
		set = &nftables.Set{Table: w.table, Name: fmt.Sprintf("set%d", len(w.sets)+1), Interval: true, KeyType: of}
		for i := 0; i == 0 || i < len(merged); i += setBatch {
			var elements []nftables.SetElement
			for _, s := range merged[i:min(i+setBatch, len(merged))] {
				elements = append(elements, nftables.SetElement{Key: s.from})
				if end := after(s.to); end != nil {
					elements = append(elements, nftables.SetElement{Key: end, IntervalEnd: true})
				}
			}
			var err error
			if i == 0 {
				err = w.conn.AddSet(set, elements)
			} else {
				err = w.conn.SetAddElements(set, elements)
			}
			if err != nil {
				return nil, fmt.Errorf("set %s of table inet %s: %w", set.Name, GuardTable, err)
			}
		}
		w.sets[key.String()] = set
	}
	return &expr.Lookup{SourceRegister: 1, SetName: set.Name, SetID: set.ID}, nil
}

// after is the next value; nil: there is none.
func after(v []byte) []byte {
	next := slices.Clone(v)
	for i := len(next) - 1; i >= 0; i-- {
		if next[i]++; next[i] != 0 {
			return next
		}
	}
	return nil
}
