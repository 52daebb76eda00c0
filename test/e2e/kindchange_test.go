package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/funcbuild"
)

// kindChain is a chain of one function, whose kind takes the place of KIND and the port that
// the function blocks that of PORT.
const kindChain = `
apiVersion: onpath/v1alpha1
kind: Function
metadata: {name: changing}
spec:
  state: none
  packets: keep
KIND
---
apiVersion: onpath/v1alpha1
kind: Chain
metadata: {name: changing}
spec:
  from: {hosts: client}
  to: {hosts: origin}
  through: [{function: changing, none: drop, drain: 1s}]
`

// blocking is a firewall of each kind.
var blocking = map[string]string{
	"container": `  container:
    image: host
    attach: routed
    addresses: none
    capabilities: [NET_ADMIN]
    command: [sh, -c, "nft -f /etc/wall.nft && trap 'exit 0' TERM; sleep infinity & wait"]
    files: {/etc/wall.nft: {content: "table inet wall { chain forward { type filter hook forward priority filter; tcp dport PORT drop; }; }\n"}}
  health: {exec: [nft, list, table, inet, wall], every: 100ms}`,
	"ebpf": `  ebpf: {object: firewall, budget: 100us, config: {default: allow, rules: drop tcp to any port PORT}}`,
	"wasm": `  resources: {cpu: "1", memory: 64Mi}
  wasm: {modules: [{name: block, module: MODULE, config: {port: "PORT"}}]}`,
}

// TestKindChange: while a function becomes one of another kind, new connections are made
// without a gap, none reaches a port that it blocks by either kind, and verify refutes
// nothing.
func TestKindChange(t *testing.T) {
	ctx := need(t, 5*time.Minute)
	kinds := []string{"container", "ebpf", "container"}
	module := ""
	if os.Getenv("ONPATH_SOAK") != "" {
		module = filepath.Join(t.TempDir(), "block.wasm")
		code, err := funcbuild.Compile(t.Context(), "testdata/modules/block.c", funcbuild.ToWasm)
		if err == nil {
			err = os.WriteFile(module, code, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		kinds = append(kinds, "wasm", "ebpf", "wasm", "container")
	}
	open, shut := serveTCP(t, echo), serveTCP(t, echo)
	file := filepath.Join(t.TempDir(), "changing.yaml")
	become := func(kind string) {
		t.Helper()
		yaml := strings.NewReplacer("KIND", blocking[kind]).Replace(kindChain)
		yaml = strings.NewReplacer("PORT", fmt.Sprint(shut.port), "MODULE", module).Replace(yaml)
		if err := os.WriteFile(file, []byte(yaml), 0o600); err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		if out, err := testbed.Onpath(ctx, "apply", "--wait", "--timeout", "60s", "-f", file); err != nil {
			t.Fatalf("apply as %s: %v\n%s", kind, err, out)
		}
		t.Logf("%s after %v", kind, time.Since(begun).Round(10*time.Millisecond))
	}
	become(kinds[0])
	t.Cleanup(func() { remove(t, file, 0) })
	unknown := unknownVports(ctx, t)
	w := beginTraffic(ctx, t, open.port, shut.port)
	for _, kind := range kinds[1:] {
		become(kind)
		w.settle(ctx)
	}
	w.end()
	if v, why := w.verify(ctx); v != onpath.VerdictProved {
		t.Errorf("in the end verify says %s: %s", v, why)
	}
	if n := unknownVports(ctx, t) - unknown; n != 0 {
		t.Errorf("%d packets came through the tunnel for vports that were unknown", n)
	}
	if shut.lastCaller().IsValid() {
		t.Errorf("%v reached the blocked port", shut.lastCaller())
	}
}

// steadyTraffic is new connections, one after the other, to two ports, and what verify says.
type steadyTraffic struct {
	t    *testing.T
	stop context.CancelFunc
	done sync.WaitGroup
	made atomic.Int64 // to the port that is open
}

func beginTraffic(ctx context.Context, t *testing.T, open, shut int) *steadyTraffic {
	ctx, stop := context.WithCancel(ctx)
	w := &steadyTraffic{t: t, stop: stop}
	t.Cleanup(w.end)
	w.done.Go(func() {
		last := time.Now()
		for ctx.Err() == nil {
			c, err := dialTCP(t, "10.9.0.2", open, time.Minute)
			// A busy machine, too, makes gaps; a SYN that is sent again was lost.
			if gap := time.Since(last); err != nil || gap > time.Second && retransmitted(t, c) > 0 {
				t.Errorf("at %s no connection for %v; %v", time.Now().Format("05.000"), gap, err)
			}
			last = time.Now()
			if err == nil {
				w.made.Add(1)
				reset(c)
			}
			time.Sleep(5 * time.Millisecond)
		}
	})
	w.done.Go(func() {
		for ctx.Err() == nil {
			if c, err := dialTCP(t, "10.9.0.2", shut, 50*time.Millisecond); err == nil {
				t.Errorf("at %s a connection to the blocked port from %v", time.Now().Format("05.000"), c.LocalAddr())
				reset(c)
			}
		}
	})
	w.done.Go(func() {
		for ctx.Err() == nil {
			if v, why := w.verify(ctx); v == onpath.VerdictRefuted && ctx.Err() == nil {
				t.Errorf("at %s verify says %s: %s", time.Now().Format("05.000"), v, why)
			}
			time.Sleep(100 * time.Millisecond)
		}
	})
	return w
}

func reset(c *net.TCPConn) {
	_ = c.SetLinger(0)
	_ = c.Close()
}

// settle waits for a hundred connections more.
func (w *steadyTraffic) settle(ctx context.Context) {
	for n := w.made.Load() + 100; w.made.Load() < n && ctx.Err() == nil; {
		time.Sleep(10 * time.Millisecond)
	}
}

func (w *steadyTraffic) end() {
	w.stop()
	w.done.Wait()
}

// verify is what is proved of the chain, and all that was said.
func (w *steadyTraffic) verify(ctx context.Context) (onpath.Verdict, string) {
	out, _ := testbed.Onpath(ctx, "verify", "changing", "--live", "-o", "json")
	var said onpath.Verification
	if err := json.Unmarshal(out, &said); err != nil {
		return "", fmt.Sprintf("%v: %s", err, out)
	}
	return said.Verdict, string(out)
}

// unknownVports counts packets that came through the tunnel for a vport that its node has
// not.
func unknownVports(ctx context.Context, t *testing.T) (n uint64) {
	t.Helper()
	for _, node := range []string{"gw1", "n1", "n2", "n3"} {
		for _, v := range countersOf(ctx, t, api(t), node).Vports {
			n += v.Dropped[onpath.DropUnknownVport]
		}
	}
	return n
}
