package await_test

import (
	"strings"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/cli/await"
)

// TestVain: what stays as it is until somebody acts is waited for as long as that may still
// change, and what may come by itself to the end.
func TestVain(t *testing.T) {
	start := time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)
	one := 1
	of := func(conditions ...onpath.Condition) *onpath.Chain {
		c := &onpath.Chain{Metadata: onpath.Metadata{Name: "web", Generation: 2}, Spec: onpath.ChainSpec{Through: []onpath.Element{{Function: "fw", Instances: &one}}}}
		c.Status = onpath.ChainStatus{Observed: 2, Elements: []onpath.ElementStatus{{Deployment: "web-fw", Desired: 1}}, Conditions: conditions}
		return c
	}
	no := func(typ, reason string) onpath.Condition {
		return onpath.Condition{Type: typ, Status: onpath.False, Reason: reason, Message: "it is so"}
	}
	reserved := func(after time.Duration) onpath.Condition {
		c := no("Active", onpath.ReasonNotReserved)
		c.Until = start.Add(after)
		return c
	}
	old := of(no("Current", onpath.ReasonConfigRefused))
	old.Status.Observed = 1
	disabled := of(no("Placed", onpath.ReasonUnplaceable))
	disabled.Spec.Disabled, disabled.Status.Active = true, true
	never := time.Duration(-1)
	for _, c := range []struct {
		name   string
		o      onpath.Object
		ends   time.Duration // when the wait ends in vain
		reason string
	}{
		{"no node can run it", of(no("Placed", onpath.ReasonUnplaceable)), await.Settles, onpath.ReasonUnplaceable},
		{"no node has room now", of(no("Placed", "NoCapacity")), never, ""},
		{"there is no such image", of(no("Ready", onpath.ReasonImageMissing)), await.Settles, onpath.ReasonImageMissing},
		{"it ends again and again", of(no("Ready", "NotReady")), never, ""},
		{"gateways wait for the operator", of(no("Active", onpath.ReasonNotAccepted)), await.Settles, onpath.ReasonNotAccepted},
		{"there is no gateway", of(no("Active", onpath.ReasonNoGateway)), await.Settles, onpath.ReasonNoGateway},
		{"a reservation begins in time", of(reserved(24 * time.Second)), never, ""},
		{"a reservation begins later", of(reserved(time.Hour)), 0, onpath.ReasonNotReserved},
		{"a reservation has ended", of(no("Active", onpath.ReasonNotReserved)), await.Settles, onpath.ReasonNotReserved},
		{"its configuration is refused", of(no("Current", onpath.ReasonConfigRefused)), 0, onpath.ReasonConfigRefused},
		{"the one from before was refused", old, never, ""},
		{"it leaves the path", disabled, never, ""},
		{"a deployment that no node can run", &onpath.Deployment{Spec: onpath.DeploymentSpec{Instances: &one}, Status: onpath.DeploymentStatus{Desired: 1,
			Conditions: []onpath.Condition{no("Ready", onpath.ReasonUnplaceable)}}}, await.Settles, onpath.ReasonUnplaceable},
		{"a service without a gateway", &onpath.Service{Status: onpath.ServiceStatus{Conditions: []onpath.Condition{no("Active", onpath.ReasonNoGateway)}}},
			await.Settles, onpath.ReasonNoGateway},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := await.Wait{Ends: start.Add(time.Minute)}
			ended, reason := never, ""
			for at := time.Duration(0); at <= 20*time.Second; at += time.Second {
				if s := w.Look(c.o, start.Add(at)); s.Vain != nil {
					ended, reason = at, s.Vain.Reason
					if s.Vain.Remedy == "" {
						t.Error("no remedy is named")
					}
					break
				}
			}
			if ended != c.ends || reason != c.reason {
				t.Errorf("the wait ends after %s (%s), want %s (%s)", ended, reason, c.ends, c.reason)
			}
		})
	}
}

// TestVainMends: a wait begins anew for what has got better in between, or is otherwise now;
// until a reservation begins it says how long that takes.
func TestVainMends(t *testing.T) {
	start := time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)
	c := &onpath.Chain{Metadata: onpath.Metadata{Name: "web"}, Spec: onpath.ChainSpec{Through: []onpath.Element{{Function: "fw"}}}}
	w := await.Wait{Ends: start.Add(time.Minute)}
	look := func(at time.Duration, reason string, until time.Time) await.Standing {
		c.Status.Conditions = []onpath.Condition{{Type: "Active", Status: onpath.False, Reason: reason, Message: "it waits", Until: until}}
		return w.Look(c, start.Add(at))
	}
	for i, reason := range []string{onpath.ReasonNoGateway, onpath.ReasonNotAccepted, "Waiting", onpath.ReasonNotAccepted} {
		if s := look(time.Duration(i)*(await.Settles-time.Second), reason, time.Time{}); s.Vain != nil {
			t.Fatalf("look %d: %+v", i, s.Vain)
		}
	}
	if s := look(4*await.Settles, onpath.ReasonNotAccepted, time.Time{}); s.Vain == nil {
		t.Error("it is waited for what nobody accepts")
	}
	if s := look(0, onpath.ReasonNotReserved, start.Add(24500*time.Millisecond)); !strings.HasSuffix(s.Text, "it waits (in 24s)") || s.Vain != nil {
		t.Errorf("before the reservation: %+v", s)
	}
}
