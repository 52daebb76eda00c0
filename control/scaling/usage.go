package scaling

import (
	"context"
	"encoding/json"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/control/look"
	"github.com/onpath/onpath/plan/scale"
)

// usage is what the instances of chains that scale have used, as last asked for.
type usage struct {
	mu     sync.Mutex
	asking bool
	of     map[onpath.Key]*chainUsage
}

// chainUsage is of one chain.
type chainUsage struct {
	next   time.Time // when its nodes are asked again
	rounds []round   // oldest first
}

// round is one answer of all nodes that were asked.
type round struct {
	at          time.Time
	deployments map[onpath.Key]used
	paths       map[onpath.PathID]entered
	instances   map[onpath.Key]uint64 // packets given to each
}

// entered is what came into a path at all gateways.
type entered struct {
	onpath.Tally
	flows uint64 // that began there
	who   string // the nodes that told: with others, counts cannot be compared
}

// used is what the instances of a deployment have used since they began, together.
type used struct {
	instances      int
	limit          onpath.CPU // of all together
	cpu, throttled time.Duration
	in, out, lost  uint64 // packets: given to them, given back, lost by their devices
	keeps          bool   // gives back what it is given, unless it drops it
	who            string // the instances: with others, counts cannot be compared
}

const maxRounds = 64

// measure asks the nodes of chains that scale what instances use, each as often as the windows
// of its own chains want it.
func (c *Scaling) measure(ctx context.Context) {
	c.mu.Lock()
	now := c.o.Clock()
	due, nodes := c.dueUsage(now)
	c.mu.Unlock()
	if len(due) == 0 {
		return
	}
	go func() {
		answers := c.askUsage(ctx, nodes)
		r := c.addUp(answers, due)
		before := c.usage.add(r, due)
		c.ownValues(r, before)
		fillUp(c, now)
	}()
}

// dueUsage are the chains whose nodes are to be asked now, and these nodes. Callers hold mu.
func (c *Scaling) dueUsage(now time.Time) (due map[onpath.Key]*onpath.Chain, nodes []string) {
	u, chains := &c.usage, c.scalingChains()
	u.mu.Lock()
	defer u.mu.Unlock()
	for k := range u.of {
		if chains[k] == nil {
			delete(u.of, k)
		}
	}
	if u.asking {
		return nil, nil
	}
	due = map[onpath.Key]*onpath.Chain{}
	for k, o := range chains {
		if u.of[k] == nil || !now.Before(u.of[k].next) {
			due[k] = o
		}
	}
	if len(due) == 0 {
		return nil, nil
	}
	if u.of == nil {
		u.of = map[onpath.Key]*chainUsage{}
	}
	slowest := c.slowestOf(chains)
	for k, o := range due {
		if u.of[k] == nil {
			u.of[k] = &chainUsage{}
		}
		every := askEvery(time.Duration(o.Spec.Scaling.Window))
		if t := k.Tenant; t != onpath.OperatorTenant && t != onpath.DefaultTenant {
			every = max(every, slowest[k.Tenant])
		}
		u.of[k].next = now.Truncate(every).Add(every) // those of one interval together
	}
	u.asking = true
	return due, c.servingNodes(due)
}

// mostEvery is the longest time between two rounds; each shorter one is half of another, so
// that what is asked seldom comes with what is asked often.
const mostEvery = 15 * time.Second

// askEvery is how often the nodes of a chain are asked: eight times a window.
func askEvery(window time.Duration) time.Duration {
	every := mostEvery
	for every > window/8 && every > 250*time.Millisecond {
		every /= 2
	}
	return every
}

// A tenant may have tenantNodes nodes asked in a second more than with windows as they are by
// default: else one tenant's short windows would ask the whole fleet. In a large site it is at most
// a tenth of what all are asked by default, and in a small one at least smallSite among all nodes:
// all together is little there.
const (
	tenantNodes = 2.0
	tenantPart  = 0.1
	smallSite   = 8.0
)

// tenantsShare is how many nodes a tenant may have asked in a second. Callers hold mu.
func (c *Scaling) tenantsShare(chains map[onpath.Key]*onpath.Chain) float64 {
	byDefault := float64(len(c.servingNodes(chains))) / askEvery(time.Duration(onpath.DefaultWindow)).Seconds()
	least := smallSite / float64(max(len(c.connected), 1))
	return min(max(tenantPart*byDefault, least), tenantNodes)
}

