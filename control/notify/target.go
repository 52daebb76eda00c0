package notify

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"syscall"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/publicaddr"
)

// targets decides where webhooks may lead.
type targets struct {
	allowed  []netip.Prefix
	underlay func(context.Context) ([]netip.Addr, error)
	own      func() ([]net.Addr, error)
}

// check looks at an address that is about to be dialled, after all names are resolved: a
// name that changes its address does not help.
func (t *targets) check(ctx context.Context, a netip.Addr) error {
	if a = a.Unmap().WithZone(""); publicaddr.In(t.allowed, a) {
		return nil
	}
	no := onpath.Errorf(onpath.CodeForbidden, "webhooks may not lead to %s", a)
	no.Remedy = "ask an operator to allow it (server.webhookTargets)"
	if !publicaddr.Is(a) {
		return no
	}
	own, err := t.own()
	if err != nil {
		return fmt.Errorf("the server's own addresses are not known: %w", err)
	}
	for _, o := range own {
		if p, err := netip.ParsePrefix(o.String()); err != nil || p.Addr().Unmap() == a {
			return no
		}
	}
	underlay, err := t.underlay(ctx)
	if err != nil {
		return fmt.Errorf("the underlay's addresses are not known: %w", err)
	}
	if slices.Contains(underlay, a) {
		return no
	}
	return nil
}

// dialler connects to where webhooks may lead.
func (t *targets) dialler() *net.Dialer {
	return &net.Dialer{ControlContext: func(ctx context.Context, _, address string, _ syscall.RawConn) error {
		a, err := netip.ParseAddrPort(address)
		if err != nil {
			return err
		}
		return t.check(ctx, a.Addr())
	}}
}
