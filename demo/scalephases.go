package demo

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/onpath/onpath"
)

var webChain = onpath.Key{Kind: onpath.KindChain, Tenant: onpath.DefaultTenant, Name: "web"}

// measured is how long the served load of a case is measured.
const measured = 8 * time.Second

// scale shows how the chain follows its load.
func (d *scaleRun) scale(ctx context.Context) error {
	d.Say("a chain of inspect (%s of CPU) and limit (%s); the client reports what is served, ten times a second", inspectCPU, limitRate)
	if err := d.chain(ctx, 1, 1, scalingSpec); err != nil {
		return err
	}
	d.source.push = func(before, now Tick) {
		value := float64(now.Served-before.Served) / now.At.Sub(before.At).Seconds()
		_ = d.client.PushMetric(ctx, webChain, value, now.At) // a lost one is missed by the scaler, which says so
	}
	if err := d.source.rate(lowLoad); err != nil {
		return err
	}
	if err := d.pause(ctx, 8*time.Second); err != nil {
		return err
	}
	d.report.Low = d.source.served(4 * time.Second)
	var err error
	if d.report.Up, err = d.follow(ctx, highLoad, time.Minute); err != nil {
		return err
	}
	d.report.Down, err = d.follow(ctx, halfLoad, 45*time.Second)
	d.source.push = nil
	return err
}

// follow changes the load and waits until the chain has settled: until nothing was tried for
// as long as the served load is measured.
func (d *scaleRun) follow(ctx context.Context, load int, limit time.Duration) (ScalePhase, error) {
	d.Say("load %d requests a second", load)
	first, err := d.scaling(ctx)
	if err != nil {
		return ScalePhase{}, err
	}
	began, told := time.Now(), len(first.Decisions)
	if err := d.source.rate(load); err != nil {
		return ScalePhase{}, err
	}
	p := ScalePhase{Load: load}
	busy := began // when something was last on trial
	err = d.Testbed.WaitFor(ctx, "the chain has settled", limit+measured, func() (bool, error) {
		s, err := d.scaling(ctx)
		if err != nil {
			return false, err
		}
		for _, x := range s.Decisions[min(told, len(s.Decisions)):] {
			d.Say("  %s", x.Text)
			p.Decisions = append(p.Decisions, x.Text)
		}
		told = len(s.Decisions)
		p.Instances, p.Cost = s.Wanted, total(s.Wanted)
		if s.Session != nil || s.Trial != nil {
			busy = time.Now()
		}
		time.Sleep(80 * time.Millisecond)
		return told > len(first.Decisions) && time.Since(busy) > measured, nil
	})
	p.Took = busy.Sub(began)
	if err != nil && (ctx.Err() != nil || time.Since(began) < limit) {
		return p, err
	}
	p.Served = d.source.served(measured)
	if p.Settled = err == nil; !p.Settled {
		p.Took = time.Since(began)
		d.Say("not settled yet")
	}
	d.Say("after %.1f s: %d inspect, %d limit, which serve %.0f requests a second", p.Took.Seconds(), p.Instances["inspect"], p.Instances["limit"], p.Served)
	return p, nil
}

func total(numbers map[string]int) (sum int) {
	for _, n := range numbers {
		sum += n
	}
	return sum
}

func (d *scaleRun) scaling(ctx context.Context) (*onpath.ScalingStatus, error) {
	o, err := d.client.Get(ctx, webChain)
	if err != nil {
		return nil, err
	}
	if s := o.(*onpath.Chain).Status.Scaling; s != nil {
		return s, nil
	}
	return &onpath.ScalingStatus{}, nil
}

// fixed measures the same load with numbers of instances that stay: those of before, as
// many of each as the one in need has, and the fewest that can serve it.
func (d *scaleRun) fixed(ctx context.Context) error {
	d.report.Best = map[string]int{"inspect": ceil(highLoad, inspectServes), "limit": ceil(highLoad, limitServes)}
	d.report.BestHalf = map[string]int{"inspect": ceil(halfLoad, inspectServes), "limit": ceil(halfLoad, limitServes)}
	most := max(d.report.Best["inspect"], d.report.Best["limit"])
	for _, c := range []struct {
		name           string
		inspect, limit int
	}{
		{"no scaling", 1, 1}, {"scale all", most, most}, {"best static", d.report.Best["inspect"], d.report.Best["limit"]},
	} {
		d.Say("load %d requests a second, %s: %d inspect, %d limit", highLoad, c.name, c.inspect, c.limit)
		if err := d.chain(ctx, c.inspect, c.limit, ""); err != nil {
			return err
		}
		if err := d.source.rate(highLoad); err != nil {
			return err
		}
		err := d.Testbed.WaitFor(ctx, "all instances are ready", time.Minute, func() (bool, error) {
			list, err := d.Testbed.Instances(ctx)
			return ready(list) == c.inspect+c.limit && len(list) == c.inspect+c.limit, err
		})
		if err != nil {
			return err
		}
		if err := d.pause(ctx, measured+2*time.Second); err != nil {
			return err
		}
		d.report.Fixed = append(d.report.Fixed, ScalePhase{Name: c.name, Load: highLoad, Served: d.source.served(measured),
			Instances: map[string]int{"inspect": c.inspect, "limit": c.limit}, Cost: c.inspect + c.limit})
	}
	return d.source.rate(0)
}

