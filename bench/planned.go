package bench

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/manifest"
	"github.com/onpath/onpath/bench/fleet"
	"github.com/onpath/onpath/bench/testnet"
	"github.com/onpath/onpath/datapath/ebpf"
	"github.com/onpath/onpath/internal/netnsrun"
	"github.com/onpath/onpath/internal/offload"
)

// What onpath steers is applied as users apply it, in YAML: the planner makes of it what
// each node is told, and instances are wired and data paths configured by that.

// common is in all installations. Every flow asks whether it may begin, and no measurement
// begins so many.
var common = object(onpath.KindTenant, onpath.DefaultTenant, fmt.Sprintf("{allowEBPF: true, maxNewFlows: %d}", onpath.MostNewFlows)) +
	object(onpath.KindCloudlet, "pop", "{}")

// gatewayName is the node at a line's router, or a site's gateway.
const gatewayName = "gw"

// gatewayNode has the two devices of a line or site as uplinks.
func gatewayNode(fast onpath.Fast) string {
	uplink := fmt.Sprintf("{name: %%s, device: %%s, attach: router, side: %%[1]s, fast: %s}", fast)
	return node(gatewayName, underlayNear.Addr().String(),
		fmt.Sprintf(uplink, onpath.SideAccess, devIn), fmt.Sprintf(uplink, onpath.SideCore, devOut))
}

func node(name, underlay string, uplinks ...string) string {
	return object(onpath.KindNode, name, fmt.Sprintf("{cloudlet: pop, underlay: {address: %s, mtu: 1500}, uplinks: [%s]}",
		underlay, strings.Join(uplinks, ", ")))
}

// hopFunction is a bare namespace, wired as a container's, in which Linux routes.
var hopFunction = bareFunction("hop", "addresses: none")

func bareFunction(name, has string) string {
	return object(onpath.KindFunction, name, "{container: {image: host, command: [sleep, infinity], attach: routed, "+has+"}}")
}

// throughHops is a chain through so many instances of it.
func throughHops(n int, to string) string { return hopFunction + throughEach("hop", n, to) }

// throughEach is a chain through so many deployments of a function.
func throughEach(function string, n int, to string) (yaml string) {
	var elements []string
	for i := range n {
		yaml += object(onpath.KindDeployment, fmt.Sprintf("d%d", i), "{function: "+function+"}")
		elements = append(elements, fmt.Sprintf("{deployment: d%d}", i))
	}
	return yaml + chain("any", fmt.Sprintf("{prefixes: [%s]}", to), elements...)
}

func chain(from, to string, through ...string) string {
	return object(onpath.KindChain, "chain", fmt.Sprintf("{from: %s, to: %s, through: [%s]}", from, to, strings.Join(through, ", ")))
}

// object is a document of YAML.
func object(kind onpath.Kind, name, spec string) string {
	return fmt.Sprintf("---\napiVersion: %s\nkind: %s\nmetadata: {name: %q}\nspec: %s\n", onpath.APIVersion, kind, name, spec)
}

// planned has the planner plan for the objects in files of YAML.
func planned(yaml ...string) (*fleet.Fleet, error) {
	var all []onpath.Object
	for _, text := range append(yaml, common) {
		list, err := objectsIn(text)
		if err != nil {
			return nil, err
		}
		all = append(all, list...)
	}
	return fleet.Of(all, time.Now())
}

func objectsIn(yaml string) ([]onpath.Object, error) {
	docs, err := manifest.Parse([]byte(yaml), "bench", "/")
	return manifest.Objects(docs), err
}

// instance is one that a plan has.
type instance struct {
	onpath.InstancePlan
	ns string // its namespace; "" if the data path runs it
}

// wirePlan wires the instances of a node's plan as its agent does, and gives the
// configuration of the data path.
func wirePlan(b *testnet.Network, ns string, p *onpath.NodePlan) (c *onpath.DatapathConfig, list []instance, err error) {
	var functions []onpath.InlineFunction
	for _, i := range p.Instances {
		in := instance{InstancePlan: i}
		if i.Spec.Traits().Inline {
			f, err := inlineFunction(b, i)
			if err != nil {
				return nil, nil, err
			}
			functions = append(functions, f)
		} else if in.ns, err = wireInstance(b, ns, i); err != nil {
			return nil, nil, err
		}
		list = append(list, in)
	}
	routes := func(u onpath.Uplink) bool { return u.Attach == onpath.AttachRouter }
	if e := p.Datapath.Edge; e != nil && slices.ContainsFunc(e.Uplinks, routes) {
		err = testnet.Set(ns, "ipv4/ip_forward=1")
	}
	return effective(p, true, functions...), list, err
}

