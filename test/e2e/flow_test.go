package e2e

import (
	"context"
	"net"
	"net/netip"
	"testing"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/client"
	"github.com/onpath/onpath/api/wire"
	"github.com/onpath/onpath/internal/netnsrun"
)

func doIn(path string, fn func() error) error { return netnsrun.Do(path, fn) }

// tupleOf is the forward tuple of a socket of the client.
func tupleOf(c net.Conn, protocol uint8) onpath.Tuple {
	local, remote := addrPort(c.LocalAddr()), addrPort(c.RemoteAddr())
	return onpath.Tuple{Protocol: protocol, Src: local.Addr(), Dst: remote.Addr(), SrcPort: local.Port(), DstPort: remote.Port()}
}

func addrPort(a net.Addr) (p netip.AddrPort) {
	switch a := a.(type) {
	case *net.UDPAddr:
		p = a.AddrPort()
	case *net.TCPAddr:
		p = a.AddrPort()
	}
	return netip.AddrPortFrom(p.Addr().Unmap(), p.Port())
}

// nextOf is the vport to which the gateway sends a flow of the client.
func nextOf(ctx context.Context, t *testing.T, tuple onpath.Tuple) (next onpath.VportID) {
	t.Helper()
	err := api(t).Flows(ctx, client.FlowsOf{Node: "gw1", Tuple: &tuple}, func(f wire.Flow) bool {
		if f.Entry.Tuple == tuple && f.Entry.Kind == onpath.NextVport {
			next = f.Entry.Next
		}
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	if next == 0 {
		t.Fatalf("the gateway has no entry for %+v", tuple)
	}
	return next
}