// slowestOf is how often nodes are asked at most for each tenant with short windows. Callers
// hold mu.
func (c *Scaling) slowestOf(chains map[onpath.Key]*onpath.Chain) map[string]time.Duration {
	plain := askEvery(time.Duration(onpath.DefaultWindow))
	short := map[string]map[onpath.Key]*onpath.Chain{}
	for k, o := range chains {
		if askEvery(time.Duration(o.Spec.Scaling.Window)) < plain {
			if short[k.Tenant] == nil {
				short[k.Tenant] = map[onpath.Key]*onpath.Chain{}
			}
			short[k.Tenant][k] = o
		}
	}
	slowest := map[string]time.Duration{}
	if len(short) == 0 {
		return slowest
	}
	share := c.tenantsShare(chains)
	for tenant, list := range short {
		least := time.Duration(float64(len(c.servingNodes(list))) / share * float64(time.Second))
		every := plain
		for every/2 >= least {
			every /= 2
		}
		slowest[tenant] = every
	}
	return slowest
}

// servingNodes are the connected nodes that run instances of chains' elements or have their
// paths. Callers hold mu.
func (c *Scaling) servingNodes(chains map[onpath.Key]*onpath.Chain) (names []string) {
	deployments := map[onpath.Key]bool{}
	for _, o := range chains {
		for i := range o.Spec.Through {
			deployments[deploymentKey(o, &o.Spec.Through[i])] = true
		}
	}
	serves := func(p *onpath.NodePlan) bool {
		return slices.ContainsFunc(p.Instances, func(i onpath.InstancePlan) bool {
			return deployments[onpath.Key{Kind: onpath.KindDeployment, Tenant: i.Tenant, Name: i.Deployment}]
		}) || slices.ContainsFunc(p.Datapath.Paths, func(x onpath.Path) bool {
			tenant, name, _ := strings.Cut(x.Chain, "/")
			return chains[onpath.Key{Kind: onpath.KindChain, Tenant: tenant, Name: name}] != nil
		})
	}
	for name, p := range c.plans {
		if c.connected[name] && serves(p) {
			names = append(names, name)
		}
	}
	return names
}

// add takes a round up for the chains that were due, and returns the one before it of each.
func (u *usage) add(r round, due map[onpath.Key]*onpath.Chain) (before map[onpath.Key]round) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.asking, before = false, map[onpath.Key]round{}
	for k := range due {
		x := u.of[k]
		if x == nil {
			continue // it scales no more
		}
		if n := len(x.rounds); n > 0 {
			before[k] = x.rounds[n-1]
		}
		if x.rounds = append(x.rounds, r); len(x.rounds) > maxRounds {
			x.rounds = x.rounds[1:]
		}
	}
	return before
}

// roundsOf are those of a chain, oldest first.
func (u *usage) roundsOf(chain onpath.Key) []round {
	u.mu.Lock()
	defer u.mu.Unlock()
	if x := u.of[chain]; x != nil {
		return x.rounds
	}
	return nil
}

// nodeUsage is what one node says.
type nodeUsage struct {
	node     string
	usage    map[string]onpath.Usage
	counters *onpath.Counters
}

// askUsage asks nodes at once; those that do not answer are left out.
func (c *Scaling) askUsage(ctx context.Context, nodes []string) (list []nodeUsage) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, n := range nodes {
		wg.Go(func() {
			counters, err := look.Counters(ctx, c.o.Hub.Call, n)
			if err != nil {
				return
			}
			s, err := c.o.Hub.Call(ctx, n, onpath.OpUsage, nil)
			if err != nil {
				return
			}
			defer s.Close()
			a := nodeUsage{node: n, counters: counters}
			if json.NewDecoder(io.LimitReader(s, onpath.MaxNodeReply)).Decode(&a.usage) != nil {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			list = append(list, a)
		})
	}
	wg.Wait()
	slices.SortFunc(list, func(a, b nodeUsage) int { return strings.Compare(a.node, b.node) }) // who is in this order
	return list
}

