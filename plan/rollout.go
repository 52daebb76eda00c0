package plan

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/onpath/onpath"
)

// rollOut brings each deployment, in each cloudlet, to its number of instances
// of its present shape, as little replaced as possible and the new in service
// before the old drain.
func (w *rollout) rollOut() {
	names := sortedNames(w.deployments)
	for _, n := range names {
		d := w.deployments[n]
		for _, cl := range w.cloudletsOf(d) {
			w.rollOutIn(d, cl)
		}
	}
	w.drainOrphans()
}

// cloudletsOf are those where a deployment shall run, or has instances, by name.
func (w *rollout) cloudletsOf(d *deployment) []*cloudlet {
	var out []*cloudlet
	for n := range d.in {
		if cl := w.cloudlets[n]; cl != nil {
			out = append(out, cl)
		}
	}
	for _, i := range w.ofDep[d.key] {
		if i.node != nil && !slices.Contains(out, i.node.c) {
			out = append(out, i.node.c)
		}
	}
	slices.SortFunc(out, func(a, b *cloudlet) int { return cmp.Compare(a.name, b.name) })
	return out
}

func (w *rollout) rollOutIn(d *deployment, cl *cloudlet) {
	want := d.want
	if !d.in[cl.name] {
		want = 0
	}
	if d.function == nil {
		w.cannotMove(w.instancesOf(cl, d.key), fmt.Sprintf("there is no function %s", d.fnName))
		return // nothing can be decided; what runs goes on
	}
	if !d.in[cl.name] && w.needed(d.key, cl) {
		return // likewise
	}
	var good, old []*instance
	for _, i := range w.instancesOf(cl, d.key) {
		switch {
		case i.draining():
		case d.unpromised(w.world, i.node):
			w.drain(i, "its place is promised no longer")
		case i.node.gone && i.node.dead:
			w.drain(i, fmt.Sprintf("node %s is dead", i.node.name))
		case i.node.gone && !(i.node.steers && i.ready()) || !d.suits(i) || i.node.obj.Spec.Drain:
			old = append(old, i)
		default:
			good = append(good, i)
			w.keepDrain(d, i)
		}
	}
	good, over := d.overReserved(good)
	old = append(old, over...)
	if len(good) > want {
		good = w.scaleDown(d, good, len(good)-want)
	}
	if len(good) < want {
		good = append(good, w.takeBack(d, w.instancesOf(cl, d.key), want-len(good))...)
	}
	placed, made := true, 0
	for placed && len(good)+made < want {
		if placed = w.create(d, cl); placed {
			made++
		}
	}
	w.replace(d, cl, want, good, old, !placed && made == 0)
	if !placed {
		w.cannotMove(old, d.noCapacity[len(d.noCapacity)-1])
	}
}

// scaleDown drains n of the instances: those not ready first, then from the
// node with most of them, then the newest; the only one that gets new flows stays. It
// returns the others.
func (w *rollout) scaleDown(d *deployment, list []*instance, n int) []*instance {
	left := slices.Clone(list)
	for range n {
		on := map[*node]int{}
		for _, i := range left {
			on[i.node]++
		}
		victim := slices.MinFunc(left, func(a, b *instance) int {
			if a.ready() != b.ready() {
				if b.ready() {
					return -1
				}
				return 1
			}
			return cmp.Or(cmp.Compare(b.number(), a.number()), boolCompare(d.sole(a, without(left, a)), d.sole(b, without(left, b))),
				cmp.Compare(on[b.node], on[a.node]), cmp.Compare(b.obj.Spec.Key, a.obj.Spec.Key))
		})
		w.drain(victim, "it is one more than wanted")
		left = slices.DeleteFunc(left, func(i *instance) bool { return i == victim })
	}
	return left
}

