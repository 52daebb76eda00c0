package pool

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/client"
	"github.com/onpath/onpath/demo"
	"github.com/onpath/onpath/internal/testprogram"
	"github.com/onpath/onpath/lab"
)

// labPrices are those of the laboratory: no tiers, so that a request's price can be read
// off its file.
const labPrices = `
apiVersion: onpath/v1alpha1
kind: PriceList
metadata: {name: default}
spec:
  currency: EUR
  hour: {cpu: 36, memory: 7.2, network: 18}
  use: {cpu: 3.6, traffic: 0.05}
`

const labHosts = `
apiVersion: onpath/v1alpha1
kind: Hosts
metadata: {name: clients}
spec: {addresses: [10.1.0.0/24]}
---
apiVersion: onpath/v1alpha1
kind: Hosts
metadata: {name: origin}
spec: {addresses: [10.9.0.0/24]}
---
apiVersion: onpath/v1alpha1
kind: Function
metadata: {name: monitor}
spec:
  container: {image: host, command: [sleep, infinity], attach: routed, addresses: none}
  state: none
  packets: keep
`

// laboratory is the emulated network of `onpath demo reserve`, with what was seen of
// instances and chains and when.
type laboratory struct {
	t *testing.T
	*demo.Testbed
	api       *client.Client
	dir       string
	sent      map[string]uint64    // bytes, through the instances of a reservation
	mu        sync.Mutex           // guards what follows
	instances map[string]*lifetime // by name
	active    map[string]time.Time // chains that steer, and since when
}

// lifetime is what was seen of one instance; zero: not seen.
type lifetime struct {
	deployment, node      string
	starting, ready, gone time.Time
	resized               []onpath.EventSpec
}

func setUpLab(t *testing.T) *laboratory {
	t.Helper()
	for _, p := range []string{"containerd", "runc", "nft", "ip"} {
		if _, err := exec.LookPath(p); err != nil {
			t.Skip("needs the program " + p)
		}
	}
	topology, err := lab.ParseFile("../../examples/lab/reserve.yaml")
	if err != nil {
		t.Fatal(err)
	}
	topology.Name = fmt.Sprintf("pool-%d", os.Getpid())
	l := &laboratory{t: t, dir: t.TempDir(), sent: map[string]uint64{}, instances: map[string]*lifetime{},
		active: map[string]time.Time{}}
	spec := demo.TestbedSpec{Topology: topology, Bin: testprogram.Path(t), Dir: filepath.Join(l.dir, "testbed"), HostImage: true,
		Server: demo.TestbedNode{Host: "server", Address: "10.255.0.10"}}
	for i, name := range []string{"fra-gw", "fra1", "fra2", "par1", "lon1"} {
		spec.Nodes = append(spec.Nodes, demo.TestbedNode{Name: name, Host: name, Address: fmt.Sprintf("10.255.0.%d", i+1),
			Cloudlet: strings.TrimRight(name, "-gw12")})
	}
	if l.Testbed, err = demo.SetUp(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var watching sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		watching.Wait()
		l.api.Close()
		if t.Failed() {
			t.Logf("the server said:\n%.8000s", l.Log("server"))
		}
		if err := l.TearDown(context.Background()); err != nil {
			t.Error(err)
		}
	})
	l.api = client.Unix(strings.TrimPrefix(l.Socket(), "unix://"))
	kinds := []onpath.Kind{onpath.KindInstance, onpath.KindChain, onpath.KindEvent}
	watching.Go(func() {
		err := l.api.Watch(ctx, client.WatchOptions{Kinds: kinds}, l.note)
		if ctx.Err() == nil {
			t.Errorf("watch: %v", err)
		}
	})
	if err := l.Apply(t.Context(), "../../examples/reserve/pool.yaml"); err != nil {
		t.Fatal(err)
	}
	l.write("prices", labPrices)
	l.await("the nodes take reservations", func() (bool, error) {
		v, err := l.api.Pool().Capacity(t.Context(), "fra", time.Time{}, time.Time{})
		usable := 0 // all but the gateway
		for _, n := range v.Nodes {
			if n.Usable {
				usable++
			}
		}
		return usable == 2, err
	})
	return l
}

// note keeps when instances and chains came to what they are.
func (l *laboratory) note(c client.Change) error {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	switch o := c.Object.(type) {
	case nil:
		if i := l.instances[c.Key.Name]; i != nil && c.Key.Kind == onpath.KindInstance {
			i.gone = now
		}
	case *onpath.Chain:
		if _, known := l.active[o.Metadata.Name]; !known && o.Status.Active {
			l.active[o.Metadata.Name] = now
		}
	case *onpath.Event:
		i := l.instances[o.Spec.About[strings.LastIndex(o.Spec.About, "/")+1:]]
		if i != nil && o.Spec.Reason == "Resized" {
			i.resized = append(i.resized, o.Spec)
		}
	case *onpath.Instance:
		i := l.instances[o.Metadata.Name]
		if i == nil {
			i = &lifetime{deployment: o.Spec.Deployment, node: o.Spec.Node}
			l.instances[o.Metadata.Name] = i
		}
		switch {
		case o.Status.State == onpath.InstanceStarting && i.starting.IsZero():
			i.starting = now
		case o.Status.State == onpath.InstanceReady && i.ready.IsZero():
			i.ready = now
		}
	}
	return nil
}

// of are the instances that a deployment has and had.
func (l *laboratory) of(deployment string) map[string]lifetime {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := map[string]lifetime{}
	for name, i := range l.instances {
		if i.deployment == deployment {
			out[name] = *i
		}
	}
	return out
}

func (l *laboratory) activeSince(chain string) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.active[chain]
}

// write applies objects as a user does.
func (l *laboratory) write(name, yaml string) {
	l.t.Helper()
	file := filepath.Join(l.dir, name+".yaml")
	err := os.WriteFile(file, []byte(yaml), 0o644)
	if err == nil {
		err = l.Apply(l.t.Context(), file)
	}
	if err != nil {
		l.t.Errorf("apply %s: %v", name, err)
	}
}

func (l *laboratory) await(what string, ok func() (bool, error)) bool {
	l.t.Helper()
	err := l.WaitFor(l.t.Context(), what, time.Minute, ok)
	if err != nil {
		l.t.Error(err)
	}
	return err == nil
}

func (l *laboratory) reservation(name string) *onpath.Reservation {
	l.t.Helper()
	o, err := l.api.Get(l.t.Context(), onpath.Key{Kind: onpath.KindReservation, Tenant: onpath.DefaultTenant, Name: name})
	if err != nil {
		l.t.Error(err)
		return &onpath.Reservation{}
	}
	return o.(*onpath.Reservation)
}
