package attach_test

import (
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onpath/onpath/internal/netnsrun"
)

const fetchYAML = `apiVersion: onpath/v1alpha1
kind: Hosts
metadata: {name: vm1}
spec: {node: vm1}
---
apiVersion: onpath/v1alpha1
kind: Function
metadata: {name: nothing}
spec:
  container:
    image: host
    command: [sh, -c, "nft add table inet f && nft add chain inet f c '{ type filter hook forward priority 0; policy drop; }' && exec sleep 1000"]
    capabilities: [NET_ADMIN]
---
apiVersion: onpath/v1alpha1
kind: Chain
metadata: {name: all}
spec:
  from: {hosts: vm1}
  to: any
  through: [{function: nothing, none: drop, place: {nodes: {name: vm3}}}]
`

const fetchedYAML = `apiVersion: onpath/v1alpha1
kind: Function
metadata: {name: fetched}
spec: {container: {image: "192.0.2.10:5000/small:1", addresses: none}}
---
apiVersion: onpath/v1alpha1
kind: Chain
metadata: {name: some}
spec:
  from: {hosts: vm1}
  to: {prefixes: [192.0.2.77]}
  priority: 5
  through: [{function: fetched, place: {nodes: {name: vm1}}}]
`

// TestFetchPastOwnChain: a machine of which a chain drops all asks its registry for an image
// all the same; another connection to the same host is dropped.
func TestFetchPastOwnChain(t *testing.T) {
	c, ctx := newCloud(t, 2*time.Minute)
	var asked atomic.Int32
	var l net.Listener
	err := netnsrun.Do(c.Lab.NetNS("client"), func() (err error) { l, err = net.Listen("tcp", "192.0.2.10:5000"); return err })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			asked.Add(1)
			conn.Close()
		}
	}()
	c.echo("client", "192.0.2.10:7000")
	apply := func(text string, flags ...string) string {
		t.Helper()
		file := filepath.Join(t.TempDir(), "chain.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return c.must(ctx, append([]string{"apply", "-f", file}, flags...)...)
	}
	apply(fetchYAML, "--wait")
	apply(fetchedYAML)
	for end := time.Now().Add(time.Minute); asked.Load() == 0 && time.Now().Before(end); {
		time.Sleep(50 * time.Millisecond)
	}
	if asked.Load() == 0 {
		t.Errorf("the registry is not asked: %s", c.must(ctx, "get", "instances"))
	}
	err = netnsrun.Do(c.Lab.NetNS("vm1"), func() error {
		conn, err := net.DialTimeout("tcp", "192.0.2.10:7000", time.Second)
		if err == nil {
			conn.Close()
		}
		return err
	})
	if err == nil {
		t.Error("the chain lets another connection of the machine pass")
	}
}
