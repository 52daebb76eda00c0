// Package wireguard makes a network device of WireGuard and sets it: the kernel's, or else one of
// wireguard-go in a process of its own, which outlives who began it.
package wireguard

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/onpath/onpath/internal/netnsrun"
)

// Device is one device of a network namespace.
type Device struct {
	Name  string
	NetNS string // path; "": the process's own
	// Dir has socket and log of the process.
	Dir string
	// Program is run as "PROGRAM wireguard ...", which calls Serve.
	Program string
}

func (d *Device) socket() string  { return filepath.Join(d.Dir, "wireguard.sock") }
func (d *Device) logFile() string { return filepath.Join(d.Dir, "wireguard.log") }

// Lacks is why this machine can have no such device; "": it can.
func Lacks() string {
	if _, err := os.Stat("/proc/sys/net/ipv6"); err != nil {
		return "the kernel has no IPv6"
	}
	if _, err := os.Stat("/dev/net/tun"); err == nil {
		return ""
	}
	if _, err := os.Stat("/sys/module/wireguard"); err == nil {
		return ""
	}
	return "there is neither /dev/net/tun nor the kernel's module wireguard (modprobe wireguard, or tun)"
}

// Make makes the device with an address and an MTU, or keeps one that works. Made is true
// for one that nobody has set yet.
func (d *Device) Make(own netip.Prefix, mtu int) (made bool, err error) {
	err = netnsrun.Do(d.NetNS, func() error {
		link, err := d.find()
		if err != nil {
			return err
		}
		if link == nil {
			if made, err = true, d.begin(mtu); err != nil {
				return err
			}
			if link, err = netlink.LinkByName(d.Name); err != nil {
				return fmt.Errorf("find device %s: %w", d.Name, err)
			}
		}
		return setUp(link, own, mtu)
	})
	return made, err
}

// find gives the device if it works; what is left of another one goes.
func (d *Device) find() (netlink.Link, error) {
	link, err := netlink.LinkByName(d.Name)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("find device %s: %w", d.Name, err)
	}
	if link.Type() == "wireguard" {
		return link, nil
	}
	if c, _, err := d.dial(); err == nil {
		c.Close()
		return link, nil
	}
	if err := netlink.LinkDel(link); err != nil {
		return nil, fmt.Errorf("remove device %s, whose process is dead: %w", d.Name, err)
	}
	return nil, nil
}

