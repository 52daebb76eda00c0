package node_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/onpath/onpath"
)

func (b *fixture) mtu(device string, bytes int) {
	b.t.Helper()
	h := b.netlink(b.host)
	defer h.Close()
	l, err := h.LinkByName(device)
	must(b.t, err)
	must(b.t, h.LinkSetMTU(l, bytes))
}

// addressed reports whether the instance has the address.
func (b *fixture) addressed(name, address string) bool {
	b.t.Helper()
	h := b.netlink(b.nsOf(name))
	defer h.Close()
	l, err := h.LinkByName("eth0")
	must(b.t, err)
	all, err := h.AddrList(l, netlink.FAMILY_ALL)
	must(b.t, err)
	return slices.ContainsFunc(all, func(a netlink.Addr) bool { return a.IPNet.String() == address })
}

func (s *server) tellsOf(reason string) (n int) {
	for _, r := range s.reasons() {
		if r == reason {
			n++
		}
	}
	return n
}

// TestRewiringFails: an instance that serves goes on serving while a change of its
// wiring fails, which is tried again until it works and told once.
func TestRewiringFails(t *testing.T) {
	b := newFixture(t)
	r := b.run()
	r.plan(planOf(1, routed("web", 16, "10.9.0.5/24")))
	r.untilState("web", onpath.InstanceReady)
	b.until("acknowledged", func() bool { return r.server.last().Plan == 1 })
	before := len(b.recorder.all())
	b.mtu("op000010", 1000) // takes IPv6 and its settings from the device
	r.plan(planOf(2, routed("web", 16, "10.9.0.6/24")))
	b.until("the failure is told", func() bool {
		got, _ := r.server.instance("web")
		return r.server.tellsOf("WiringFailed") == 1 && strings.Contains(got.Message, "net.ipv6.conf.op000010")
	})
	b.until("plan 2 is acknowledged", func() bool { return r.server.last().Plan == 2 })
	b.mtu("op000010", 1400)
	b.until("it works at last", func() bool {
		got, _ := r.server.instance("web")
		return got.Message == "" && b.addressed("web", "10.9.0.6/24")
	})
	if n := r.server.tellsOf("WiringFailed"); n != 1 {
		t.Errorf("the failure was told %d times", n)
	}
	for _, l := range b.recorder.all()[before:] {
		if l != "apply 2 [16:up]" {
			t.Errorf("the agent did %q", l)
		}
	}
}

// TestRewiringAfterTheEnd: what could not be wired is tried again for the process that
// comes after the one that ended meanwhile.
func TestRewiringAfterTheEnd(t *testing.T) {
	b := newFixture(t)
	r := b.run()
	r.plan(planOf(1, routed("web", 16, "10.9.0.5/24")))
	r.untilState("web", onpath.InstanceReady)
	b.mtu("op000010", 1000)
	r.plan(planOf(2, routed("web", 16, "10.9.0.6/24")))
	b.until("the failure is told", func() bool { return r.server.tellsOf("WiringFailed") == 1 })
	before := len(b.recorder.all())
	b.machine.Kill(b.id("web"), 1)
	b.until("it has ended, and runs again", func() bool {
		return r.server.tellsOf("Exited") == 1 && slices.Contains(b.recorder.all()[before:], "start web") && len(b.machine.Running()) == 1
	})
	r.untilState("web", onpath.InstanceReady)
	b.mtu("op000010", 1400)
	b.until("it works at last", func() bool {
		got, _ := r.server.instance("web")
		return got.Message == "" && b.addressed("web", "10.9.0.6/24")
	})
}

// TestRewiringFailsAtStart: also if it is an agent's first attempt, of an instance
// that it found serving.
func TestRewiringFailsAtStart(t *testing.T) {
	b := newFixture(t)
	r := b.run()
	r.plan(planOf(1, routed("web", 16, "10.9.0.5/24")))
	r.untilState("web", onpath.InstanceReady)
	b.until("acknowledged", func() bool { return r.server.last().Plan == 1 })
	r.stop()
	saved := fmt.Sprintf(`{"node":%q,"wanted":%s,"acked":true}`, nodeName, mustJSON(t, planOf(2, routed("web", 16, "10.9.0.6/24"))))
	must(t, os.WriteFile(filepath.Join(b.dir, "plan.json"), []byte(saved), 0o600))
	b.mtu("op000010", 1000)
	before := len(b.recorder.all())
	r = b.run()
	b.until("it is ready, and says what fails", func() bool {
		got, _ := r.server.instance("web")
		return got.State == onpath.InstanceReady && strings.Contains(got.Message, "net.ipv6.conf.op000010")
	})
	b.mtu("op000010", 1400)
	b.until("it works at last", func() bool {
		got, _ := r.server.instance("web")
		return got.Message == "" && b.addressed("web", "10.9.0.6/24")
	})
	for _, l := range b.recorder.all()[before:] {
		if l != "apply 2 [16:up]" {
			t.Errorf("the agent did %q", l)
		}
	}
}

// TestRewiringWithoutIPv6: a function may turn IPv6 off, and its instances get
// other addresses all the same.
func TestRewiringWithoutIPv6(t *testing.T) {
	b := newFixture(t)
	r := b.run()
	in := routed("web", 16, "10.9.0.5/24", "fd00::5/64")
	in.Spec.Container.Sysctls = map[string]string{"net.ipv6.conf.all.disable_ipv6": "1"}
	r.plan(planOf(1, in))
	r.untilState("web", onpath.InstanceReady)
	other := routed("web", 16, "10.9.0.6/24", "fd00::6/64")
	other.Spec = in.Spec
	r.plan(planOf(2, other))
	b.until("it has the other address", func() bool { return b.addressed("web", "10.9.0.6/24") })
	b.until("plan 2 is acknowledged", func() bool { return r.server.last().Plan == 2 })
	b.until("its namespace is done", func() bool { got, _ := r.server.instance("web"); return got.Wired && got.Message == "" })
	if n := r.server.tellsOf("WiringFailed"); n != 0 {
		t.Errorf("wiring failed: %v", r.server.told())
	}
	if b.addressed("web", "fd00::6/64") {
		t.Error("it has an IPv6 address")
	}
}
