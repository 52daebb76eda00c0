package wireguard

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"

	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/tun"
)

// Serve has a device of wireguard-go in the network namespace of this process, until ctx ends.
// It is set by way of a unix socket. What it writes goes to standard error.
func Serve(ctx context.Context, socket, name string, mtu int) error {
	// What an earlier process left: who begins this one has asked it before.
	if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	t, err := tun.CreateTUN(name, mtu)
	if err != nil {
		return fmt.Errorf("make device %s: %w", name, err)
	}
	d := device.NewDevice(t, conn.NewDefaultBind(), device.NewLogger(device.LogLevelError, ""))
	defer d.Close()
	if err := d.Up(); err != nil {
		return fmt.Errorf("start WireGuard: %w", err)
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	defer l.Close()
	if err := os.Chmod(socket, 0o600); err != nil {
		return err
	}
	go func() {
		select {
		case <-ctx.Done():
		case <-d.Wait(): // somebody took the device away
		}
		l.Close()
	}()
	for {
		c, err := l.Accept()
		if err != nil {
			return nil
		}
		go d.IpcHandle(c)
	}
}
