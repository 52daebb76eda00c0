package sockets

import (
	"errors"
	"fmt"
	"net"
	"runtime"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Possible says why the kernel cannot end connections; nil: it can. That is tried once,
// in a network namespace of its own: before Linux 6.11, where it has not been mended, a
// connection without a program is not ended but stays for ever.
var Possible = sync.OnceValue(func() error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread, and the namespace with it, ends
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			result <- fmt.Errorf("make a network namespace: %w", err)
			return
		}
		result <- try()
	}()
	return <-result
})

// try ends a connection that has no program any more and does not end by itself.
func try() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer l.Close()
	c, err := net.DialTimeout("tcp", l.Addr().String(), time.Second)
	if err != nil {
		return err
	}
	err = netlink.LinkSetDown(lo) // its FIN arrives nowhere
	if err := errors.Join(err, c.Close()); err != nil {
		return err
	}
	if _, err := End(); err != nil {
		return err
	}
	n, err := count()
	if err == nil && n > 0 {
		err = errors.New("connections without a program stay")
	}
	return err
}