// effective is the configuration of a plan whose instances are all wired, and take packets
// if open.
func effective(p *onpath.NodePlan, open bool, functions ...onpath.InlineFunction) *onpath.DatapathConfig {
	local := onpath.LocalState{Vports: map[onpath.VportID]onpath.LocalVport{}, Functions: functions, Exempt: ownTunnel(&p.Datapath)}
	for _, v := range p.Datapath.Vports {
		local.Vports[v.ID] = onpath.LocalVport{Wired: true, Open: open}
	}
	c, _ := onpath.Effective(p, &local)
	return c
}

// ownTunnel leaves alone the tunnel of a machine whose own traffic is steered.
func ownTunnel(c *onpath.DatapathConfig) []onpath.Rule {
	if !c.Edge.CarriesHost() {
		return nil
	}
	at, port := c.Underlay.Address, c.Underlay.Port
	return []onpath.Rule{{Action: onpath.Action{Kind: onpath.ActionExit}, Match: onpath.Match{
		Dst:      []netip.Prefix{netip.PrefixFrom(at, at.BitLen())},
		Protocol: []uint8{unix.IPPROTO_UDP}, DstPorts: []onpath.PortRange{{First: port, Last: port}}}}}
}

func wireInstance(b *testnet.Network, node string, p onpath.InstancePlan) (ns string, err error) {
	t := p.Spec.Traits()
	if t.Attach == onpath.Bridged {
		return wireBridged(b, node, element{p.Vport, p.Back})
	}
	if ns, err = wireRouted(b, node, p.Vport, !t.WholeFrames); err != nil {
		return "", err
	}
	if t.WholeFrames {
		dev := onpath.DeviceName(p.Vport)
		err = netnsrun.Do(node, func() error { return offload.Disable(dev, offload.CompleteFrames) })
	}
	return ns, errors.Join(err, netnsrun.Do(ns, func() error { return addAddresses("eth0", p.Addresses) }))
}

// inlineFunction is an ebpf function as its runtime makes it ready.
func inlineFunction(b *testnet.Network, p onpath.InstancePlan) (f onpath.InlineFunction, err error) {
	name := fmt.Sprint(p.Vport)
	file, code := filepath.Join(b.Dir(), name+".o"), *p.Spec.Brings().Objects[0].Code
	if err := os.WriteFile(file, code, 0o600); err != nil {
		return f, fmt.Errorf("write the function: %w", err)
	}
	b.After(func() error { return os.Remove(file) })
	sum := sha256.Sum256(code)
	return onpath.InlineFunction{Vport: p.Vport, Object: file, SHA256: hex.EncodeToString(sum[:]),
		Maps: filepath.Join(pinPath, filepath.Base(b.Dir())+"-functions", name)}, nil
}

// steered has onpath steer what YAML says at nodes in namespaces of a network, by their
// names, and gives the instances.
func (r *Run) steered(ctx context.Context, b *testnet.Network, yaml string, at map[string]string) (all []instance, err error) {
	f, err := planned(yaml)
	if err != nil {
		return nil, err
	}
	for name, ns := range at {
		c, list, err := wirePlan(b, ns, f.Plan(name))
		if err != nil {
			return nil, err
		}
		all = append(all, list...)
		d, err := openDatapath(ns, ebpf.Options{Name: filepath.Base(b.Dir()) + "-" + name, PinPath: pinPath, Log: r.Log})
		if err != nil {
			return nil, err
		}
		b.After(func() error { return errors.Join(d.Remove(context.Background()), d.Close()) })
		if err := d.Apply(ctx, c); err != nil {
			return nil, err
		}
	}
	slices.SortFunc(all, func(x, y instance) int { return cmp.Compare(x.Vport, y.Vport) })
	return all, nil
}
