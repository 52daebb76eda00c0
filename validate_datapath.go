package onpath

import "net"

// Validate says what no driver may accept: identifiers out of range or twice,
// references to peers that are not there, unknown words. References to tables,
// groups and vports that are missing are no errors: packets that meet one are
// dropped as DropNoTable, or go by Lost and None, until the plan is in step.
func (c *DatapathConfig) Validate() error {
	v := &validation{object: "data path of node " + c.Node}
	peers := map[string]bool{}
	for i, p := range c.Peers {
		at := index("peers", i)
		unique(v, at+".node", peers, p.Node)
		if !p.Address.IsValid() {
			v.add(at+".address", "", "is missing")
		}
		if p.Secret > MaxID24 {
			v.add(at+".secret", "", "%d has more than 24 bits", p.Secret)
		}
	}
	vports := map[VportID]bool{}
	if c.Edge != nil {
		v.id24("edge.vport", uint32(c.Edge.Vport))
		vports[c.Edge.Vport] = true
		for i, u := range c.Edge.Uplinks {
			if u.Device == "" {
				v.add(index("edge.uplinks", i)+".device", "", "is missing")
			}
		}
	}
	for i := range c.Vports {
		v.vport(index("vports", i), &c.Vports[i], vports, peers)
	}
	functions := map[VportID]bool{}
	for i, f := range c.Functions {
		at := index("functions", i)
		unique(v, at+".vport", functions, f.Vport)
		if !vports[f.Vport] {
			v.add(at+".vport", "", "%d is not among the vports", f.Vport)
		}
		if f.Object == "" || f.Maps == "" {
			v.add(at, "", "lacks its object or the folder of its maps")
		}
	}
	tables := map[TableID]bool{}
	for i, t := range c.Tables {
		at := index("tables", i)
		unique(v, at+".id", tables, t.ID)
		v.action(at+".miss", t.Miss)
		for j, r := range t.Rules {
			v.rule(index(at+".rules", j), r)
		}
	}
	groups := map[GroupID]bool{}
	for i, g := range c.Groups {
		v.group(index("groups", i), g, groups)
	}
	paths := map[PathID]bool{}
	for i, p := range c.Paths {
		unique(v, index("paths", i)+".id", paths, p.ID)
		if p.MTU < 0 || p.MTU > MaxMTU {
			v.add(index("paths", i)+".mtu", "", "%d is no MTU", p.MTU)
		}
		if p.MaxFlows < 0 {
			v.add(index("paths", i)+".maxFlows", "", "%d is negative", p.MaxFlows)
		}
		p.Idle.validate(v, index("paths", i)+".idle")
	}
	tenants := map[string]bool{}
	for i, t := range c.Tenants {
		unique(v, index("tenants", i)+".name", tenants, t.Name)
		if t.MaxNewFlows < 0 || t.MaxNewFlows > MostNewFlows {
			v.add(index("tenants", i)+".maxNewFlows", "", "%d is out of range: 0 to %d", t.MaxNewFlows, MostNewFlows)
		}
	}
	return v.err()
}

func unique[K comparable](v *validation, field string, seen map[K]bool, k K) {
	var zero K
	switch {
	case k == zero:
		v.add(field, "", "is missing")
	case seen[k]:
		v.add(field, "", "%v stands here twice", k)
	}
	seen[k] = true
}

func (v *validation) id24(field string, id uint32) {
	if id == 0 || id > MaxID24 {
		v.add(field, "", "%d is not between 1 and %d", id, MaxID24)
	}
}

func (v *validation) vport(at string, p *Vport, seen map[VportID]bool, peers map[string]bool) {
	v.id24(at+".id", uint32(p.ID))
	if seen[p.ID] {
		v.add(at+".id", "", "%d stands here twice", p.ID)
	}
	seen[p.ID] = true
	enum(v, at+".state", &p.State, "", VportUp, VportClosed, VportDraining)
	if !enum(v, at+".kind", &p.Kind, "", VportInstance, VportFunction, VportRemote) || p.Kind == VportFunction {
		return
	}
	if p.Kind == VportRemote {
		if !peers[p.Peer] {
			v.add(at+".peer", "", "%q is not among the peers", p.Peer)
		}
		return
	}
	v.mac(at+".mac", p.MAC)
	v.mac(at+".hostMAC", p.HostMAC)
	if p.MaxFlows < 0 {
		v.add(at+".maxFlows", "", "%d is negative", p.MaxFlows)
	}
	for field, rate := range map[string]uint64{".rateIn": p.RateIn, ".rateOut": p.RateOut} {
		if rate != 0 && (rate < MinRate || rate > MaxRate) {
			v.add(at+field, "", "%d bit/s is out of range: %d to %d", rate, uint64(MinRate), uint64(MaxRate))
		}
	}
}

func (v *validation) mac(field, s string) {
	if _, err := net.ParseMAC(s); err != nil {
		v.add(field, "", "%s is no MAC address", quote(s))
	}
}

func (v *validation) rule(at string, r Rule) {
	v.action(at+".action", r.Action)
	if f := r.Match.Family; f != 0 && f != 4 && f != 6 {
		v.add(at+".match.family", "", "%d is neither 4 nor 6", f)
	}
}

func (v *validation) action(at string, a Action) {
	if !enum(v, at+".kind", &a.Kind, "", ActionGroup, ActionTable, ActionExit, ActionRoute, ActionDeliver, ActionDrop) {
		return
	}
	switch a.Kind {
	case ActionGroup:
		v.id24(at+".group", uint32(a.Group))
	case ActionTable:
		if a.Table == 0 {
			v.add(at+".table", "", "is missing")
		}
	case ActionDeliver:
		v.id24(at+".vport", uint32(a.Vport))
	case ActionDrop:
		enum(v, at+".reason", &a.Reason, DropPolicy, DropReasons...)
	}
}

func (v *validation) group(at string, g Group, seen map[GroupID]bool) {
	v.id24(at+".id", uint32(g.ID))
	if seen[g.ID] {
		v.add(at+".id", "", "%d stands here twice", g.ID)
	}
	seen[g.ID] = true
	enum(v, at+".mode", &g.Mode, "", ModeInline, ModeMirror)
	enum(v, at+".lost", &g.Lost, "", LostRepick, LostReset)
	enum(v, at+".none", &g.None, "", NoneDrop, NoneBypass)
	if g.Together != "" {
		enum(v, at+".together", &g.Together, "", TogetherFlow, TogetherSource, TogetherHosts)
	}
	if !g.Together.Apart() && len(g.Weights) > 0 {
		v.add(at+".weights", "take one of the two out", "contradict together: %s", g.Together)
	}
	for i, m := range g.Members {
		v.id24(index(at+".members", i)+".vport", uint32(m.Vport))
	}
	rows := map[uint32]bool{}
	for i, r := range g.Weights {
		row := index(at+".weights", i)
		if rows[r.From] {
			v.add(row+".from", "", "%d stands here twice", r.From)
		}
		rows[r.From] = true
		if len(r.Weights) != len(g.Members) {
			v.add(row+".weights", "give each member one", "there are %d weights for %d members", len(r.Weights), len(g.Members))
		}
		for j, w := range r.Weights {
			v.number(index(row+".weights", j), int(w), 0, MaxRowWeight)
		}
	}
}