// addUp adds answers up by deployment and path, of the chains that were due.
func (c *Scaling) addUp(answers []nodeUsage, due map[onpath.Key]*onpath.Chain) round {
	c.mu.Lock()
	defer c.mu.Unlock()
	deployments, paths := map[onpath.Key]bool{}, map[onpath.PathID]bool{}
	for _, o := range due {
		paths[o.Status.Path] = true
		for i := range o.Spec.Through {
			deployments[deploymentKey(o, &o.Spec.Through[i])] = true
		}
	}
	r := round{at: c.o.Clock().UTC(), deployments: map[onpath.Key]used{}, paths: map[onpath.PathID]entered{},
		instances: map[onpath.Key]uint64{}}
	for _, a := range answers {
		in := c.plans[a.node]
		if in == nil {
			continue
		}
		for i := range in.Instances {
			p := &in.Instances[i]
			u, ok := a.usage[p.Tenant+"/"+p.Name]
			k := onpath.Key{Kind: onpath.KindDeployment, Tenant: p.Tenant, Name: p.Deployment}
			if !ok || p.Draining || !deployments[k] {
				continue
			}
			d := r.deployments[k]
			d.instances++
			d.limit += p.Spec.Resources.CPU
			d.cpu, d.throttled = d.cpu+u.CPU, d.throttled+u.Throttled
			d.keeps = p.Spec.Packets == onpath.PacketsKeep && p.Spec.State != onpath.StateTerminates
			d.who += p.Name + " "
			given := uint64(0)
			for _, v := range []onpath.VportID{p.Vport, p.Back} {
				if n, ok := a.counters.Vports[v]; ok && v != 0 {
					given += n.Out.Packets
					d.in, d.out = d.in+n.Out.Packets, d.out+n.In.Packets
					if n.Device != nil {
						d.lost += n.Device.Out + n.Device.In
					}
				}
			}
			r.deployments[k] = d
			r.instances[onpath.Key{Kind: onpath.KindInstance, Tenant: p.Tenant, Name: p.Name}] = given
		}
		for id, p := range a.counters.Paths {
			if !paths[id] {
				continue
			}
			t := r.paths[id]
			t.Packets, t.Bytes, t.flows = t.Packets+p.Steered.Packets, t.Bytes+p.Steered.Bytes, t.flows+p.Begun
			t.who += a.node + " "
			r.paths[id] = t
		}
	}
	return r
}

// evidence is how loaded a deployment's instances were over the last while, half a window
// or so.
func evidence(rounds []round, k onpath.Key, now time.Time, window time.Duration) (e scale.Evidence) {
	if len(rounds) < 2 {
		return e
	}
	last := &rounds[len(rounds)-1]
	b := last.deployments[k]
	if b.instances == 0 || now.Sub(last.at) > max(window, 3*time.Second, askEvery(time.Duration(onpath.DefaultWindow))*3/2) {
		return e
	}
	for i := len(rounds) - 2; i >= 0; i-- {
		first := &rounds[i]
		a := first.deployments[k]
		if a.who != b.who {
			break
		}
		took := last.at.Sub(first.at)
		e = loaded(a, b, took)
		if took >= max(window/2, time.Second) {
			break
		}
	}
	return e
}

// loaded compares two counts of the same instances.
func loaded(a, b used, took time.Duration) (e scale.Evidence) {
	if took <= 0 || b.cpu < a.cpu || b.in < a.in || b.out < a.out {
		return e // one began anew
	}
	e.Known = true
	time := took.Seconds() * float64(b.instances)
	if b.limit > 0 {
		e.CPU = (b.cpu - a.cpu).Seconds() / (took.Seconds() * float64(b.limit) / 1000)
		e.Throttled = min((b.throttled-a.throttled).Seconds()/time, 1)
	}
	in, lost := float64(b.in-a.in), float64(b.lost-a.lost)
	if b.keeps && b.out-a.out < b.in-a.in {
		lost = max(lost, in-float64(b.out-a.out))
	}
	if in >= 20 {
		e.Dropped = min(lost/in, 1)
		if e.Dropped < 0.02 {
			e.Dropped = 0 // under way
		}
	}
	return e
}
