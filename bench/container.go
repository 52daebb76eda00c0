package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/bench/testnet"
	"github.com/onpath/onpath/internal/netnsrun"
	"github.com/onpath/onpath/runtime/container"
)

// The cases of container, each a first-party function with what it is told.
var containerCases = []containerCase{
	{name: "software switch", image: "bridge", bridged: true},
	{name: "tc limiter", image: "shaper", bridged: true, env: onpath.Env{"RATE": "100gbit", "BURST": "1m", "QUEUE": "10000"}},
	{name: "nftables firewall", image: "firewall", env: onpath.Env{"BLOCK_PORTS": "23, 135-139, 445", "BLOCK_HOSTS": "192.0.2.1,192.0.2.2,192.0.2.3,198.51.100.7"}},
	{name: "Suricata inline", image: "ids", env: onpath.Env{"MODE": "inline"}},
}

type containerCase struct {
	name, image string
	bridged     bool
	env         onpath.Env
}

const metricOfStatic = "throughput over static"

func containerBenchmark() Benchmark {
	b := Benchmark{
		Name: "container", rounds: 20, cost: cost{10 * time.Second, 25 * time.Second},
		Question: "functions in containers, steered through by onpath against wired by hand: TCP, one stream",
		run:      runContainer,
	}
	for _, k := range containerCases {
		b.Targets = append(b.Targets,
			Target{Text: k.name + ": median ≥ 0.99 of static", Case: k.name, Contestant: "onpath-tc", Metric: metricOfStatic, Min: 0.99},
			Target{Text: k.name + ": lower quartile ≥ 0.97 of static", Case: k.name, Contestant: "onpath-tc", Metric: metricOfStatic, Of: "low", Min: 0.97},
			Target{Text: k.name + ": round trip not above static", Case: k.name, Contestant: "onpath-tc", Metric: MetricRoundTrip, Of: "static", Max: 1})
	}
	return b
}

// runtimeDir is where the container runtime of a run keeps its state.
const runtimeDir = "/var/lib/onpath-bench"

func runContainer(ctx context.Context, r *Run) error {
	return r.functions(ctx, (*Run).newSite, []maker{{"static", wireStatic}, {"onpath-tc", wireSteered}})
}

// functions has each of the four stream through it, wired in two ways.
func (r *Run) functions(ctx context.Context, site newSite, makers []maker) (err error) {
	rt, err := r.runtime(ctx)
	var why lacking
	if errors.As(err, &why) {
		for _, name := range []string{"static", "onpath-tc"} {
			r.skip(name, string(why))
		}
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rt.Remove(context.WithoutCancel(ctx))) }()
	for _, k := range containerCases {
		if err := r.containerCase(ctx, rt, k, site, slices.Clone(makers)); err != nil {
			return fmt.Errorf("%s: %w", k.name, err)
		}
	}
	return r.profileMissed(ctx, func(kase, contestant string) (func() error, error) {
		k := containerCases[slices.IndexFunc(containerCases, func(k containerCase) bool { return k.name == kase })]
		m := makers[slices.IndexFunc(makers, func(m maker) bool { return m.name == contestant })]
		d, err := r.deploy(ctx, rt, k, site, m)
		if err != nil {
			return nil, err
		}
		return func() error {
			_, err := d.pump(ctx, pick(r, 2*time.Second, 100*time.Millisecond))
			return errors.Join(err, d.Close())
		}, nil
	})
}

// runtime starts a container runtime of the run's own.
func (r *Run) runtime(ctx context.Context) (*container.Driver, error) {
	for _, p := range container.Probe(ctx) {
		if p.Required && !p.Found {
			return nil, lacking("containers need " + p.Name + ", which is not installed")
		}
	}
	return openRuntime(ctx, r.Log)
}

func openRuntime(ctx context.Context, log *slog.Logger) (*container.Driver, error) {
	return container.New(ctx, container.Options{StateDir: runtimeDir, Name: "bench", Log: log})
}

// removeContainers takes away what a crash left.
func removeContainers(ctx context.Context, log *slog.Logger) error {
	if _, err := os.Stat(runtimeDir); err != nil {
		return nil
	}
	rt, err := openRuntime(ctx, log)
	if err != nil {
		return err
	}
	return errors.Join(rt.Remove(ctx), os.RemoveAll(runtimeDir))
}

// deployment is a contestant of container at work.
type deployment struct {
	name string
	*site
}

// buildRounds is after how many rounds all is torn down and made anew: where its
// memory happens to lie makes a set-up faster or slower by some percent.
const buildRounds = 4

func (r *Run) containerCase(ctx context.Context, rt *container.Driver, k containerCase, site newSite, makers []maker) error {
	if _, err := os.Stat(filepath.Join(r.Images, k.image)); err != nil {
		r.skip(k.name, fmt.Sprintf("there is no image %s in %s; build it with make images, or name the folder with --images", k.image, r.Images))
		return nil
	}
	for first := 0; first < r.Rounds(); first += buildRounds {
		if err := r.containerRounds(ctx, rt, k, site, makers, first, min(buildRounds, r.Rounds()-first)); err != nil {
			return err
		}
		makers[0], makers[1] = makers[1], makers[0]
	}
	r.overOther(k.name, MetricThroughput, "static", metricOfStatic)
	return nil
}

