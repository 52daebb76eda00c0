package notify

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"syscall"

	"github.com/onpath/onpath"
)

// forbidden are addresses that lead to the server's own surroundings rather than to
// somebody on the internet (RFC 6890 and its registries), and those at which clouds tell
// machines who they are, beside link-local ones.
var forbidden = prefixes("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12",
	"192.0.0.0/24", "192.168.0.0/16", "198.18.0.0/15", "224.0.0.0/3", "168.63.129.16/32",
	"::/96", "64:ff9b::/96", "64:ff9b:1::/48", "100::/64", "2001::/23", "2002::/16", "fc00::/7", "fe80::/9", "ff00::/8")

func prefixes(texts ...string) (out []netip.Prefix) {
	for _, t := range texts {
		out = append(out, netip.MustParsePrefix(t))
	}
	return out
}

// targets decides where webhooks may lead.
type targets struct {
	allowed  []netip.Prefix
	underlay func(context.Context) ([]netip.Addr, error)
	own      func() ([]net.Addr, error)
}

// check looks at an address that is about to be dialled, after all names are resolved: a
// name that changes its address does not help.
func (t *targets) check(ctx context.Context, a netip.Addr) error {
	a = a.Unmap().WithZone("")
	within := func(p netip.Prefix) bool { return p.Contains(a) }
	if slices.ContainsFunc(t.allowed, within) {
		return nil
	}
	no := onpath.Errorf(onpath.CodeForbidden, "webhooks may not lead to %s", a)
	no.Remedy = "ask an operator to allow it (server.webhookTargets)"
	if slices.ContainsFunc(forbidden, within) {
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