// replace drains old instances as far as good ones are in service. Where there
// is no room for any new one beside the old ones, one of several makes room; the next
// does when the new ones serve: if they do not, the old ones are what there is.
func (w *rollout) replace(d *deployment, cl *cloudlet, want int, good, old []*instance, full bool) {
	if len(old) == 0 {
		return
	}
	var proven []*instance
	for _, i := range good {
		if w.proven(i) {
			proven = append(proven, i)
		}
	}
	serving := len(proven)
	var running []*instance
	for _, i := range old {
		if i.ready() {
			running = append(running, i)
		} else if i.node.st != nil && (i.obj.Spec.Shape != d.shape || i.node.gone || i.node.obj.Spec.Drain || len(good) >= want) {
			w.drain(i, "it is to be replaced and does not serve") // what is only in the wrong place may serve again
		}
	}
	slices.SortFunc(running, func(a, b *instance) int { return cmp.Compare(a.obj.Spec.Key, b.obj.Spec.Key) })
	surplus := len(running) - max(0, want-serving)
	left := slices.Concat(running, proven)
	over := surplus
	for _, i := range running {
		if over <= 0 {
			break
		}
		if want > 0 && d.sole(i, without(left, i)) {
			w.cannotMove([]*instance{i}, onlyShare)
			continue
		}
		w.drain(i, "a new one takes over")
		left = without(left, i)
		over--
	}
	if full && surplus <= 0 && serving == len(good) && len(running) == len(old) && len(running)+serving > 1 {
		w.makeRoom(d, cl, running, left)
	}
}

// makeRoom drains one old instance where its share of the node, or its place in the
// groups, is all that a new one lacks. Where it lacks more, or something else, the old
// one would go for nothing.
func (w *rollout) makeRoom(d *deployment, cl *cloudlet, running, serving []*instance) {
	if w.anyDraining(d, cl) {
		return
	}
	needs := func(i *instance) bool {
		return w.unsuited(d, i.node) == "" && w.lacks(d, i.node, onpath.Resources{}) != "" && w.lacks(d, i.node, i.fn.Resources) == ""
	}
	if w.fullGroup(d, cl) {
		n, _ := w.place(d, cl)
		needs = func(*instance) bool { return n != nil }
	}
	if k := slices.IndexFunc(running, func(i *instance) bool { return needs(i) && !d.sole(i, without(serving, i)) }); k >= 0 {
		w.drain(running[k], "it makes room for a new one")
	}
}

// How long an instance must have been ready before what it replaces may go: at
// first, and after it has ended before.
const (
	stays      = time.Second
	staysAgain = 10 * time.Second
)

// proven reports whether an instance can take over from one that then goes for
// good: it is in service, and not only for the moment between a probe and a crash.
func (w *rollout) proven(i *instance) bool {
	if !w.inService(i) {
		return false
	}
	since, restarts := i.obj.Status.Since, i.obj.Status.Restarts
	if i.report != nil {
		since, restarts = i.report.Since, i.report.Restarts
	}
	if restarts > 0 {
		return w.passed(since.Add(staysAgain))
	}
	return w.passed(since.Add(stays))
}

// drainsInPast has an instance drain from now on that drains from a time in the future
// on: the server's clock was set back.
func (w *rollout) drainsInPast(i *instance) {
	now := w.past(i.obj.Spec.Draining)
	if now.Equal(i.obj.Spec.Draining) {
		return
	}
	next := *current(w.world, i.obj)
	next.Spec.Until = now.Add(next.Spec.Until.Sub(next.Spec.Draining))
	next.Spec.Draining = now
	w.update(&next)
}

func (w *rollout) anyDraining(d *deployment, cl *cloudlet) bool {
	return slices.ContainsFunc(w.instancesOf(cl, d.key), func(i *instance) bool { return i.draining() })
}

// drainOrphans drains the instances that no deployment wants, unless a path in
// force still needs them.
func (w *rollout) drainOrphans() {
	for _, i := range w.instances {
		switch {
		case i.draining():
			w.drainsInPast(i)
		case i.node == nil:
			w.drain(i, "its node does not exist any more")
		case i.d != nil:
		case i.node.gone || !w.needed(i.dep, i.node.c):
			w.drain(i, "nothing uses it any more")
		}
	}
}

// keepDrain notes the deployment's time to drain with the instance.
func (w *rollout) keepDrain(d *deployment, i *instance) {
	if i.obj.Spec.Drain != onpath.Duration(d.drain) {
		next := *current(w.world, i.obj)
		next.Spec.Drain = onpath.Duration(d.drain)
		w.update(&next)
	}
}

// needed reports whether a deployment that nobody declares or uses any more has
// to stay: a path that still starts flows has it, because its successor is not
// ready, or because its chain is impossible as it is now.
func (w *rollout) needed(dep name, cl *cloudlet) bool {
	return slices.ContainsFunc(cl.paths, func(p *path) bool {
		return !p.present && !p.ended() && slices.Contains(p.deps, dep)
	})
}