// newSite makes what a function is to stand in.
type newSite func(r *Run, name string) (*site, error)

// maker wires a function's namespace into a site, and gives it.
type maker struct {
	name string
	wire func(context.Context, *Run, *site, containerCase) (ns string, err error)
}

func (r *Run) containerRounds(ctx context.Context, rt *container.Driver, k containerCase, site newSite,
	makers []maker, first, rounds int) (err error) {
	var list []deployment
	defer func() {
		for _, d := range list {
			err = errors.Join(err, d.Close())
		}
	}()
	for _, m := range makers {
		d, err := r.deploy(ctx, rt, k, site, m)
		if err != nil {
			return err
		}
		list = append(list, d)
	}
	for round := first; round < first+rounds; round++ {
		r.say("%s, round %d of %d", k.name, round+1, r.Rounds())
		if err := r.streamRound(ctx, k.name, round, list); err != nil {
			return err
		}
	}
	return nil
}

// deploy makes a site with a function in it, through which its connections go.
func (r *Run) deploy(ctx context.Context, rt *container.Driver, k containerCase, site newSite, m maker) (d deployment, err error) {
	r.say("%s, %s: start", k.name, m.name)
	t, err := site(r, m.name)
	if err != nil {
		return d, err
	}
	ns, err := m.wire(ctx, r, t, k)
	if err == nil {
		err = r.startFunction(ctx, rt, t, k, m.name, ns)
	}
	if err == nil {
		err = t.open(ctx)
	}
	if err != nil {
		return d, errors.Join(fmt.Errorf("%s: %w", m.name, err), t.Close())
	}
	return deployment{m.name, t}, nil
}

// turns is how often a contestant streams in one round: in short turns, ABBA, so
// that the machine's own ups and downs meet all of them.
func (r *Run) turns() int { return pick(r, 4, 1) }

// streamRound measures throughput, CPU and round trip of all contestants.
func (r *Run) streamRound(ctx context.Context, kase string, round int, list []deployment) error {
	sums, trips := map[string]*pumped{}, map[string]float64{}
	err := abba(ctx, r.turns(), list, func(turn int, d deployment) error {
		p, err := d.pump(ctx, pick(r, 300*time.Millisecond, 100*time.Millisecond))
		if err != nil {
			return fmt.Errorf("%s: %w", d.name, err)
		}
		rtt, err := d.roundTrip(ctx, pick(r, 1500, 100))
		if err != nil {
			return fmt.Errorf("%s: %w", d.name, err)
		}
		if sums[d.name] == nil {
			sums[d.name] = &pumped{}
		}
		sums[d.name].add(p)
		trips[d.name] += rtt / float64(r.turns())
		return nil
	})
	if err != nil {
		return err
	}
	for _, d := range list {
		r.sample(kase, d.name, MetricThroughput, "bit/s", round, sums[d.name].rate())
		r.sample(kase, d.name, MetricCPU, "ns/byte", round, sums[d.name].cpu())
		r.sample(kase, d.name, MetricRoundTrip, unitMicroseconds, round, trips[d.name])
	}
	return nil
}

// overOther makes a metric of each round's ratio to another contestant, so that
// it has quartiles too.
func (r *Run) overOther(kase, metric, other, as string) {
	for _, k := range append([]sampleKey(nil), r.order...) {
		if k.kase != kase || k.metric != metric || k.contestant == other {
			continue
		}
		base := r.values[sampleKey{kase, other, metric, k.unit}]
		for round, v := range r.values[k] {
			if base[round] != 0 {
				r.sample(kase, k.contestant, as, "ratio", round, v/base[round])
			}
		}
	}
}

// element are the vports of a function that is wired by hand.
func (k containerCase) element() element {
	if k.bridged {
		return element{byHand, byHand + 1}
	}
	return element{byHand, byHand}
}

// yaml is the function, and a chain through it where nodes say.
func (k containerCase) yaml(images, from, to, at string) (string, error) {
	spec, err := json.Marshal(k.spec(images)) // which YAML reads
	if err != nil {
		return "", fmt.Errorf("write %s as YAML: %w", k.image, err)
	}
	return object(onpath.KindFunction, k.image, string(spec)) +
		chain(from, to, fmt.Sprintf("{function: %s, place: {nodes: {name: %s}}}", k.image, at)), nil
}

