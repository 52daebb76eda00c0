package plan

import "github.com/onpath/onpath"

// index answers questions about one node's plan. A nil index is that of no plan.
type index struct {
	plan   *onpath.NodePlan
	local  map[onpath.VportID]*onpath.Vport
	remote map[onpath.VportID]bool
	paths  map[onpath.PathID]*onpath.Path
	groups map[onpath.GroupID]*onpath.Group
	tables map[onpath.TableID]*onpath.Table
	peers  map[string]bool
	vports map[onpath.VportID]*onpath.Vport
	// sends holds (path, vport) for each remote member of each group.
	sends   map[send]bool
	edge    onpath.VportID
	secrets map[string]uint32        // by peer
	inside  map[string]*onpath.Peer  // peers by WireGuard
	parts   map[onpath.PathID]*parts // made when they are first asked for
}

// parts are what a plan has of a path.
type parts struct {
	tables           []onpath.Table
	groups           []onpath.Group
	forward, reverse []onpath.Rule // of the classifiers
	emits            map[onpath.TableID][]onpath.Rule
}

type send struct {
	path  onpath.PathID
	vport onpath.VportID
}

func indexOf(p *onpath.NodePlan) *index {
	if p == nil {
		return nil
	}
	d := &p.Datapath
	x := &index{
		plan: p, local: map[onpath.VportID]*onpath.Vport{}, remote: map[onpath.VportID]bool{}, vports: map[onpath.VportID]*onpath.Vport{},
		paths: map[onpath.PathID]*onpath.Path{}, groups: map[onpath.GroupID]*onpath.Group{},
		tables: map[onpath.TableID]*onpath.Table{}, peers: map[string]bool{}, sends: map[send]bool{}, secrets: map[string]uint32{},
		inside: map[string]*onpath.Peer{},
	}
	for i := range d.Vports {
		v := &d.Vports[i]
		x.vports[v.ID] = v
		if v.Kind == onpath.VportRemote {
			x.remote[v.ID] = true
		} else {
			x.local[v.ID] = v
		}
	}
	for i := range d.Paths {
		x.paths[d.Paths[i].ID] = &d.Paths[i]
	}
	for i := range d.Tables {
		x.tables[d.Tables[i].ID] = &d.Tables[i]
	}
	for i := range d.Groups {
		g := &d.Groups[i]
		x.groups[g.ID] = g
		for _, m := range g.Members {
			if x.remote[m.Vport] {
				x.sends[send{g.Path, m.Vport}] = true
			}
		}
	}
	for i := range d.Peers {
		p := &d.Peers[i]
		x.peers[p.Node] = true
		x.secrets[p.Node] = p.Secret
		if p.Inside {
			x.inside[p.Node] = p
		}
	}
	if d.Edge != nil {
		x.edge = d.Edge.Vport
	}
	return x
}

// of is what the plan has of a path.
func (x *index) of(id onpath.PathID) *parts {
	if x.parts == nil {
		x.findParts()
	}
	if p := x.parts[id]; p != nil {
		return p
	}
	return &parts{}
}

func (x *index) findParts() {
	x.parts = map[onpath.PathID]*parts{}
	at := func(id onpath.PathID) *parts {
		p := x.parts[id]
		if p == nil {
			p = &parts{emits: map[onpath.TableID][]onpath.Rule{}}
			x.parts[id] = p
		}
		return p
	}
	for _, t := range x.plan.Datapath.Tables {
		switch {
		case isClassifier(t.ID):
			for _, r := range t.Rules {
				if p := at(r.Path); r.Reverse {
					p.reverse = append(p.reverse, r)
				} else {
					p.forward = append(p.forward, r)
				}
			}
		case isEmit(t.ID):
			for _, r := range t.Rules {
				p := at(r.Path)
				p.emits[t.ID] = append(p.emits[t.ID], r)
			}
		default:
			p := at(onpath.PathID(t.ID >> 6))
			p.tables = append(p.tables, t)
		}
	}
	for _, g := range x.plan.Datapath.Groups {
		p := at(g.Path)
		p.groups = append(p.groups, g)
	}
}

func (x *index) instance(uid string) *onpath.InstancePlan {
	if x == nil {
		return nil
	}
	for i := range x.plan.Instances {
		if p := &x.plan.Instances[i]; p.UID == uid {
			return p
		}
	}
	return nil
}

func (x *index) path(p onpath.PathID) *onpath.Path {
	if x == nil {
		return nil
	}
	return x.paths[p]
}

func (x *index) hasLocal(v onpath.VportID) bool { return x != nil && x.local[v] != nil }

func (x *index) hasRemote(v onpath.VportID) bool { return x != nil && x.remote[v] }

// picksUp reports whether the plan has the node pick up traffic at its uplinks.
func (x *index) picksUp() bool {
	return x != nil && x.plan.Datapath.Edge != nil && x.plan.Datapath.Edge.Table != 0
}

func (x *index) hasPeer(node string) bool { return x != nil && x.peers[node] }

// sendsTo reports whether packets of the path may be sent to a remote vport.
func (x *index) sendsTo(p onpath.PathID, v onpath.VportID) bool {
	return x != nil && x.sends[send{p, v}]
}

// knows reports whether the plan has an instance, here or elsewhere.
func (x *index) knows(i *instance) bool {
	return x.hasLocal(i.obj.Spec.Vport) || x.hasRemote(i.obj.Spec.Vport)
}

// sendsToNode reports whether packets may be sent to vports of another node.
func (x *index) sendsToNode(name string) bool {
	if x == nil {
		return false
	}
	for _, v := range x.vports {
		if v.Kind == onpath.VportRemote && v.Peer == name {
			return true
		}
	}
	return false
}

// member reports whether the group has a member that takes new flows.
func (x *index) member(g onpath.GroupID) bool {
	if x == nil || x.groups[g] == nil {
		return false
	}
	for _, m := range x.groups[g].Members {
		if v := x.vports[m.Vport]; v != nil && v.State == onpath.VportUp && m.Weight > 0 {
			return true
		}
	}
	return false
}

// pointedAtBy reports whether the plan y may send to this one's node.
func (x *index) pointedAtBy(y *index) bool {
	if y == nil {
		return false
	}
	for v := range y.remote {
		if x.hasLocal(v) || x.edge == v {
			return true
		}
	}
	return false
}

// isClassifier reports whether a table chooses among the chains of a tier.
func isClassifier(t onpath.TableID) bool {
	return t == onpath.ClassifierTable(onpath.TierOperator) || t == onpath.ClassifierTable(onpath.TierTenant)
}
