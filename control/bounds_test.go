package control_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/control"
	"github.com/onpath/onpath/store/mem"
)

// refusingStore refuses every write about one key, as a store does in which an object
// has no room.
type refusingStore struct {
	onpath.Store
	refuse func(onpath.Change) bool
}

func (s *refusingStore) Write(ctx context.Context, b onpath.Batch) (onpath.Written, error) {
	for _, c := range b.Changes {
		if c.Object != nil && s.refuse(c) {
			return onpath.Written{}, onpath.Errorf(onpath.CodeInvalid, "%s is too large", c.Key)
		}
	}
	return s.Store.Write(ctx, b)
}

// TestOneObjectStopsNobody: what is decided about an object that the store does not
// take is set aside and told; all others go on, and no ids are used up by it.
func TestOneObjectStopsNobody(t *testing.T) {
	store := &refusingStore{Store: mem.New(mem.Options{})}
	var limit atomic.Bool
	limit.Store(true)
	store.refuse = func(c onpath.Change) bool {
		chain, ok := c.Object.(*onpath.Chain)
		return limit.Load() && ok && chain.Metadata.Name == "huge" && chain.Status.Path != 0
	}
	s := &site{t: t, store: store, nodes: map[string]*fakeNode{}}
	s.start()
	s.join("gw", "fra1", 1, true)
	s.join("n1", "fra1", 2, false)
	s.apply(function("fw"))
	huge := web(1)
	huge.Metadata.Name = "huge"
	huge.Spec.Priority = 7
	s.apply(huge)
	s.until("the offender is told", func() bool { return s.hasEvent("SetAside") })
	s.apply(web(1))
	s.until("the other chain is active", s.active)
	if err := s.c.Ready(context.Background()); err != nil {
		t.Errorf("the server is not ready: %v", err)
	}
	before, _ := s.store.NextIDs(context.Background(), "path", 0, 1)
	time.Sleep(time.Second)
	if after, _ := s.store.NextIDs(context.Background(), "path", 0, 1); after > before+1 {
		t.Errorf("%d path ids were used up meanwhile", after-before-1)
	}
	marked := func() bool {
		return slices.ContainsFunc(s.chain("huge").Status.Conditions, func(c onpath.Condition) bool { return c.Type == "Stored" && c.Status == onpath.False })
	}
	if !marked() {
		t.Errorf("no condition says so: %+v", s.chain("huge").Status.Conditions)
	}
	limit.Store(false)
	smaller := onpath.Clone(s.chain("huge"))
	smaller.Spec.Priority = 8
	s.apply(smaller)
	s.until("it is smaller, and goes on", func() bool { return s.chain("huge").Status.Active && !marked() })
}

// TestLongTexts: a node's words are shortened before they are stored.
func TestLongTexts(t *testing.T) {
	s := threeNodes(t)
	s.apply(function("fw"))
	s.apply(web(1))
	s.until("active", s.active)
	s.mu.Lock()
	for _, n := range s.nodes {
		n.failed["web-fw"] = strings.Repeat("é", 40<<10)
	}
	s.mu.Unlock()
	for _, name := range []string{"n1", "n2"} {
		s.nodes[name].report()
	}
	longest := 0
	s.until("it is told", func() bool {
		for _, i := range s.instances() {
			longest = max(longest, len(i.Status.Message))
		}
		return longest > 0
	})
	if longest > onpath.MaxText {
		t.Errorf("a message of %d bytes is stored", longest)
	}
}

// TestIDsRiseAboveNodes: a node holds ids that this store never gave out, since it
// was restored from a backup.
func TestIDsRiseAboveNodes(t *testing.T) {
	s := &site{t: t, store: mem.New(mem.Options{}), nodes: map[string]*fakeNode{}}
	s.start()
	gw := s.join("gw", "fra1", 1, true)
	s.join("n1", "fra1", 2, false)
	s.apply(function("fw"))
	s.apply(web(1))
	s.until("active", s.active)
	s.mu.Lock()
	held := *gw.plan
	held.Datapath.Paths = append(slices.Clone(held.Datapath.Paths), onpath.Path{ID: 5000, Chain: "default/gone"})
	held.Datapath.Vports = append(slices.Clone(held.Datapath.Vports), onpath.Vport{ID: 7000})
	gw.plan = &held
	s.mu.Unlock()
	gw.connect()
	mail := web(1)
	mail.Metadata.Name = "mail"
	mail.Spec.Priority = 7
	s.apply(mail)
	s.until("a path above", func() bool {
		o, err := s.store.Get(context.Background(), onpath.KeyOf(mail))
		return err == nil && o.(*onpath.Chain).Status.Path > 5000
	})
	for _, i := range s.instances() {
		if strings.HasPrefix(i.Metadata.Name, "mail") && i.Spec.Vport <= 7000 {
			t.Errorf("%s has vport %d", i.Metadata.Name, i.Spec.Vport)
		}
	}
}

