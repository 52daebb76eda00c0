package demo

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/onpath/onpath"
)

// Where the service of the trust demonstration is asked for.
const (
	serviceName = "hello.shop.example"
	nameServer  = "10.9.0.10:53"
	serverFile  = `server:
  publicPools: [203.0.113.0/28]
  dns: {listen: "10.9.0.10:53", name: ns.operator.example}
node:
  moduleSources: [10.9.0.0/16] # of passwords, too
`
)

// serverConfig writes the server's configuration.
func (d *trustRun) serverConfig() (string, error) {
	dir := filepath.Join(d.Dir, "server")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	path := filepath.Join(dir, "onpath.yaml")
	return path, os.WriteFile(path, []byte(serverFile), 0o644)
}

// trustGateways are those of the cloudlets, with their addresses at the core and their clients.
var trustGateways = []struct{ node, cloudlet, core, client string }{
	{"gw1", "access", "10.9.0.1", "client"}, {"gw2", "east", "10.9.0.12", "client2"}, {"gw3", "west", "10.9.0.13", "client3"},
}

// service has a service of the shop's answer in three cloudlets.
func (d *trustRun) service(ctx context.Context) error {
	d.Say("the shop applies a service: a module in three cloudlets, one name")
	if err := d.Testbed.Apply(ctx, d.file("service.yaml")); err != nil {
		return err
	}
	var s onpath.Service
	err := d.Testbed.WaitFor(ctx, "the service answers in three cloudlets", time.Minute, func() (bool, error) {
		err := d.Testbed.Get(ctx, &s, "service", "shop/hello")
		n := 0
		for _, p := range s.Status.Cloudlets {
			if p.Serves {
				n++
			}
		}
		return n == len(trustGateways), err
	})
	if err != nil {
		return err
	}
	at := map[string]netip.Addr{}
	for _, p := range s.Status.Cloudlets {
		at[p.Cloudlet] = p.Addresses[0]
	}
	if err := d.route(ctx, at); err != nil {
		return err
	}
	nearest, fetched := 0, 0
	var said []string
	for _, g := range trustGateways {
		var r NamesResult
		// Clients in no cloudlet's prefixes are measured when they ask for some seconds.
		err := d.Testbed.WaitFor(ctx, g.client+" is led to its cloudlet", time.Minute, func() (ok bool, err error) {
			r, err = d.names(ctx, g.client, 0)
			return err == nil && r.Answers[0].Address == at[g.cloudlet].String(), err
		})
		if err != nil {
			return err
		}
		if len(r.Answers) == 1 && r.Answers[0].Address == at[g.cloudlet].String() {
			nearest++
		}
		said = append(said, fmt.Sprintf("%s %s", g.client, r.Answers[0].Address))
		out, err := d.Testbed.Exec(ctx, g.client, d.Testbed.Bin(), "demo", "stats", "http://"+r.Answers[0].Address+"/")
		if err == nil && strings.Contains(string(out), "hello from") {
			fetched++
		}
	}
	d.figures.add(nearest == len(trustGateways), "one name leads the clients of each cloudlet to their own",
		"%s; client3 was measured", strings.Join(said, ", "))
	d.figures.add(fetched == len(trustGateways), "and the service answers there", "%d of %d requests", fetched, len(trustGateways))
	d.dig(ctx, at)
	return d.cloudletDies(ctx, at)
}

// dig has a tool that others wrote ask for two networks of clients, where it is installed.
func (d *trustRun) dig(ctx context.Context, at map[string]netip.Addr) {
	if _, err := exec.LookPath("dig"); err != nil {
		return
	}
	agreed, said := true, []string(nil)
	for subnet, cloudlet := range map[string]string{"10.1.0.0/24": "access", "10.2.0.0/24": "east"} {
		server, _, _ := strings.Cut(nameServer, ":")
		out, err := d.Testbed.Exec(ctx, shopHost, "dig", "@"+server, "+short", "+subnet="+subnet, serviceName)
		answer := strings.TrimSpace(string(out))
		agreed = agreed && err == nil && answer == at[cloudlet].String()
		said = append(said, subnet+" "+answer)
	}
	slices.Sort(said)
	d.figures.add(agreed, "dig +subnet is led likewise", "%s", strings.Join(said, ", "))
}

// route has every gateway know where the others' addresses are, as the operator's routing
// would.
func (d *trustRun) route(ctx context.Context, at map[string]netip.Addr) error {
	for _, from := range trustGateways {
		for _, to := range trustGateways {
			if from == to {
				continue
			}
			out, err := d.Testbed.Exec(ctx, from.node, "ip", "route", "replace", at[to.cloudlet].String(), "via", to.core)
			if err != nil {
				return fmt.Errorf("route on %s: %w: %s", from.node, err, out)
			}
		}
	}
	return nil
}

// names asks for the service 200 times a second for a while, or once.
func (d *trustRun) names(ctx context.Context, client string, long time.Duration) (r NamesResult, err error) {
	err = d.inHost(ctx, client, &r, "demo", "names", asJSON(NamesSpec{Server: nameServer, Name: serviceName, Rate: 200, For: long}))
	if err == nil && len(r.Answers) == 0 {
		err = fmt.Errorf("%s: no answer for %s", client, serviceName)
	}
	return r, err
}

// cloudletDies kills the machine next to client2, as far as packets tell, while client2 asks.
func (d *trustRun) cloudletDies(ctx context.Context, at map[string]netip.Addr) error {
	d.Say("gw2 dies; a resolver at the shop asks for the name 200 times a second")
	type asked struct {
		r   NamesResult
		err error
	}
	done := make(chan asked, 1)
	go func() {
		var a asked
		a.err = d.inHost(ctx, "shop", &a.r, "demo", "names",
			asJSON(NamesSpec{Server: nameServer, Name: serviceName, Rate: 200, For: 10 * time.Second, Subnet: "10.2.0.0/24"}))
		done <- a
	}()
	select {
	case <-time.After(time.Second):
	case <-ctx.Done():
		return ctx.Err()
	}
	out, err := d.Testbed.Exec(ctx, "gw2", "ip", "link", "set", "underlay", "down")
	if err != nil {
		return fmt.Errorf("cut gw2 off: %w: %s", err, out)
	}
	died := time.Now()
	if err := d.Testbed.Kill("gw2", syscall.SIGKILL); err != nil {
		return err
	}
	a := <-done
	if a.err != nil {
		return a.err
	}
	dead, wrong := at["east"].String(), 0
	for i, x := range a.r.Answers {
		if x.Address == dead {
			d.figures.Moved = max(x.Last.Sub(died), 0)
			if i > 0 {
				wrong += x.Count
			}
		}
	}
	last := a.r.Answers[len(a.r.Answers)-1].Address
	d.figures.add(last == at["access"].String(), "when it dies the name leads to the next", "%s in place of %s", last, dead)
	d.figures.add(d.figures.Moved < 5*time.Second && a.r.TTL <= 5, "within the life of an answer", "%s; answers live %d s",
		round(d.figures.Moved), a.r.TTL)
	d.figures.add(wrong == 0 && a.r.Failed == 0, "and nobody is sent to the dead one later", "%d of %d answers, %d failed",
		wrong, a.r.Asked, a.r.Failed)
	return nil
}