func ready(list []onpath.Instance) (n int) {
	for _, i := range list {
		if i.Status.State == onpath.InstanceReady && i.Spec.Draining.IsZero() {
			n++
		}
	}
	return n
}

func ceil(n, by int) int { return (n + by - 1) / by }

func (d *scaleRun) pause(ctx context.Context, t time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(t):
		return nil
	}
}

// instanceNodes are the nodes of ready instances by vport, and their deployments.
func (d *scaleRun) instanceNodes(ctx context.Context) (nodes, deployments map[onpath.VportID]string, err error) {
	list, err := d.Testbed.Instances(ctx)
	nodes, deployments = map[onpath.VportID]string{}, map[onpath.VportID]string{}
	for _, i := range list {
		nodes[i.Spec.Vport], deployments[i.Spec.Vport] = i.Spec.Node, i.Spec.Deployment
	}
	return nodes, deployments, err
}

// racks is Figure 7: three instances before four in two racks.
func (d *scaleRun) racks(ctx context.Context) error {
	if _, err := d.Testbed.Onpath(ctx, "delete", "chain", "web"); err != nil {
		return err
	}
	for _, distribution := range []string{"uniform", "network"} {
		chain := "racks-" + distribution
		if err := d.apply(ctx, fmt.Sprintf(`
apiVersion: onpath/v1alpha1
kind: Function
metadata: {name: re}
spec:
  container:
    image: host
    attach: routed
    addresses: none
    command: [sh, -c, "touch /run/ready; trap 'exit 0' TERM; sleep infinity & wait"]
  state: none
  packets: keep
  resources: {cpu: 50m, memory: 32Mi}
  health: {exec: [test, -e, /run/ready], every: 1s}
---
apiVersion: onpath/v1alpha1
kind: Chain
metadata: {name: %s}
spec:
  from: any
  to: {hosts: service}
  distribution: %s
  through:
  - {function: pass, instances: 3, drain: 1s}
  - {function: re, instances: 4, drain: 1s}
`, chain, distribution)); err != nil {
			return err
		}
		if err := d.Testbed.WaitActive(ctx, chain, 30*time.Second, nil); err != nil {
			return err
		}
		err := d.Testbed.WaitFor(ctx, "seven instances are ready", time.Minute, func() (bool, error) {
			list, err := d.Testbed.Instances(ctx)
			return ready(list) == 7 && len(list) == 7, err
		})
		if err != nil {
			return err
		}
		if err := d.pause(ctx, time.Second); err != nil {
			return err
		}
		split, err := d.split(ctx, chain)
		if err != nil {
			return err
		}
		d.Say("Figure 7, %s: %.1f %% of %d flows go from rack to rack", distribution, 100*split.Crossing, split.Flows)
		d.report.Racks = append(d.report.Racks, split)
		if _, err := d.Testbed.Onpath(ctx, "delete", "chain", chain); err != nil {
			return err
		}
	}
	return nil
}

// split sends flows and reads from the nodes' flow entries which way they go.
func (d *scaleRun) split(ctx context.Context, chain string) (Split, error) {
	s := Split{Chain: chain, Shares: map[string]int{}}
	if err := d.source.rate(1000); err != nil {
		return s, err
	}
	if err := d.pause(ctx, 5*time.Second); err != nil {
		return s, err
	}
	if err := d.source.rate(0); err != nil {
		return s, err
	}
	nodes, deployments, err := d.instanceNodes(ctx)
	if err != nil {
		return s, err
	}
	seen := map[onpath.Tuple]bool{}
	crossing := 0
	for _, node := range []string{"node1", "node2"} {
		err := d.flows(ctx, node, func(e onpath.FlowEntry) {
			if e.Reverse || deployments[e.Vport] != chain+"-pass" || deployments[e.Next] != chain+"-re" || seen[e.Tuple] {
				return
			}
			seen[e.Tuple] = true
			s.Flows++
			s.Shares[fmt.Sprint(e.Next)]++
			if nodes[e.Vport] != nodes[e.Next] {
				crossing++
			}
		})
		if err != nil {
			return s, err
		}
	}
	if s.Flows > 0 {
		s.Crossing = float64(crossing) / float64(s.Flows)
	}
	for _, n := range s.Shares {
		s.Largest, s.Smallest = max(s.Largest, n), minOr(s.Smallest, n)
	}
	return s, nil
}

func minOr(a, b int) int {
	if a == 0 {
		return b
	}
	return min(a, b)
}

// named finds a phase.
func named(list []ScalePhase, name string) ScalePhase {
	if i := slices.IndexFunc(list, func(p ScalePhase) bool { return p.Name == name }); i >= 0 {
		return list[i]
	}
	return ScalePhase{}
}