// drain marks an instance as one to go.
func (w *rollout) drain(i *instance, why string) {
	next := *current(w.world, i.obj)
	next.Spec.Draining = w.Now.UTC().Round(0)
	grace := time.Duration(next.Spec.Drain)
	if i.d != nil {
		grace = i.d.drain
	}
	next.Spec.Until = next.Spec.Draining.Add(grace)
	if i.d != nil && i.d.res != nil && !i.d.res.end.IsZero() && next.Spec.Until.After(i.d.res.end) {
		next.Spec.Until = i.d.res.end
	}
	w.update(&next)
	w.event(Event{About: onpath.KeyOf(i.obj), Node: i.obj.Spec.Node, Reason: "Draining", Message: "drains: " + why})
}

// create places one more instance; false if there is no room or no id.
func (w *rollout) create(d *deployment, cl *cloudlet) bool {
	if why := w.crowded(d, cl); why != "" {
		d.noCapacity = append(d.noCapacity, why)
		return false
	}
	n, why := w.place(d, cl)
	if n == nil {
		d.noCapacity = append(d.noCapacity, why)
		d.unplaceable = d.unplaceable || !w.mayFit(d, cl)
		return false
	}
	need := Count{Vports: d.sides()}
	var addresses []netip.Prefix
	if d.addressing() != onpath.AddressesNone {
		need.Addresses = 1
		if addresses, why = w.addresses(w.pools(d)); why != "" {
			d.noCapacity = append(d.noCapacity, fmt.Sprintf("its instances need addresses, and %s", why))
			return false
		}
	}
	if !w.take(need) {
		return true // the ids are on their way
	}
	o := w.newInstance(d, n, d.sides() == 2)
	o.Spec.Addresses = addresses
	if w.inUse != nil {
		w.occupy(o)
	}
	w.res.Create = append(w.res.Create, o)
	if d.res == nil {
		op := d.key.tenant == onpath.OperatorTenant
		n.used[op] = n.used[op].Add(d.spec.Resources)
	}
	w.created[placedOn{d.key, n}]++
	cl.vports += d.sides()
	w.event(Event{About: onpath.KeyOf(o), Node: n.name, Reason: "Placed", Message: fmt.Sprintf("placed on node %s for deployment %s", n.name, d.key.name)})
	return true
}

// take reserves ids, all or none.
func (w *world) take(c Count) bool {
	u := &w.res.Used
	if w.res.Short.Vports+w.res.Short.Addresses > 0 || u.Vports+c.Vports > len(w.IDs.Vports) || u.Addresses+c.Addresses > len(w.IDs.Addresses) {
		w.res.Short.Vports += c.Vports
		w.res.Short.Addresses += c.Addresses
		return false
	}
	u.Vports += c.Vports
	u.Addresses += c.Addresses
	return true
}

// pools are where the instances' addresses come from.
func (w *rollout) pools(d *deployment) []netip.Prefix {
	if d.addressing() == onpath.AddressesPool {
		return w.set.PublicPools
	}
	return w.set.PrivatePools
}

// newInstance makes the object, with the ids that take has just reserved.
func (w *rollout) newInstance(d *deployment, n *node, bridged bool) *onpath.Instance {
	o := &onpath.Instance{TypeMeta: onpath.TypeMeta{APIVersion: onpath.APIVersion, Kind: onpath.KindInstance}}
	v := w.IDs.Vports[w.res.Used.Vports-1]
	o.Spec = onpath.InstanceSpec{Deployment: d.key.name, Node: n.name, Vport: v, Shape: d.shape, Drain: onpath.Duration(d.drain)}
	if bridged {
		o.Spec.Vport, o.Spec.Back = w.IDs.Vports[w.res.Used.Vports-2], v
	}
	o.Spec.Key = uint32(o.Spec.Vport)
	o.Metadata = onpath.Metadata{
		Name: fmt.Sprintf("%s-%s", d.key.name, suffix(o.Spec.Vport)), Tenant: d.key.tenant,
		UID: fmt.Sprintf("i%06x-%s", uint32(o.Spec.Vport), d.shape), Generation: 1, Created: w.Now.UTC().Round(0),
	}
	o.Status = onpath.InstanceStatus{State: onpath.InstancePending, Since: w.Now.UTC().Round(0)}
	return o
}

// suffix is five characters that look different for neighbouring ids and are
// so for all: multiplying by an odd number permutes the 25-bit numbers.
func suffix(v onpath.VportID) string {
	const letters = "0123456789abcdefghjkmnpqrstvwxyz" // Crockford's base 32
	x := uint32(v) * 20_923_139 & (1<<25 - 1)
	var b [5]byte
	for i := range b {
		b[i] = letters[x&31]
		x >>= 5
	}
	return string(b[:])
}
