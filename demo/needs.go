package demo

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/onpath/onpath"
)

// containers are the programs that a demonstration with containers needs.
var containers = []string{"containerd", "runc"}

// packages of Debian have what the demonstrations need: programs, and a file by its path.
var packages = map[string]string{
	"clang": "clang", "wasm-ld": "lld", "/usr/include/bpf/bpf_helpers.h": "libbpf-dev",
	"containerd": "containerd", "runc": "runc",
	"ip": "iproute2", "tc": "iproute2",
	"iperf3":   "iperf3",
	"kamailio": "kamailio", "sipp": "sip-tester",
	"perl": "perl-base",
	"nft":  "nftables",
}

// checkTools says all that the machine lacks at once, before anything is set up.
func (what Demonstration) checkTools() error {
	var lacking, install []string
	for _, tool := range what.Needs {
		find := func(tool string) error { _, err := exec.LookPath(tool); return err }
		if filepath.IsAbs(tool) {
			find = func(tool string) error { _, err := os.Stat(tool); return err }
		}
		if find(tool) == nil {
			continue
		}
		lacking = append(lacking, tool)
		if p := packages[tool]; !slices.Contains(install, p) {
			install = append(install, p)
		}
	}
	if len(lacking) == 0 {
		return nil
	}
	remedy := "sudo apt-get install -y --no-install-recommends " + strings.Join(install, " ")
	if setup := setupScript(); setup != "" {
		remedy = setup + " " + what.Name
		if what.Name == "" {
			remedy = setup + " demo"
		}
	}
	return &onpath.Error{Code: onpath.CodeUnsupported,
		Message: fmt.Sprintf("the demonstration needs %s, which this machine lacks", strings.Join(lacking, ", ")),
		Remedy:  "install it: " + remedy}
}

// setupScript is the script of the checkout that this program was built in, as the path
// from here; empty: there is none.
func setupScript() string {
	program, err := os.Executable()
	if err != nil {
		return ""
	}
	script := filepath.Join(filepath.Dir(program), "../scripts/setup")
	if _, err := os.Stat(script); err != nil {
		return ""
	}
	here, err := os.Getwd()
	if err != nil {
		return script
	}
	if short, err := filepath.Rel(here, script); err == nil && len(short) < len(script) {
		return short
	}
	return script
}
