package bench

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/client"
	"github.com/onpath/onpath/datapath/ebpf"
)

const (
	setupVports = 10
	setupCase   = "data path: 10 routed instances"
	setupAll    = "whole: chain of 10 routed instances, from apply until it is active"

	metricPorts = "ports"
	metricRules = "rules"
	metricTotal = "in all"
	metricEach  = "per vport"
)

func setup() Benchmark {
	return Benchmark{
		Name: "setup", rounds: 5, cost: cost{20 * time.Second, 8 * time.Second},
		Question: "how long does a chain of 10 vports take to set up? (Stratos: 14 ms for the plan, 23.3 s for ports, 54 ms for rules)",
		Targets: []Target{
			{Text: "< 1 s in all", Case: setupAll, Contestant: "onpath", Metric: metricTotal, Max: 1000,
				Why: "Devices and rules take what the data path's part shows by itself. The rest is ten containers, made side by side: containerd and runc start some five processes for each, and the machine's CPUs are busy with that from the beginning to the end."},
			{Text: "< 20 ms a vport", Case: setupCase, Contestant: "onpath", Metric: metricEach, Max: 20},
		},
		run: runSetup,
	}
}

func runSetup(ctx context.Context, r *Run) error {
	for round := range r.Rounds() {
		r.say("data path, round %d of %d", round+1, r.Rounds())
		if err := r.setupDatapath(ctx, round); err != nil {
			return err
		}
	}
	s, err := r.newTestbed(ctx)
	var why lacking
	if errors.As(err, &why) {
		r.skip(setupAll, string(why))
		return nil
	}
	if err != nil {
		return err
	}
	for round := range r.Rounds() {
		r.say("whole, round %d of %d", round+1, r.Rounds())
		if err := r.setupChain(ctx, s, round); err != nil {
			return errors.Join(err, s.close(ctx))
		}
	}
	return s.close(ctx)
}

// setupDatapath times namespaces, devices, neighbours and routes of instances as
// an agent makes them, and then the rules.
func (r *Run) setupDatapath(ctx context.Context, round int) (err error) {
	l, err := r.newLine("onpath")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	idle, err := planned(gatewayNode(onpath.FastAuto))
	if err != nil {
		return err
	}
	before, _, err := wirePlan(l.Network, l.router, idle.Plan(gatewayName))
	if err != nil {
		return err
	}
	f, err := planned(gatewayNode(onpath.FastAuto) + throughHops(setupVports, netServers.String()))
	if err != nil {
		return err
	}
	d, err := openDatapath(l.router, ebpf.Options{Name: fmt.Sprintf("setup-%d", round), PinPath: pinPath, Log: r.Log})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Remove(context.WithoutCancel(ctx)), d.Close()) }()
	if err := d.Apply(ctx, before); err != nil {
		return err
	}
	start := time.Now()
	c, _, err := wirePlan(l.Network, l.router, f.Plan(gatewayName))
	if err != nil {
		return err
	}
	ports := time.Since(start)
	if err := d.Apply(ctx, c); err != nil {
		return err
	}
	total := time.Since(start)
	millis := func(metric string, d time.Duration) {
		r.sample(setupCase, "onpath", metric, unitMillis, round, float64(d.Microseconds())/1e3)
	}
	millis(metricPorts, ports)
	millis(metricRules, total-ports)
	millis(metricTotal, total)
	millis(metricEach, total/setupVports)
	return nil
}

// setupChain times the whole: the API, the plan, ten containers, their ports, and
// the rules on all nodes, until the server says that the chain steers.
func (r *Run) setupChain(ctx context.Context, s *testbed, round int) error {
	name := fmt.Sprintf("long%d", round)
	functions, chain := longChain(name)
	if err := s.apply(ctx, functions); err != nil {
		return err
	}
	start := time.Now()
	if err := s.apply(ctx, chain); err != nil {
		return err
	}
	if err := s.awaitActive(ctx, name); err != nil {
		return err
	}
	r.sample(setupAll, "onpath", metricTotal, unitMillis, round, float64(time.Since(start).Microseconds())/1e3)
	if _, err := s.Onpath(ctx, "delete", "chain", name); err != nil {
		return err
	}
	return s.WaitFor(ctx, "the chain's instances are gone", readyTimeout, func() (bool, error) {
		list, err := s.Instances(ctx)
		return len(list) == 0, err
	})
}

// lookEvery is how often the server is asked whether a chain is active. It is
// asked over one connection: a process for each question would take the CPU from
// what is measured.
const lookEvery = 5 * time.Millisecond

// awaitActive waits until the server says that a chain steers.
func (s *testbed) awaitActive(ctx context.Context, name string) error {
	cl := client.Unix(strings.TrimPrefix(s.Socket(), "unix://"))
	defer cl.Close()
	for until := time.Now().Add(readyTimeout); ; {
		o, err := cl.Get(ctx, onpath.Key{Kind: onpath.KindChain, Tenant: onpath.DefaultTenant, Name: name})
		if err != nil {
			return err
		}
		c, ok := o.(*onpath.Chain)
		if ok && c.Status.Active {
			return nil
		}
		if !ok || time.Now().After(until) {
			return fmt.Errorf("chain %s does not steer after %v", name, readyTimeout)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(lookEvery):
		}
	}
}

// longChain is a chain through ten functions, each a routed hop: the instance's
// kernel forwards.
func longChain(name string) (functions, chain string) {
	chain = "apiVersion: onpath/v1alpha1\nkind: Chain\nmetadata: {name: " + name + "}\nspec:\n  from: {hosts: client}\n  to: {hosts: origin}\n  through:\n"
	for i := range setupVports {
		functions += fmt.Sprintf(`---
apiVersion: onpath/v1alpha1
kind: Function
metadata: {name: hop%d}
spec:
  container: {image: host, command: [sleep, infinity], attach: routed, addresses: none}
  state: none
  packets: keep
`, i)
		chain += fmt.Sprintf("  - {function: hop%d, drain: 1s}\n", i)
	}
	return functions, chain
}
