package relay

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/accel"
	"github.com/onpath/onpath/internal/netnsrun"
	"github.com/onpath/onpath/runtime/runtimetest"
)

// TestMain is also the relays' process, as the driver calls it: relay --socket FILE.
func TestMain(m *testing.M) {
	if len(os.Args) == 4 && os.Args[1] == "relay" {
		_ = os.Remove(os.Args[3]) // as the program does: an ended process cannot
		l, err := net.Listen("unix", os.Args[3])
		if err == nil && os.Getenv(formerVersion) != "" {
			serveFormer(l)
		}
		var pins string
		if err == nil {
			pins, err = accel.MakePins(os.Args[3])
		}
		if err == nil && !raced {
			err = accel.Confine(pins)
		}
		if err == nil {
			err = accel.NewHost(slog.New(slog.NewTextHandler(os.Stderr, nil)), pins).Run(l)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// namespace is an instance's, with its device.
func namespace(t *testing.T) string {
	t.Helper()
	ns := filepath.Join(t.TempDir(), "ns")
	if err := netnsrun.Create(ns); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = netnsrun.Remove(ns) })
	err := netnsrun.Do(ns, func() error {
		a := netlink.NewLinkAttrs()
		a.Name = Device
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: a, PeerName: "peer"}); err != nil {
			return err
		}
		for _, name := range []string{"lo", Device} {
			l, err := netlink.LinkByName(name)
			if err == nil {
				err = netlink.LinkSetUp(l)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return ns
}

// freePort is one at which nobody listens now.
func freePort(t *testing.T) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).AddrPort()
}

func subject(t *testing.T) runtimetest.Subject {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	dir, port := filepath.Join(t.TempDir(), "relay"), freePort(t)
	return runtimetest.Subject{
		Open: func(t *testing.T) onpath.Runtime {
			d, err := New(Options{Dir: dir, Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
			if err != nil {
				t.Fatal(err)
			}
			return d
		},
		Spec: func([]string) onpath.FunctionSpec {
			return onpath.FunctionSpec{}.WithWork(&onpath.RelayWork{Listen: port, Secret: "a secret of the test's own, long"})
		},
		Command: func(runtimetest.Program) []string { return nil },
		NetNS:   namespace,
		Kill: func(t *testing.T, p onpath.Process) {
			if err := syscall.Kill(p.Pid(), syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
		},
		NoExec: true, Noticed: 2 * time.Second, Shared: true,
	}
}

func TestExam(t *testing.T) { runtimetest.Run(t, subject(t)) }

// TestAdopt: instances outlive the agent; the next one finds them, those too whose process
// has ended meanwhile, and lets go of all.
func TestAdopt(t *testing.T) {
	s := subject(t)
	rt := s.Open(t)
	t.Cleanup(func() {
		if err := rt.Remove(context.Background()); err != nil {
			t.Error(err)
		}
	})
	instance := ""
	for _, id := range []string{"one", "two"} {
		instance = namespace(t)
		r := onpath.RunSpec{ID: id, Labels: map[string]string{TenantLabel: id}, Spec: s.Spec(nil), NetNS: instance}
		p, err := rt.Start(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.(onpath.Relaying).Relayed(t.Context()); err != nil {
			t.Error(err)
		}
	}
	again := func() map[string]onpath.Process {
		if err := rt.Close(); err != nil {
			t.Fatal(err)
		}
		rt = s.Open(t)
		all, err := rt.Adopt(t.Context())
		if err != nil || len(all) != 2 {
			t.Fatalf("%d instances are found, %v", len(all), err)
		}
		return all
	}
	all := again()
	if p := all["one"]; p.Pid() == 0 || p.Pid() != all["two"].Pid() || p.Labels()[TenantLabel] != "one" {
		t.Errorf("adopted pid %d with labels %v; the other has pid %d", p.Pid(), p.Labels(), all["two"].Pid())
	}
	if p := all["two"].(onpath.Attached); !p.AttachedTo(instance) || p.AttachedTo("/proc/self/ns/net") {
		t.Error("an adopted relay does not know its network namespace, and would be started anew")
	}
	s.Kill(t, all["one"])
	all = again()
	for id, p := range all {
		select {
		case <-p.Exited():
		case <-time.After(time.Minute):
			t.Errorf("the end of %s goes unnoticed", id)
		}
		if err := p.Stop(t.Context(), time.Second); err != nil {
			t.Error(err)
		}
	}
	if all, err := rt.Adopt(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("stopped instances are still found: %v, %v", all, err)
	}
}
