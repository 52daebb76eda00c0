package ociimage

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/onpath/onpath"
)

// epoch is the time stamp of everything that is made here, so that equal
// contents are equal layers. (Seconds since 1970.)
const epoch = 1735689600

// unwanted is not installed at all, which also saves time.
var unwanted = []string{"/usr/share/man/*", "/usr/share/info/*", "/usr/share/locale/*", "/usr/share/doc/*", "/usr/share/i18n/*",
	"/usr/share/lintian/*", "/usr/share/bash-completion/*"}

// patience is how long mmdebstrap may take to tidy up when it is cancelled.
const patience = 20 * time.Second

// bootstrap makes a root file system with the packages as a tar archive; below,
// if not empty, is the archive of one to start from. It has scratch for what it
// needs meanwhile.
func bootstrap(ctx context.Context, r *resolved, names []string, below, scratch, tarball string, tell func(string)) error {
	bin, err := exec.LookPath("mmdebstrap")
	if err != nil {
		return &onpath.Error{Code: onpath.CodeUnsupported, Message: "images are made by mmdebstrap, which is not installed",
			Remedy: "apt-get install mmdebstrap", Cause: err}
	}
	args := []string{"--variant=essential"}
	if below != "" {
		args = []string{"--variant=custom", "--skip=check/empty", "--setup-hook=tar-in " + quote(below) + " /",
			// It brought the sources that it was made from.
			"--setup-hook=cp " + quote(r.apt.path("sources.list")) + " \"$1\"/etc/apt/sources.list"}
	}
	args = append(args, "--format=tar", "--include="+strings.Join(append(slices.Clone(names), r.Pinned...), ","),
		"--aptopt=Acquire::Languages \"none\"", "--aptopt=APT::Install-Recommends \"false\"", "--skip=download/empty",
		"--skip=essential/unlink",
		// Packages are downloaded once for all images.
		"--setup-hook=mkdir -p \"$1\"/var/cache/apt/archives", "--setup-hook=sync-in "+quote(r.apt.path("debs"))+" /var/cache/apt/archives",
		"--customize-hook=rm -rf \"$1\"/var/cache/apt/archives/lock \"$1\"/var/cache/apt/archives/partial",
		"--customize-hook=sync-out /var/cache/apt/archives "+quote(r.apt.path("debs")))
	for _, o := range r.apt.transport {
		args = append(args, "--aptopt="+o)
	}
	for _, u := range unwanted {
		args = append(args, "--dpkgopt=path-exclude="+u)
	}
	args = append(args, "--dpkgopt=path-include=/usr/share/doc/*/copyright")
	lines, err := r.apt.lines()
	if err != nil {
		return err
	}
	args = append(append(args, r.apt.dist.codename, tarball), lines...)
	cmd := exec.CommandContext(ctx, bin, args...)
	cmd.Env = append(os.Environ(), fmt.Sprintf("SOURCE_DATE_EPOCH=%d", epoch), "LC_ALL=C.UTF-8", "DEBIAN_FRONTEND=noninteractive")
	// On cancellation it tidies up. It waits for the programs that it has started, so they
	// are told as well.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if os.Getuid() == 0 { // other users' subordinate ids may not get into the cache
		cmd.Env = append(cmd.Env, "TMPDIR="+scratch)
		cmd.SysProcAttr.Unshareflags = syscall.CLONE_NEWNS // a killed mmdebstrap leaves no mount
	}
	group := func(s syscall.Signal) error { return syscall.Kill(-cmd.Process.Pid, s) }
	over := make(chan struct{})
	defer close(over)
	cmd.Cancel = func() error {
		go func() {
			select {
			case <-over:
			case <-time.After(patience):
				_ = group(syscall.SIGKILL)
			}
		}()
		return group(syscall.SIGTERM)
	}
	return runTelling(cmd, tell)
}

// runTelling runs mmdebstrap, passes on what it says of its steps, and makes an
// error of its last complaint.
func runTelling(cmd *exec.Cmd, tell func(string)) error {
	out, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("mmdebstrap: %w", err)
	}
	var complaint string
	for sc := bufio.NewScanner(out); sc.Scan(); {
		line := sc.Text()
		if step, ok := strings.CutPrefix(line, "I: "); ok {
			if s, ok := steps[strings.SplitN(step, " ", 2)[0]]; ok {
				tell(s)
			}
		} else if strings.HasPrefix(line, "E: ") && complaint == "" {
			complaint = line[3:]
		}
	}
	if err := cmd.Wait(); err != nil {
		if complaint == "" {
			complaint = err.Error()
		}
		return &onpath.Error{Code: onpath.CodeUnavailable, Message: "mmdebstrap: " + complaint,
			Remedy: "run as root, and check the network and the space on disk", Cause: err}
	}
	return nil
}

var steps = map[string]string{
	"downloading": "downloading packages", "extracting": "extracting packages", "installing": "installing packages", "creating": "packing",
}

// transport is how the machine's apt reaches its mirrors: proxies, retries.
func transport(ctx context.Context) []string {
	out, err := exec.CommandContext(ctx, "apt-config", "dump", "--format", "%f \"%v\"%n",
		"Acquire::http", "Acquire::https", "Acquire::ForceIPv4", "Acquire::ForceIPv6", "Acquire::Retries").Output()
	if err != nil {
		return nil
	}
	var opts []string
	for line := range strings.Lines(string(out)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasSuffix(line, `""`) {
			opts = append(opts, line)
		}
	}
	return opts
}

func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
