package wiring

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/netnsrun"
)

// Sysctl is one kernel setting of the calling thread's network namespace.
type Sysctl struct{ Key, Value string }

// Set writes the setting.
func (s Sysctl) Set() error {
	path := "/proc/sys/" + strings.ReplaceAll(s.Key, ".", "/")
	err := os.WriteFile(path, []byte(s.Value), 0)
	if errors.Is(err, fs.ErrNotExist) && strings.HasPrefix(s.Key, "net.ipv6.") && !hasIPv6() {
		return nil // a kernel without IPv6 needs no setting
	}
	if err != nil {
		return fmt.Errorf("set %s=%s: %w", s.Key, s.Value, err)
	}
	return nil
}

func setAll(all []Sysctl) error {
	for _, s := range all {
		if err := s.Set(); err != nil {
			return err
		}
	}
	return nil
}

func hasIPv6() bool {
	_, err := os.Stat("/proc/sys/net/ipv6")
	return err == nil
}

// ipv6On reports whether a device of the namespace takes IPv6: functions may turn
// it off (disable_ipv6), and the kernel then refuses addresses and routes.
func ipv6On(netns, device string) bool {
	if !hasIPv6() {
		return false
	}
	on := true // what cannot be asked is tried
	_ = netnsrun.Do(netns, func() error {
		v, err := os.ReadFile("/proc/sys/net/ipv6/conf/" + device + "/disable_ipv6")
		on = err != nil || strings.TrimSpace(string(v)) == "0"
		return err
	})
	return on
}

// Forwards reports whether the instance's kernel forwards what it is handed. Where a process
// takes whole frames, only that process may send them on: when it dies, what is queued goes to
// the kernel.
func (w Wiring) Forwards() bool { return w.Attach == onpath.Routed && !w.WholeFrames }

// forwardSysctls make the instance's kernel a router, or a host, but for what the function
// sets itself. A kernel that ceases to be a router takes redirects unless told otherwise.
func (w Wiring) forwardSysctls(on bool) []Sysctl {
	forward := "0"
	if on {
		forward = "1"
	}
	all := []Sysctl{
		{"net.ipv4.ip_forward", forward},
		{"net.ipv6.conf.all.forwarding", forward},
		{"net.ipv6.conf.default.forwarding", forward},
		{"net.ipv4.conf.all.accept_redirects", "0"},
	}
	return slices.DeleteFunc(all, func(s Sysctl) bool { _, own := w.Sysctls[s.Key]; return own })
}

// baseSysctls make a routed instance an IP hop that forwards whatever it is
// handed, and a bridged one silent.
func (w Wiring) baseSysctls() []Sysctl {
	out := w.forwardSysctls(w.Forwards())
	devs := []string{"all", "default"}
	for _, p := range w.Ports() {
		devs = append(devs, p.Inside)
	}
	for _, d := range devs {
		out = append(out,
			Sysctl{"net.ipv4.conf." + d + ".rp_filter", "0"},
			Sysctl{"net.ipv4.conf." + d + ".send_redirects", "0"},
			Sysctl{"net.ipv4.conf." + d + ".accept_redirects", "0"},
			Sysctl{"net.ipv6.conf." + d + ".accept_redirects", "0"},
			Sysctl{"net.ipv6.conf." + d + ".accept_ra", "0"},
			Sysctl{"net.ipv6.conf." + d + ".accept_dad", "0"},
		)
		if w.Attach == onpath.Bridged && d != "all" {
			// No link-local addresses: a bump in the wire says nothing itself.
			out = append(out, Sysctl{"net.ipv6.conf." + d + ".addr_gen_mode", "1"})
		}
	}
	return out
}

// Instances that open flows with their clients' addresses share those addresses,
// and must not take the same port towards the same server: an answer then would
// have two takers, and the second caller ends the first one's connection. So the
// ports from portsFrom on are dealt out in portShares shares, by vport; vports of
// a deployment mostly follow each other.
const (
	portsFrom  = 16384
	portShares = 16
)

// originSysctls give the instance its share of the ports.
func (w Wiring) originSysctls() []Sysctl {
	if !w.Originate {
		return nil
	}
	const each = (1<<16 - portsFrom) / portShares
	first := portsFrom + int(w.Vport%portShares)*each
	return []Sysctl{{"net.ipv4.ip_local_port_range", fmt.Sprintf("%d %d", first, first+each-1)}}
}

// ownSysctls are the function's, in order of their keys; they come last and win.
func (w Wiring) ownSysctls() []Sysctl {
	var out []Sysctl
	for k, v := range w.Sysctls {
		out = append(out, Sysctl{k, v})
	}
	slices.SortFunc(out, func(a, b Sysctl) int { return strings.Compare(a.Key, b.Key) })
	return out
}

// CheckSysctls refuses settings that are not of a network namespace.
func CheckSysctls(m map[string]string) error {
	for k := range m {
		if !strings.HasPrefix(k, "net.") || strings.Contains(k, "/") || strings.Contains(k, "..") {
			return onpath.Errorf(onpath.CodeInvalid, "sysctl %q is not a network setting; only net.* can be set for an instance", k)
		}
	}
	return nil
}
