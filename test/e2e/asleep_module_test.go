package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/onpath/onpath"
)

// TestAsleepModule: a sleeping module is woken by datagrams, none of which is lost or
// overtaken.
func TestAsleepModule(t *testing.T) {
	ctx := need(t, 2*time.Minute)
	port := udpEcho(t, "10.9.0.2")
	deployment := `---
apiVersion: onpath/v1alpha1
kind: Deployment
metadata: {name: modules}
spec: {function: modules, place: {cloudlets: [pop]}, drain: 1s, onDemand: {stopAfter: 1s}}
---
apiVersion: onpath/v1alpha1
kind: Chain`
	text := strings.Replace(moduleChain, "MODULES", moduleOf(modules(t), "null", ""), 1)
	text = strings.Replace(text, "---\napiVersion: onpath/v1alpha1\nkind: Chain", deployment, 1)
	apply(ctx, t, strings.Replace(text, "{function: modules, none: bypass, drain: 1s}", "{deployment: modules}", 1))
	active(ctx, t, "modules")
	if err := testbed.WaitFor(ctx, "the instance sleeps", time.Minute, func() (bool, error) {
		all, err := testbed.Instances(ctx)
		return len(all) == 1 && all[0].Status.Reason == onpath.ReasonAsleep, err
	}); err != nil {
		t.Fatal(err)
	}
	u := dialUDP(t, "10.9.0.2", port)
	defer u.Close()
	inOrder(t, u, 200, time.Millisecond)
}