// begin makes the kernel's device, or begins the process that has one.
func (d *Device) begin(mtu int) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = d.Name
	err := netlink.LinkAdd(&netlink.Wireguard{LinkAttrs: attrs})
	if err == nil || !errors.Is(err, unix.EOPNOTSUPP) {
		return err
	}
	if err := os.MkdirAll(d.Dir, 0o700); err != nil {
		return fmt.Errorf("make the folder of WireGuard: %w", err)
	}
	log, err := os.OpenFile(d.logFile(), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("open the log of WireGuard: %w", err)
	}
	defer log.Close()
	cmd := exec.Command(d.Program, "wireguard", "--socket", d.socket(), "--device", d.Name, "--mtu", fmt.Sprint(mtu))
	cmd.Stdout, cmd.Stderr, cmd.Dir = log, log, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	ended, err := netnsrun.Start(d.NetNS, cmd)
	if err != nil {
		return fmt.Errorf("start the process of WireGuard: %w", err)
	}
	late := time.After(startTimeout)
	for {
		if c, pid, err := d.dial(); err == nil {
			c.Close()
			if pid == cmd.Process.Pid {
				return nil
			}
		}
		select {
		case <-ended:
			return fmt.Errorf("the process of WireGuard ended at once; see %s", d.logFile())
		case <-late:
			return fmt.Errorf("the process of WireGuard does not answer; see %s", d.logFile())
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// startTimeout is how long the process may take until it answers.
const startTimeout = 20 * time.Second

// setUp gives the device its address and MTU.
func setUp(link netlink.Link, own netip.Prefix, mtu int) error {
	name := link.Attrs().Name
	_ = os.WriteFile("/proc/sys/net/ipv6/conf/"+name+"/addr_gen_mode", []byte("1"), 0) // the kernel says nothing by itself
	if link.Attrs().MTU != mtu {
		if err := netlink.LinkSetMTU(link, mtu); err != nil {
			return fmt.Errorf("set the MTU of %s to %d: %w", name, mtu, err)
		}
	}
	addrs, err := netlink.AddrList(link, netlink.FAMILY_V6)
	if err != nil {
		return fmt.Errorf("list addresses of %s: %w", name, err)
	}
	there := false
	for _, a := range addrs {
		ip, _ := netip.AddrFromSlice(a.IP)
		if ip == own.Addr() {
			there = true
		} else if err := netlink.AddrDel(link, &a); err != nil {
			return fmt.Errorf("remove address %s of %s: %w", ip, name, err)
		}
	}
	if !there {
		a := &netlink.Addr{IPNet: &net.IPNet{IP: own.Addr().AsSlice(), Mask: net.CIDRMask(own.Bits(), 128)}, Flags: unix.IFA_F_NODAD}
		if err := netlink.AddrAdd(link, a); err != nil {
			return fmt.Errorf("give %s the address %s (is IPv6 off on this machine?): %w", name, own, err)
		}
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("set %s up: %w", name, err)
	}
	return nil
}

// Set changes what c names.
func (d *Device) Set(c wgtypes.Config) error {
	conn, _, err := d.dial()
	if err != nil {
		return d.kernel(func(k *wgctrl.Client) error { return k.ConfigureDevice(d.Name, c) })
	}
	defer conn.Close()
	if _, err := conn.Write(setting(c)); err != nil {
		return fmt.Errorf("set %s: %w", d.Name, err)
	}
	_, err = reply(conn)
	return err
}

// State reads the device.
func (d *Device) State() (s *wgtypes.Device, err error) {
	conn, _, err := d.dial()
	if err != nil {
		err = d.kernel(func(k *wgctrl.Client) (err error) {
			s, err = k.Device(d.Name)
			return err
		})
		return s, err
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "get=1\n\n"); err != nil {
		return nil, fmt.Errorf("read %s: %w", d.Name, err)
	}
	return reply(conn)
}

func (d *Device) kernel(do func(*wgctrl.Client) error) error {
	err := netnsrun.Do(d.NetNS, func() error {
		k, err := wgctrl.New()
		if err != nil {
			return err
		}
		defer k.Close()
		return do(k)
	})
	if err != nil {
		return fmt.Errorf("WireGuard of device %s: %w", d.Name, err)
	}
	return nil
}

// Remove takes the device away, and ends its process.
func (d *Device) Remove() (found bool, err error) {
	if c, pid, err := d.dial(); err == nil {
		found = true
		if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
			return found, fmt.Errorf("end process %d of WireGuard: %w", pid, err)
		}
		_ = c.SetDeadline(time.Now().Add(startTimeout))
		_, _ = c.Read(make([]byte, 1)) // it ends
		c.Close()
	}
	err = netnsrun.Do(d.NetNS, func() error {
		link, err := netlink.LinkByName(d.Name)
		if errors.As(err, &netlink.LinkNotFoundError{}) {
			return nil
		}
		if err != nil {
			return err
		}
		found = true
		if err := netlink.LinkDel(link); err != nil && !errors.Is(err, unix.ENODEV) {
			return fmt.Errorf("remove device %s: %w", d.Name, err)
		}
		return nil
	})
	return found, errors.Join(err, os.RemoveAll(d.Dir))
}

// dial speaks to the process; pid is its number.
func (d *Device) dial() (c *net.UnixConn, pid int, err error) {
	c, err = net.DialUnix("unix", nil, &net.UnixAddr{Name: d.socket(), Net: "unix"})
	if err != nil {
		return nil, 0, err
	}
	raw, err := c.SyscallConn()
	if err == nil {
		controlled := raw.Control(func(fd uintptr) {
			var who *unix.Ucred
			if who, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
				pid = int(who.Pid)
			}
		})
		err = errors.Join(err, controlled)
	}
	if err != nil {
		c.Close()
		return nil, 0, err
	}
	return c, pid, c.SetDeadline(time.Now().Add(startTimeout))
}