func (k containerCase) spec(images string) onpath.FunctionSpec {
	attach := onpath.Routed
	if k.bridged {
		attach = onpath.Bridged
	}
	image, err := filepath.Abs(filepath.Join(images, k.image))
	if err != nil {
		image = filepath.Join(images, k.image)
	}
	return onpath.FunctionSpec{
		Container: &onpath.ContainerSpec{Image: image, Attach: attach, Env: k.env, Addresses: onpath.AddressesNone,
			Caps: []string{"NET_ADMIN", "NET_RAW", "SYS_NICE", "IPC_LOCK"}},
		State: onpath.StateFlow, Packets: onpath.PacketsKeep,
		Resources: onpath.Resources{CPU: 4000, Memory: 512 << 20},
	}
}

// readyTimeout is how long a function may take to begin.
const readyTimeout = time.Minute

// namespace makes the function's, at the site's gateway.
func (k containerCase) namespace(t *site) (string, error) {
	if k.bridged {
		return wireBridged(t.Network, t.gateway, k.element())
	}
	return wireRouted(t.Network, t.gateway, k.element().forth, true)
}

// startFunction runs a function's container in a namespace and waits until it
// says that it is ready.
func (r *Run) startFunction(ctx context.Context, rt *container.Driver, t *site, k containerCase, name, ns string) error {
	spec := k.spec(r.Images)
	if err := rt.Prepare(ctx, &spec, func(s string) { r.say("%s", s) }); err != nil {
		return err
	}
	p, err := rt.Start(ctx, onpath.RunSpec{ID: fmt.Sprintf("bench-%s-%s", k.image, name), Spec: spec, NetNS: ns})
	if err != nil {
		return err
	}
	t.After(func() error { return p.Stop(context.Background(), time.Second) })
	for until := time.Now().Add(readyTimeout); ; {
		code, err := rt.Exec(ctx, p.ID(), onpath.ExecSpec{Command: []string{"test", "-e", "/run/ready"}})
		if err == nil && code == 0 {
			return pinProcess(p.Pid(), t.cpu)
		}
		select {
		case <-p.Exited():
			code, _ := p.Exit()
			return fmt.Errorf("its container ended with code %d", code)
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
		if time.Now().After(until) {
			return fmt.Errorf("its container was not ready within %v", readyTimeout)
		}
	}
}

// wireSteered has onpath steer the stream through the function.
func wireSteered(ctx context.Context, r *Run, t *site, k containerCase) (ns string, err error) {
	yaml, err := k.yaml(r.Images, "any", toSiteServer, gatewayName)
	if err != nil {
		return "", err
	}
	list, err := t.steer(ctx, r, yaml)
	if err != nil {
		return "", err
	}
	return list[0].ns, nil
}

// toSiteServer is the end of a chain to a site's server.
var toSiteServer = fmt.Sprintf("{prefixes: [%s]}", netSiteServer)

// steer has onpath steer what YAML says at the site's gateway.
func (t *site) steer(ctx context.Context, r *Run, yaml string) ([]instance, error) {
	return r.steered(ctx, t.Network, gatewayNode(onpath.FastAuto)+yaml, map[string]string{gatewayName: t.gateway})
}

// wireStatic wires the same container by hand: a routed one by policy routing, a
// bridged one by cutting the gateway's wire to the server and putting it between
// the halves with a bridge.
func wireStatic(_ context.Context, _ *Run, t *site, k containerCase) (ns string, err error) {
	e := k.element()
	if ns, err = k.namespace(t); err != nil {
		return "", err
	}
	if !k.bridged {
		return ns, steerByHand(t.gateway, onpath.DeviceName(e.forth), e.forth, devIn, devOut)
	}
	if err := testnet.Set(t.gateway, "ipv4/ip_forward=1"); err != nil {
		return "", err
	}
	return ns, netnsrun.Do(t.gateway, func() error {
		return cutIn(devOut, onpath.DeviceName(e.forth), onpath.DeviceName(e.back))
	})
}

// cutIn moves a device's addresses to near, and bridges the device with far.
func cutIn(dev, near, far string) error {
	l, err := netlink.LinkByName(dev)
	if err != nil {
		return err
	}
	n, err := netlink.LinkByName(near)
	if err != nil {
		return err
	}
	addrs, err := netlink.AddrList(l, netlink.FAMILY_V4)
	if err != nil {
		return err
	}
	for _, a := range addrs {
		if err := errors.Join(netlink.AddrDel(l, &a), netlink.AddrAdd(n, &netlink.Addr{IPNet: a.IPNet})); err != nil {
			return fmt.Errorf("move %s to %s: %w", a.IPNet, near, err)
		}
	}
	return bridge("br0", dev, far)
}

// bridge joins devices of the namespace that the thread is in.
func bridge(name string, devs ...string) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil {
		return fmt.Errorf("make a bridge: %w", err)
	}
	br, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	for _, d := range devs {
		l, err := netlink.LinkByName(d)
		if err != nil {
			return err
		}
		if err := netlink.LinkSetMaster(l, br); err != nil {
			return fmt.Errorf("put %s into a bridge: %w", d, err)
		}
	}
	return netlink.LinkSetUp(br)
}
