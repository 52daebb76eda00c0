package control_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/store/mem"
)

// waits gives the reason for which a node waits, "" if it does not.
func (s *site) waits(name string) (reason, message string) {
	for _, c := range s.node(name).Status.Conditions {
		if c.Type == onpath.ConditionAccepted && c.Status == onpath.False {
			return c.Reason, c.Message
		}
	}
	return "", ""
}

// restartEmpty has the server start again with an empty store, and all nodes come back.
func (s *site) restartEmpty() {
	s.stop()
	s.store = mem.New(mem.Options{})
	s.start()
	for _, n := range s.nodes {
		n.connect()
	}
}

// TestEmptiedStore: a server whose store was lost takes nothing away from its nodes
// before the operator says so.
func TestEmptiedStore(t *testing.T) {
	s := threeNodes(t)
	s.apply(web(2))
	s.until("active", s.active)
	var pushes int
	count := func() (n int) {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, f := range s.nodes {
			n += f.pushes
		}
		return n
	}
	pushes = count()
	s.restartEmpty()
	for _, name := range []string{"gw", "n1", "n2"} {
		s.until(name+" waits", func() bool { reason, _ := s.waits(name); return reason == onpath.ReasonForeignPlan })
		if _, m := s.waits(name); !strings.Contains(m, "onpath node accept "+name) {
			t.Errorf("node %s: %s", name, m)
		}
	}
	s.lead(40 * time.Second) // longer than any grace
	time.Sleep(50 * time.Millisecond)
	if n := count(); n != pushes {
		t.Errorf("%d plans were pushed to nodes that nobody accepted", n-pushes)
	}
	s.stop() // a server that starts again asks again
	s.start()
	for _, n := range s.nodes {
		n.connect()
	}
	s.lead(10 * time.Second)
	if n := count(); n != pushes {
		t.Errorf("%d plans were pushed after another start", n-pushes)
	}
	s.apply(function("fw"))
	for _, name := range []string{"gw", "n1", "n2"} {
		if err := s.c.AcceptNode(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	s.apply(web(1))
	s.until("active again", s.active)
	s.lead(30 * time.Second)
	s.until("what was there before is gone", func() bool { return len(s.instances()) == 1 && s.running() == 1 })
	s.stop() // and asks no more
	s.start()
	for _, n := range s.nodes {
		n.connect()
	}
	s.lead(5 * time.Second)
	for _, name := range []string{"gw", "n1", "n2"} {
		if reason, m := s.waits(name); reason != "" {
			t.Errorf("%s waits again: %s", name, m)
		}
	}
}

// running is the number of instances in the nodes' plans.
func (s *site) running() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.nodes {
		if f.plan != nil {
			n += len(f.plan.Instances)
		}
	}
	return n
}

// TestGrants: a node gets the cloudlet and the uplinks that its token is for; one that
// asks for more waits, until the operator accepts it.
func TestGrants(t *testing.T) {
	s := threeNodes(t)
	uplink := []onpath.Uplink{{Name: "core", Device: "eth0", Attach: onpath.AttachRouter}}
	for i, c := range []struct {
		name  string
		grant *onpath.NodeGrant
		spec  onpath.NodeSpec
		waits bool
	}{
		{"plain", &onpath.NodeGrant{Cloudlet: "ams1"}, onpath.NodeSpec{}, false},
		{"same", &onpath.NodeGrant{Cloudlet: "ams1"}, onpath.NodeSpec{Cloudlet: "ams1"}, false},
		{"else", &onpath.NodeGrant{Cloudlet: "ams1"}, onpath.NodeSpec{Cloudlet: "fra1"}, true},
		{"gate", &onpath.NodeGrant{Cloudlet: "ams2"}, onpath.NodeSpec{Uplinks: uplink}, true},
		{"gate1", &onpath.NodeGrant{Cloudlet: "ams3", Uplinks: []string{"eth1"}}, onpath.NodeSpec{Uplinks: uplink}, true},
		{"gate2", &onpath.NodeGrant{Cloudlet: "ams4", Uplinks: []string{"eth1", "eth0"}}, onpath.NodeSpec{Uplinks: uplink}, false},
		{"gate3", &onpath.NodeGrant{Cloudlet: "ams5", Uplinks: []string{onpath.AnyUplink}}, onpath.NodeSpec{Uplinks: uplink}, false},
	} {
		n := s.nodes["n1"].spec
		c.spec.Underlay = n.Underlay
		c.spec.Underlay.Address = c.spec.Underlay.Address.Next().Next()
		for range i {
			c.spec.Underlay.Address = c.spec.Underlay.Address.Next()
		}
		s.mu.Lock()
		s.nodes[c.name] = &fakeNode{s: s, name: c.name, spec: c.spec, started: time.Now()}
		s.mu.Unlock()
		s.c.NodeConnected(onpath.NodeHello{Node: c.name, Spec: c.spec, Grant: c.grant, Report: onpath.NodeReport{Node: c.name}})
		s.until(c.name+" is there", func() bool { return s.node(c.name).Metadata.Name != "" })
		reason, message := s.waits(c.name)
		if (reason == onpath.ReasonNotGranted) != c.waits || !c.waits && reason != "" {
			t.Errorf("%s: %q %s", c.name, reason, message)
		}
		s.mu.Lock()
		given := s.nodes[c.name].pushes
		s.mu.Unlock()
		if c.waits && given > 0 {
			t.Errorf("%s got a plan", c.name)
		}
	}
	if got := s.node("plain").Spec.Cloudlet; got != "ams1" {
		t.Errorf("without a word of its own a node is in cloudlet %q", got)
	}
	list, _, err := s.store.List(context.Background(), onpath.KindCloudlet, "")
	if err != nil || slices.ContainsFunc(list, func(o onpath.Object) bool { return o.Meta().Name == "ams2" }) {
		t.Errorf("a node that waits made its cloudlet: %v", err)
	}
	if err := s.c.AcceptNode(t.Context(), "gate"); err != nil {
		t.Fatal(err)
	}
	s.until("it is taken up", func() bool {
		reason, _ := s.waits("gate")
		return reason == "" && s.node("gate").Status.Edge != 0
	})
	s.apply(object[*onpath.Cloudlet](onpath.KindCloudlet, "", "ams3"))
	changed := onpath.Clone(s.node("gate1")) // the operator writes another spec: that is the operator's word
	changed.Spec.Uplinks = nil
	changed.Status = s.node("gate1").Status
	s.write([]onpath.Change{{Key: onpath.KeyOf(changed), Object: changed, Version: onpath.AnyVersion}})
	s.until("it is taken up, too", func() bool { reason, _ := s.waits("gate1"); return reason == "" })
}
