package e2e

import (
	"strings"
	"testing"
	"time"
)

const alertYAML = `apiVersion: onpath/v1alpha1
kind: Function
metadata: {name: teller}
spec:
  container:
    image: host
    command: [sh, -c, "trap 'exit 0' TERM; while :; do sleep 1000 & wait; done"]
---
apiVersion: onpath/v1alpha1
kind: Deployment
metadata: {name: teller}
spec: {function: teller, drain: 1s, place: {cloudlets: [pop]}}
---
apiVersion: onpath/v1alpha1
kind: Function
metadata: {name: guard, tenant: operator}
spec:
  state: none
  ebpf: {object: ratelimit, config: {rate: 1 packets, per: source}}
  alerts: [{from: default/teller, for: 2s}]
---
apiVersion: onpath/v1alpha1
kind: Chain
metadata: {name: guard, tenant: operator}
spec:
  from: any
  to: {prefixes: [10.9.0.2/32, "fd09::2/128"]}
  through: [{function: guard, none: bypass, drain: 1s}]
`

// TestAlertLimits: an alert limits its source within two seconds, for as long as the operator's
// rule says, and the operator's log has it.
func TestAlertLimits(t *testing.T) {
	ctx := need(t, time.Minute)
	apply(ctx, t, alertYAML)
	err := testbed.WaitFor(ctx, "the chain is active, and an instance may tell", 30*time.Second, func() (bool, error) {
		_, err := testbed.InstanceOf(ctx, "teller")
		out, get := testbed.Onpath(ctx, "get", "chain", "guard", "--tenant", "operator", "-o", "json")
		return err == nil && strings.Contains(string(out), `"active": true`), get
	})
	if err != nil {
		t.Fatal(err)
	}
	limited := func() bool { // of a burst of 20 packets 10 pass
		out, _ := testbed.Exec(ctx, "client", "ping", "-q", "-c20", "-i0.01", "-W1", "10.9.0.2")
		return !strings.Contains(string(out), " 0% packet loss")
	}
	if limited() {
		t.Fatal("who has done nothing is limited")
	}
	teller, err := testbed.InstanceOf(ctx, "teller")
	if err != nil {
		t.Fatal(err)
	}
	tell := `curl -sf -d '{"level":"critical","title":"a scan","fields":{"src_ip":"10.1.0.2"}}' $ONPATH_NOTIFY/notify`
	if out, err := testbed.Onpath(ctx, "exec", teller, "--", "sh", "-c", tell); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	told := time.Now()
	if err := testbed.WaitFor(ctx, "its source is limited", 2*time.Second, func() (bool, error) { return limited(), nil }); err != nil {
		t.Fatal(err)
	}
	t.Logf("limited after %s", time.Since(told).Round(10*time.Millisecond))
	if err := testbed.WaitFor(ctx, "the limit ends", 15*time.Second, func() (bool, error) { return !limited(), nil }); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(told); took < 1500*time.Millisecond {
		t.Errorf("the limit of 2 s ended after %s", took)
	}
	log, err := testbed.Onpath(ctx, "audit", "-o", "json")
	if err != nil || !strings.Contains(string(log), "limits 10.1.0.2 until") || !strings.Contains(string(log), "no longer limits 10.1.0.2") {
		t.Errorf("the log has not whom the alert limited: %v\n%s", err, tail(string(log), 20))
	}
}
