package attach_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onpath/onpath/demo"
	"github.com/onpath/onpath/lab"
)

const (
	machines = 20
	pings    = 5 // from each machine to each other
)

// counting is what a function counts: what it forwards, by the addresses at both ends.
const counting = `table ip count {
  set pairs { type ipv4_addr . ipv4_addr; flags dynamic; size 65535; counter; }
  chain forward { type filter hook forward priority filter; ip protocol icmp update @pairs { ip saddr . ip daddr }; }
}
`

const counter = `
apiVersion: onpath/v1alpha1
kind: Function
metadata: {name: counter}
spec:
  container:
    image: host
    attach: routed
    capabilities: [NET_ADMIN]
    addresses: none
    command: [sh, -c, nft -f /etc/count.nft && exec sleep infinity]
    files: {/etc/count.nft: {content: %q}}
  state: none
  packets: keep
  resources: {cpu: 1m, memory: 16Mi}
  health: {exec: [nft, list, table, ip, count], every: 2s}
`

func machine(i int) (name, address string) {
	return fmt.Sprintf("m%d", i), fmt.Sprintf("10.21.0.%d", 10+i)
}

// many is attached machines at one switch, and one more for functions.
func many(t *testing.T) (*cloud, context.Context) {
	var hosts, links strings.Builder
	spec := demo.TestbedSpec{Server: demo.TestbedNode{Host: "server", Address: "10.21.0.200"}}
	add := func(name, address string) {
		fmt.Fprintf(&hosts, "  %s: {mounts: private, interfaces: {eth0: [%s/24]}, routes: [{to: default, via: 10.21.0.1}]}\n", name, address)
		fmt.Fprintf(&links, "- {a: \"%s:eth0\", b: cloud}\n", name)
	}
	for i := range machines {
		name, address := machine(i)
		add(name, address)
		spec.Nodes = append(spec.Nodes, demo.TestbedNode{Name: name, Host: name, Address: address, Cloudlet: "cloud", AttachHost: true})
	}
	add("fn", "10.21.0.201")
	add("server", "10.21.0.200")
	spec.Nodes = append(spec.Nodes, demo.TestbedNode{Name: "fn", Host: "fn", Address: "10.21.0.201", Cloudlet: "cloud"})
	topology, err := lab.Parse(strings.NewReader(fmt.Sprintf(`name: twenty-%d
hosts:
%s  router: {forwarding: on, interfaces: {cloud: [10.21.0.1/24]}}
switches: {cloud: }
links:
%s- {a: "router:cloud", b: cloud}
`, os.Getpid(), hosts.String(), links.String())), "twenty.yaml")
	if err != nil {
		t.Fatal(err)
	}
	spec.Topology = topology
	return setUp(t, spec, 11*time.Minute)
}

// TestTwenty: 20 machines of one cloudlet have a function each, and talk to each other while
// streams run between them: each packet of each pair is counted once at one function.
func TestTwenty(t *testing.T) {
	if os.Getenv("ONPATH_SOAK") == "" {
		t.Skip("ONPATH_SOAK is not set; it takes four minutes")
	}
	c, ctx := many(t)
	before := map[string]string{}
	for i := range machines {
		name, _ := machine(i)
		before[name] = c.found(ctx, name)
	}
	c.attachCounters(ctx)
	stop := c.streams(ctx)
	c.eachPairOnce(ctx)
	stop()
	for i := range machines {
		name, _ := machine(i)
		c.must(ctx, "detach", name)
	}
	c.gone(ctx, before)
}

func (c *cloud) attachCounters(ctx context.Context) {
	c.t.Helper()
	file := filepath.Join(c.t.TempDir(), "counter.yaml")
	if err := os.WriteFile(file, fmt.Appendf(nil, counter, counting), 0o600); err != nil {
		c.t.Fatal(err)
	}
	c.must(ctx, "apply", "-f", file)
	for i := range machines {
		name, _ := machine(i)
		c.must(ctx, "attach", name, "--through", "counter", "--ports", "icmp,tcp/5201-5299", "--place", "name=fn")
	}
}

// streams runs iperf3 from each even machine to the next.
func (c *cloud) streams(ctx context.Context) (stop func()) {
	c.t.Helper()
	var all []*stream
	for i := 0; i < machines; i += 2 {
		from, _ := machine(i)
		to, address := machine(i + 1)
		all = append(all, c.iperf(ctx, from, to, address, "5201", "2M"))
	}
	return func() {
		for _, s := range all {
			s.end(c.t)
		}
	}
}

// eachPairOnce has each machine ask each other, and wants functions to have seen each request
// and each reply once in all.
func (c *cloud) eachPairOnce(ctx context.Context) {
	c.t.Helper()
	var wg sync.WaitGroup
	for i := range machines {
		from, _ := machine(i)
		script := ""
		for k := range machines {
			if _, to := machine(k); k != i {
				script += fmt.Sprintf("ping -q -c %d -i 0.02 -W 10 %s | grep -q ' 0%% packet loss' || echo %s; ", pings, to, to)
			}
		}
		wg.Go(func() {
			if out, err := c.Exec(ctx, from, "sh", "-c", script); err != nil || strings.TrimSpace(string(out)) != "" {
				c.t.Errorf("from %s replies are missing, of: %s %v", from, out, err)
			}
		})
	}
	wg.Wait()
	seen := map[string]int{}
	list, err := c.Instances(ctx)
	if err != nil {
		c.t.Fatal(err)
	}
	for _, i := range list {
		c.count(ctx, i.Meta().Name, seen)
	}
	pairs := 0
	for i := range machines {
		for k := range machines {
			_, a := machine(i)
			_, b := machine(k)
			// Requests of one and replies to the other go the same way.
			if n := seen[a+" "+b]; i != k && n != 2*pings {
				c.t.Errorf("of the %d packets from %s to %s functions saw %d", 2*pings, a, b, n)
			} else if i != k {
				pairs++
			}
		}
	}
	c.t.Logf("%d instances saw each packet of %d of %d ways between two once", len(list), pairs, machines*(machines-1))
}

// count adds what an instance has seen.
func (c *cloud) count(ctx context.Context, instance string, seen map[string]int) {
	c.t.Helper()
	var listed struct {
		NFTables []struct {
			Set *struct {
				Elem []struct {
					Elem struct {
						Val     struct{ Concat []string }
						Counter struct{ Packets int }
					}
				}
			}
		}
	}
	out := c.must(ctx, "exec", instance, "--", "nft", "-j", "list", "set", "ip", "count", "pairs")
	if err := json.Unmarshal([]byte(out), &listed); err != nil {
		c.t.Fatal(err, out)
	}
	for _, x := range listed.NFTables {
		if x.Set == nil {
			continue
		}
		for _, e := range x.Set.Elem {
			seen[strings.Join(e.Elem.Val.Concat, " ")] += e.Elem.Counter.Packets
		}
	}
}
