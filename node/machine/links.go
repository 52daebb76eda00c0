package machine

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/onpath/onpath/node/base"
	"github.com/onpath/onpath/node/wiring"
)

// watchLinks follows the devices of the agent's namespace. A device of an
// instance that vanishes is made again; an uplink that comes is attached.
func (m *Machine) watchLinks(ctx context.Context) {
	for ctx.Err() == nil {
		if err := m.followLinks(ctx); err != nil && ctx.Err() == nil {
			m.part.Log.Warn("cannot follow the network devices; trying again", "err", err)
			_ = m.part.Clock.Sleep(ctx, time.Second)
		}
	}
}

func (m *Machine) followLinks(ctx context.Context) error {
	ns := netns.None()
	if m.part.NetNS != "" {
		f, err := netns.GetFromPath(m.part.NetNS)
		if err != nil {
			return err
		}
		defer f.Close()
		ns = f
	}
	updates, done := make(chan netlink.LinkUpdate, 64), make(chan struct{})
	failed := make(chan error, 1)
	tell := func(err error) {
		select {
		case failed <- err:
		default:
		}
	}
	err := netlink.LinkSubscribeWithOptions(updates, done, netlink.LinkSubscribeOptions{Namespace: &ns, ErrorCallback: tell})
	if err != nil {
		close(done)
		return err
	}
	defer func() {
		close(done)
		for range updates { // until the library's goroutine has ended
		}
	}()
	addrs, ended := make(chan netlink.AddrUpdate, 64), make(chan struct{})
	err = netlink.AddrSubscribeWithOptions(addrs, ended, netlink.AddrSubscribeOptions{Namespace: &ns, ErrorCallback: tell})
	if err != nil {
		close(ended)
		return err
	}
	defer func() {
		close(ended)
		for range addrs {
		}
	}()
	base.Kick(m.inspect) // what changed since the last look nobody has told
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed:
			return err
		case u, ok := <-addrs:
			if !ok {
				return errors.New("the kernel's notifications of addresses ended")
			}
			if u.Scope == unix.RT_SCOPE_UNIVERSE {
				base.Kick(m.inspect)
			}
		case u, ok := <-updates:
			if !ok {
				return errors.New("the kernel's notifications ended")
			}
			m.linkChanged(ctx, u)
		}
	}
}

func (m *Machine) linkChanged(ctx context.Context, u netlink.LinkUpdate) {
	if !strings.HasPrefix(u.Attrs().Alias, wiring.AliasPrefix) {
		base.Kick(m.inspect)
		return
	}
	if u.Header.Type == unix.RTM_DELLINK {
		if id, ok := strings.CutPrefix(u.Attrs().Alias, wiring.Wirer{Node: m.part.Node}.Alias("")); ok {
			select {
			case m.vanished <- id:
			case <-ctx.Done():
			}
		}
	}
}
