package control

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/control/events"
	"github.com/onpath/onpath/plan"
)

// A node that is not accepted waits. Its Node object has a condition that says why. The
// planner ignores the node and its reports, so the node keeps running what it runs.

// storeRecord holds the identity of the store, by which plans made from it are known.
const storeRecord = "store/identity"

// identify reads the identity of the store, or gives it one. One that was restored from a backup
// since gets another epoch.
func identify(ctx context.Context, s onpath.Store, restored bool) (string, error) {
	for {
		page, err := s.Records(ctx, onpath.RecordsUnder(storeRecord))
		if err != nil {
			return "", err
		}
		r := onpath.Record{Path: storeRecord, Value: []byte(newIdentity())}
		if len(page.Records) > 0 {
			if r.Value = page.Records[0].Value; !restored {
				return string(r.Value), nil
			}
			name, epoch := epochOf(string(r.Value))
			r.Value, r.Version = fmt.Appendf(nil, "%s+%d", name, epoch+1), page.Records[0].Version
		}
		restored = false
		_, err = s.Write(ctx, onpath.Batch{Records: []onpath.Record{r}})
		if err != nil && onpath.CodeOf(err) != onpath.CodeConflict {
			return "", err
		}
	}
}

// epochOf is a store's identity without its epoch, and that: how often it was restored.
func epochOf(store string) (name string, epoch int) {
	name, number, _ := strings.Cut(store, "+")
	epoch, _ = strconv.Atoi(number)
	return name, epoch
}

// foreign reports whether a plan that a node holds was made from another store than this
// one. Plans of earlier versions do not say from which; the Node object then tells.
func foreign(p *onpath.NodePlan, store string, known bool) bool {
	if p == nil || len(p.Instances)+len(p.Datapath.Paths) == 0 {
		return false
	}
	its, _ := epochOf(p.Store)
	ours, _ := epochOf(store)
	return its != ours && !(p.Store == "" && known)
}

// lost are the chains and deployments of a plan from before this store was restored of which it
// knows nothing: they were applied after the backup.
func (m *mirror) lost(p *onpath.NodePlan, store string) (names []string) {
	if _, epoch := epochOf(store); p == nil || epoch == 0 || p.Store == store || foreign(p, store, true) {
		return nil
	}
	own := map[onpath.Key]bool{} // deployments that chains make, which are no objects
	for _, o := range m.objects {
		if c, ok := o.(*onpath.Chain); ok {
			for _, d := range c.OwnDeployments() {
				own[onpath.KeyOf(d)] = true
			}
		}
	}
	named := map[onpath.Key]bool{}
	look := func(kind onpath.Kind, tenant, name string) {
		k := onpath.Key{Kind: kind, Tenant: tenant, Name: name}
		if _, known := m.objects[k]; !known && !own[k] && !named[k] {
			named[k] = true
			names = append(names, k.String())
		}
	}
	for i := range min(len(p.Datapath.Paths), onpath.MaxPaths) { // no honest node has more
		tenant, name, _ := strings.Cut(p.Datapath.Paths[i].Chain, "/")
		look(onpath.KindChain, tenant, name)
	}
	for i := range min(len(p.Instances), onpath.MaxVports) {
		if x := &p.Instances[i]; !x.Draining {
			look(onpath.KindDeployment, x.Tenant, x.Deployment)
		}
	}
	return names
}

// tellLost tells what a node loses that held a plan from before the store was restored.
func (c *core) tellLost(h *onpath.NodeHello) {
	lost := c.mirror.lost(h.Plan, c.settings.Store)
	if len(lost) == 0 {
		return
	}
	message := onpath.ClipText(fmt.Sprintf("its plan had %d chains and deployments, %s first, of which this server "+
		"knows nothing since it was restored from a backup: the node ends them. Apply again what was applied after the backup",
		len(lost), lost[0]))
	c.events.Tell(onpath.Key{Kind: onpath.KindNode, Name: h.Node}, "Restored", message, true)
	c.log.Warn("a node ends what was applied after the backup", "node", h.Node, "why", message)
}

// isWaiting reports whether a node waits.
func isWaiting(m *mirror, sessions map[string]*session, name string) bool {
	if st := sessions[name]; st != nil && st.foreign {
		return true
	}
	n, ok := m.objects[onpath.Key{Kind: onpath.KindNode, Name: name}].(*onpath.Node)
	return ok && !n.Accepted()
}