// TestSecondNodeOfAnAddress: a machine with a copy of another's configuration waits,
// and does not cut that one off; when the other is gone, it is taken up.
func TestSecondNodeOfAnAddress(t *testing.T) {
	s := threeNodes(t)
	spec := s.nodes["n1"].spec
	s.c.NodeConnected(onpath.NodeHello{Node: "copy", Spec: spec, Report: onpath.NodeReport{Node: "copy"}})
	s.until("it is told", func() bool { return s.hasEvent("Waits") })
	s.until("its Node says so", func() bool { reason, _ := s.waits("copy"); return reason == onpath.ReasonRefused })
	if err := s.c.AcceptNode(t.Context(), "copy"); err == nil || !strings.Contains(err.Error(), "has 10.255.0.2 already") {
		t.Errorf("a node with another's address is accepted: %v", err)
	}
	for _, p := range s.plan("gw").Datapath.Peers {
		if p.Node == "copy" {
			t.Errorf("a node with another's address is a peer: %+v", p)
		}
	}
	s.nodes["n1"].disconnect()
	s.remove(onpath.Key{Kind: onpath.KindNode, Name: "n1"})
	s.mu.Lock()
	s.nodes["copy"] = &fakeNode{s: s, name: "copy", spec: spec, connected: true, started: time.Now()}
	s.mu.Unlock()
	s.lead(10 * time.Second)
	s.until("it is taken up", func() bool { reason, _ := s.waits("copy"); return reason == "" && s.node("copy").Status.Ready })
}

// TestEventsOfStrangers: a node tells about itself and its instances alone, and a bad
// event holds up no other.
func TestEventsOfStrangers(t *testing.T) {
	s := threeNodes(t)
	for i, about := range []string{"chain default/web/x", "chain default/web", "tenant acme", "instance default/none", "node n9"} {
		s.c.NodeEvent("n1", onpath.NodeEvent{Time: time.Now().Add(48 * time.Hour), About: about, Reason: fmt.Sprint("Odd", i), Message: strings.Repeat("x", 2<<20)})
	}
	s.until("the last is stored", func() bool { return s.hasEvent("Odd4") })
	s.until("a peer may be told of", func() bool {
		s.c.NodeEvent("n1", onpath.NodeEvent{Time: time.Now(), About: "node n2", Reason: "PeerLost"})
		list, _, err := s.store.List(context.Background(), onpath.KindEvent, "")
		return err == nil && slices.ContainsFunc(list, func(o onpath.Object) bool {
			e := o.(*onpath.Event)
			return e.Spec.Reason == "PeerLost" && e.Spec.About == "node n2"
		})
	})
	list, _, err := s.store.List(context.Background(), onpath.KindEvent, "")
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range list {
		e := o.(*onpath.Event)
		if strings.HasPrefix(e.Spec.Reason, "Odd") && (e.Spec.About != "node n1" || len(e.Spec.Message) > onpath.MaxText || e.Spec.Time.After(time.Now())) {
			t.Errorf("%s is about %s, at %s, in %d bytes", e.Spec.Reason, e.Spec.About, e.Spec.Time, len(e.Spec.Message))
		}
	}
}

// TestNodesAreForgotten: of a node that is gone and deleted nothing is kept.
func TestNodesAreForgotten(t *testing.T) {
	s := threeNodes(t)
	s.nodes["n2"].disconnect()
	k := onpath.Key{Kind: onpath.KindNode, Name: "n2"}
	if _, err := s.store.Write(t.Context(), onpath.Batch{Changes: []onpath.Change{{Key: k, Version: onpath.AnyVersion}}}); err != nil {
		t.Fatal(err)
	}
	s.until("it is forgotten", func() bool { return control.Sessions(s.c) == 2 })
}
