package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/onpath/onpath/internal/netnsrun"
)

// haproxyConfig has HAProxy splice, on one thread. A pipe holds as much as the relay's.
const haproxyConfig = `global
  nbthread 1
  maxconn 2000
  maxpipes 2000
  tune.pipesize 262144
defaults
  mode tcp
  timeout connect 10s
  timeout client 60s
  timeout server 60s
  option splice-request
  option splice-response
`

// haproxyTable is the routing table that makes packets to the server the gateway's.
const haproxyTable = 100

// wireHAProxy has HAProxy take over what the gateway gets.
func wireHAProxy(ctx context.Context, _ *Run, t *site) error {
	program, err := exec.LookPath("haproxy")
	if err != nil {
		return lacking("HAProxy is not installed (Debian: haproxy)")
	}
	if err := netnsrun.Do(t.gateway, deliverHere); err != nil {
		return err
	}
	config := haproxyConfig
	ports := []netip.AddrPort{siteServer, siteBell, siteEcho}
	for _, a := range ports {
		config += fmt.Sprintf("listen port%d\n  bind %s transparent\n  server origin %s\n", a.Port(), a, a)
	}
	file := filepath.Join(t.Dir(), "haproxy.cfg")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return err
	}
	cmd := exec.Command(program, "-db", "-f", file)
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	ended, err := netnsrun.Start(t.gateway, cmd)
	if err != nil {
		return fmt.Errorf("start %s: %w", program, err)
	}
	t.After(func() error {
		_ = cmd.Process.Kill()
		<-ended
		return nil
	})
	for until := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		select {
		case <-ended:
			return fmt.Errorf("HAProxy has ended: %s", strings.TrimSpace(said.String()))
		case <-ctx.Done():
			return ctx.Err()
		default:
		}
		if c, _, err := t.hello(); err == nil {
			c.Close()
			return pinProcess(cmd.Process.Pid, t.cpu)
		}
		if time.Now().After(until) {
			return errors.New("HAProxy does not answer within ten seconds")
		}
	}
}

// deliverHere has the calling thread's namespace take what comes in for anybody for its own.
func deliverHere() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	_, all, _ := net.ParseCIDR("0.0.0.0/0")
	rule := netlink.NewRule()
	rule.IifName, rule.Table, rule.Priority, rule.Family = devIn, haproxyTable, 10, unix.AF_INET
	return errors.Join(netlink.RuleAdd(rule),
		netlink.RouteAdd(&netlink.Route{LinkIndex: lo.Attrs().Index, Dst: all, Table: haproxyTable,
			Type: unix.RTN_LOCAL, Scope: netlink.SCOPE_HOST}))
}
