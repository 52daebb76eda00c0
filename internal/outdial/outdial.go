// Package outdial connects to where strangers say: to public addresses, and to what the
// operator allows, but never to the machine itself. Each address is checked when it is dialed,
// after its name is resolved: a name that changes its address then does not help.
package outdial

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/onpath/onpath/internal/netnsrun"
	"github.com/onpath/onpath/internal/publicaddr"
)

// Dialer connects.
type Dialer struct {
	// NetNS is the path of the network namespace to connect from; empty: the program's.
	NetNS string
	// Allowed are addresses that are not public, and allowed; Setting is where they stand.
	Allowed []netip.Prefix
	Setting string
	// Own gives the machine's addresses, beside those of the devices that it has there.
	Own func() []netip.Addr
}

// perAddress bounds how long one of several addresses may take.
const perAddress = 4 * time.Second

// DialContext is that of net.Dialer.
func (d *Dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	list, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, a := range list {
		c, err := d.dial(ctx, network, a.Unmap(), port)
		if err == nil {
			return c, nil
		}
		if errs = append(errs, err); ctx.Err() != nil {
			break
		}
	}
	return nil, errors.Join(errs...)
}

func (d *Dialer) dial(ctx context.Context, network string, a netip.Addr, port string) (c net.Conn, err error) {
	ctx, cancel := context.WithTimeout(ctx, perAddress)
	defer cancel()
	do := func() error {
		if err := d.check(a); err != nil {
			return err
		}
		var dialer net.Dialer // an address alone is dialed on this thread
		c, err = dialer.DialContext(ctx, network, net.JoinHostPort(a.String(), port))
		return err
	}
	err = netnsrun.Do(d.NetNS, do)
	return c, err
}

// ErrRefused is of an address that is not dialed, whatever answers there.
var ErrRefused = errors.New("refused")

// refusal is an ErrRefused with its reason alone as its text.
type refusal string

func (r refusal) Error() string      { return string(r) }
func (refusal) Is(target error) bool { return target == ErrRefused }

func refusef(format string, args ...any) error { return refusal(fmt.Sprintf(format, args...)) }

// check refuses addresses behind the node that strangers have no business with.
func (d *Dialer) check(a netip.Addr) error {
	own, err := net.InterfaceAddrs()
	if err != nil {
		return err
	}
	is := func(o net.Addr) bool {
		p, err := netip.ParsePrefix(o.String())
		return err == nil && p.Addr().Unmap() == a
	}
	if slices.ContainsFunc(own, is) || d.Own != nil && slices.Contains(d.Own(), a) {
		return refusef("%s is an address of this machine", a)
	}
	switch {
	case a.IsLoopback() || a.IsUnspecified() || a.IsMulticast():
		return refusef("%s is no address of a server elsewhere", a)
	case publicaddr.Is(a) || publicaddr.In(d.Allowed, a):
		return nil
	}
	return refusef("%s is not public, and the operator does not allow it: add it to %s in the node's onpath.yaml", a, d.Setting)
}