// waitingNodes are the names of all nodes that wait.
func waitingNodes(m *mirror, sessions map[string]*session) (names []string) {
	for k := range m.waiting {
		names = append(names, k.Name)
	}
	for name, st := range sessions {
		if st.foreign && !m.waiting[onpath.Key{Kind: onpath.KindNode, Name: name}] {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// objection says why a node waits; an empty reason: it does not.
func (c *core) objection(st *session, n *onpath.Node) (reason, message string) {
	name := n.Metadata.Name
	if st != nil && st.foreign {
		p := st.state.Acked
		return onpath.ReasonForeignPlan, fmt.Sprintf("it runs %d instances for %d chains by the plan of another store, of which this "+
			"server's store knows nothing, and goes on with that. If this store was lost, stop the server and restore it from a backup; "+
			"if the node is to follow this store, which takes away what is not in it: onpath node accept %s",
			len(p.Instances), len(p.Datapath.Paths), name)
	}
	if st != nil && n.Metadata.Generation <= 1 { // later ones are the operator's word
		if what := exceeds(st.grant, &n.Spec); what != "" {
			return onpath.ReasonNotGranted,
				fmt.Sprintf("%s: onpath node accept %s permits it, or change the machine's onpath.yaml", what, name)
		}
	}
	if err := c.checkNode(n); err != nil {
		return onpath.ReasonRefused, fmt.Sprintf("it gets nothing to do: %v", err)
	}
	return "", ""
}

// exceeds says in what a machine asks for more than its token was for.
func exceeds(g *onpath.NodeGrant, s *onpath.NodeSpec) string {
	if g == nil {
		return ""
	}
	if s.Cloudlet != g.Cloudlet {
		return fmt.Sprintf("its token is for cloudlet %s, and its configuration says %s", g.Cloudlet, s.Cloudlet)
	}
	for _, u := range s.Uplinks {
		if !slices.Contains(g.Uplinks, onpath.AnyUplink) && !slices.Contains(g.Uplinks, u.Device) {
			return fmt.Sprintf("its token is not for an uplink on %s, which its configuration names", u.Device)
		}
	}
	return ""
}

// retryNode is how often a node that waits is looked at again.
const retryNode = 5 * time.Second

// take has a Node object for a machine that has none, from its own configuration.
func (c *core) take(st *session, n *onpath.Node) {
	reason, message := c.objection(st, n)
	if c.missing[onpath.KeyOf(n)] = n; reason != "" {
		n.Status.Conditions = []onpath.Condition{unaccepted(reason, message, c.clock())}
		tellWaits(c.events, c.log, n, message)
		return
	}
	missCloudlet(c.missing, c.mirror, n.Spec.Cloudlet)
}

// missCloudlet has a cloudlet made, if there is none.
func missCloudlet(missing map[onpath.Key]onpath.Object, m *mirror, name string) {
	if cl := newObject(onpath.KindCloudlet, name); m.objects[onpath.KeyOf(cl)] == nil {
		missing[onpath.KeyOf(cl)] = cl
	}
}

func unaccepted(reason, message string, now time.Time) onpath.Condition {
	return onpath.Condition{Type: onpath.ConditionAccepted, Status: onpath.False, Reason: reason, Message: onpath.ClipText(message),
		Since: now.UTC().Round(0)}
}

func tellWaits(l *events.Log, log *slog.Logger, n *onpath.Node, message string) {
	tellNode(l, n, "Waits", "the node waits: "+message)
	log.Warn("a node waits, and keeps what it runs", "node", n.Metadata.Name, "why", message)
}

// acceptances are the changes of nodes that wait from now on, for another reason, or no
// more.
func (c *core) acceptances() (out []onpath.Change) {
	for _, name := range waitingNodes(c.mirror, c.nodes) {
		k := onpath.Key{Kind: onpath.KindNode, Name: name}
		n, ok := c.mirror.objects[k].(*onpath.Node)
		if !ok {
			continue // it is to be created
		}
		st := c.nodes[name]
		if st == nil || c.writing || n.Metadata.Version == st.looked && c.clock().Sub(st.lookedAt) < retryNode {
			continue
		}
		st.looked, st.lookedAt = n.Metadata.Version, c.clock()
		reason, message := c.objection(st, n)
		old := conditionOf(n.Status.Conditions, onpath.ConditionAccepted)
		if reason != "" && old.Status == onpath.False && old.Reason == reason {
			continue
		}
		next := onpath.Clone(n)
		if reason != "" {
			onpath.SetCondition(&next.Status.Conditions, unaccepted(reason, message, c.clock()))
			next.Status.Ready = false
			tellWaits(c.events, c.log, n, message)
		} else {
			next.Status.Conditions = slices.DeleteFunc(next.Status.Conditions,
				func(x onpath.Condition) bool { return x.Type == onpath.ConditionAccepted })
			missCloudlet(c.missing, c.mirror, n.Spec.Cloudlet)
			c.log.Info("a node is accepted", "node", name)
		}
		out = append(out, onpath.Change{Key: k, Object: next, Version: n.Metadata.Version})
	}
	return out
}

func conditionOf(list []onpath.Condition, typ string) onpath.Condition {
	if i := slices.IndexFunc(list, func(c onpath.Condition) bool { return c.Type == typ }); i >= 0 {
		return list[i]
	}
	return onpath.Condition{}
}

// AcceptNode is the operator's word that a node that waits follows this store, as its
// Node object says. Neither its token nor the plan that it holds matters from then on.
func (c *Controller) AcceptNode(ctx context.Context, name string) error {
	if err := c.relist(ctx, []onpath.Kind{onpath.KindNode, onpath.KindCloudlet}); err != nil {
		return err
	}
	k := onpath.Key{Kind: onpath.KindNode, Name: name}
	c.mu.Lock()
	batch, err := c.core.accepting(k)
	c.mu.Unlock()
	if err != nil || batch == nil {
		return err
	}
	if _, err := c.o.Store.Write(ctx, onpath.Batch{Changes: batch}); err != nil {
		return err
	}
	c.took(batch)
	c.mu.Lock()
	if st := c.core.nodes[name]; st != nil {
		st.foreign = false
	}
	c.mu.Unlock()
	c.events.Tell(k, "Accepted", "the operator accepted it: it follows this server's store", false)
	c.wake.ring()
	return nil
}

// accepting are the changes that accept a node; nil if it does not wait.
func (c *core) accepting(k onpath.Key) ([]onpath.Change, error) {
	n, ok := c.mirror.objects[k].(*onpath.Node)
	if !ok {
		e := onpath.Errorf(onpath.CodeNotFound, "it does not exist")
		e.Object, e.Remedy = k.String(), "onpath get nodes lists those that are there, also those that wait"
		return nil, e
	}
	if !isWaiting(c.mirror, c.nodes, k.Name) {
		return nil, nil
	}
	if err := c.checkNode(n); err != nil {
		return nil, err
	}
	next := onpath.Clone(n)
	onpath.SetCondition(&next.Status.Conditions, onpath.Condition{
		Type: onpath.ConditionAccepted, Status: onpath.True, Reason: "Operator", Since: c.clock().UTC().Round(0)})
	changes := []onpath.Change{{Key: k, Object: next, Version: n.Metadata.Version}}
	if cl := newObject(onpath.KindCloudlet, n.Spec.Cloudlet); c.mirror.objects[onpath.KeyOf(cl)] == nil {
		changes = append(changes, onpath.Change{Key: onpath.KeyOf(cl), Object: cl})
	}
	return changes, nil
}

// withoutWaiting takes the nodes that wait out of what is planned from.
func withoutWaiting(s *plan.Snapshot, names []string) {
	if len(names) == 0 {
		return
	}
	s.Objects = maps.Clone(s.Objects)
	for _, name := range names {
		k := onpath.Key{Kind: onpath.KindNode, Name: name}
		if n, ok := s.Objects[k].(*onpath.Node); ok {
			s.Waiting = append(s.Waiting, n)
		}
		delete(s.Objects, k)
		delete(s.States, name)
	}
}

func newIdentity() string {
	var b [12]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	return hex.EncodeToString(b[:])
}

// NodeMayPull reports whether a repository ("TENANT/NAME") holds an image of an instance
// in a plan that the node follows, or may come to.
func (c *Controller) NodeMayPull(node, repository string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	st := c.core.nodes[node]
	if st == nil {
		return false
	}
	for _, p := range append([]*onpath.NodePlan{st.state.Acked}, st.state.Sent...) {
		if p == nil {
			continue
		}
		specs := make([]*onpath.FunctionSpec, 0, len(p.Instances)+len(p.Prepare))
		for i := range p.Instances {
			specs = append(specs, &p.Instances[i].Spec)
		}
		for i := range p.Prepare {
			specs = append(specs, &p.Prepare[i])
		}
		for _, spec := range specs {
			for _, image := range spec.Brings().Images {
				if repo, ours := strings.CutPrefix(*image.Image, onpath.ImageHost+"/"); ours && repositoryOf(repo) == repository {
					return true
				}
			}
		}
	}
	return false
}

// repositoryOf is a reference without its tag or digest.
func repositoryOf(reference string) string {
	reference, _, _ = strings.Cut(reference, "@")
	if slash, colon := strings.LastIndex(reference, "/"), strings.LastIndex(reference, ":"); colon > slash {
		return reference[:colon]
	}
	return reference
}
