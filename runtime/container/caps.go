package container

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/containerd/v2/pkg/cap"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/onpath/onpath"
)

// defaultCaps let a daemon start as root and give up root.
var defaultCaps = []string{"CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "NET_BIND_SERVICE", "SETGID", "SETUID", "SYS_CHROOT"}

// grantable may be asked for beside the default ones: none reaches beyond the
// instance's own namespaces.
var grantable = []string{"AUDIT_WRITE", "IPC_LOCK", "NET_ADMIN", "NET_BROADCAST", "NET_RAW", "SETFCAP", "SETPCAP", "SYS_NICE", "SYS_PTRACE"}

// capabilities is the set for an instance: the default one and what it asks for.
func capabilities(asked []string) ([]string, error) {
	own := boundingSet()
	var out []string
	for _, c := range defaultCaps {
		if own["CAP_"+c] {
			out = append(out, "CAP_"+c)
		}
	}
	for _, c := range asked {
		name := strings.TrimPrefix(strings.ToUpper(c), "CAP_")
		if slices.Contains(defaultCaps, name) {
			continue
		}
		if !slices.Contains(grantable, name) {
			return nil, &onpath.Error{Code: onpath.CodeForbidden, Message: fmt.Sprintf("capability %q is not given to functions", c),
				Remedy: "those that are: " + strings.Join(append(slices.Clone(defaultCaps), grantable...), ", ")}
		}
		if !own["CAP_"+name] {
			return nil, onpath.Errorf(onpath.CodeUnsupported, "capability %s: this machine does not have it to give", name)
		}
		out = append(out, "CAP_"+name)
	}
	return out, nil
}

// setCapabilities also makes what was asked for ambient where the program does
// not run as root: it would lose them at exec otherwise.
func setCapabilities(p *specs.Process, caps, asked []string) {
	p.Capabilities = &specs.LinuxCapabilities{Bounding: caps, Permitted: caps, Effective: caps}
	if p.User.UID == 0 {
		return
	}
	var ambient []string
	for _, c := range asked {
		ambient = append(ambient, "CAP_"+strings.TrimPrefix(strings.ToUpper(c), "CAP_"))
	}
	p.Capabilities.Inheritable, p.Capabilities.Ambient = ambient, ambient
}

// boundingSet is what this process may give to others.
func boundingSet() map[string]bool {
	out := map[string]bool{}
	bits, _ := strconv.ParseUint(procStatus("self")["CapBnd"], 16, 64)
	names, _ := cap.FromBitmap(bits)
	for _, n := range names {
		out[n] = true
	}
	return out
}
