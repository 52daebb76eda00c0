package attach

import (
	"slices"
	"strings"
	"testing"

	"github.com/onpath/onpath"
)

// TestAttach: functions come one behind the other, each by its own policy, and go again.
func TestAttach(t *testing.T) {
	c, err := Chain(Request{Node: "vm1", Through: []string{"firewall"}}, nil)
	if err != nil || c.Validate() != nil {
		t.Fatal(err, c.Validate())
	}
	if c, err = Chain(Request{Node: "vm1", Through: []string{"ids"}, Ports: []string{"tcp/80", "udp/5000-5009", "icmp"}, Copy: true}, c); err != nil {
		t.Fatal(err)
	}
	if got := Attached(c); !slices.Equal(got, []string{"firewall", "ids"}) {
		t.Fatalf("attached are %v", got)
	}
	ids := c.Spec.Through[1]
	if ids.Mode != onpath.ModeMirror || len(ids.Select) != 5 || c.Spec.Through[0].Select != nil {
		t.Errorf("%+v", c.Spec.Through)
	}
	if err := c.Validate(); err != nil {
		t.Error(err)
	}
	again, err := Chain(Request{Node: "vm1", Through: []string{"ids"}}, c)
	if err != nil || len(again.Spec.Through) != 2 || again.Spec.Through[1].Mode == onpath.ModeMirror {
		t.Errorf("attached anew: %v %+v", err, again)
	}
	if c, err = Without(c, []string{"firewall"}); err != nil || !slices.Equal(Attached(c), []string{"ids"}) {
		t.Errorf("%v %+v", err, c)
	}
	if _, err := Without(c, []string{"firewall"}); err == nil || !strings.Contains(err.Error(), "firewall") {
		t.Errorf("detached twice: %v", err)
	}
	if c, err := Without(c, []string{"ids"}); err != nil || c != nil {
		t.Errorf("without its last function: %v %+v", err, c)
	}
}

// TestWrongPorts: what says no ports is refused, and named.
func TestWrongPorts(t *testing.T) {
	for _, text := range []string{"80", "tcp", "tcp/", "tcp/0", "tcp/70000", "sctp/80", "icmp/8", "/", "tcp/9-1"} {
		if _, err := Chain(Request{Node: "vm1", Through: []string{"f"}, Ports: []string{text}}, nil); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
}

// TestCheck: only a machine whose uplinks are its own can have functions attached.
func TestCheck(t *testing.T) {
	n := &onpath.Node{Metadata: onpath.Metadata{Name: "vm1"}}
	if Check(n) == nil {
		t.Error("without an uplink")
	}
	n.Spec.Uplinks = []onpath.Uplink{{Name: "own", Device: "eth0", Attach: onpath.AttachHost}}
	if err := Check(n); err != nil {
		t.Error(err)
	}
	n.Spec.Uplinks = append(n.Spec.Uplinks, onpath.Uplink{Name: "core", Device: "eth1", Attach: onpath.AttachRouter})
	if Check(n) == nil {
		t.Error("a gateway")
	}
}
