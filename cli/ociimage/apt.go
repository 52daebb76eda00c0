package ociimage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/onpath/onpath"
)

// listsAge is how old package lists may be: security updates reach new images
// within it.
const listsAge = 7 * 24 * time.Hour

// apt asks package lists of our own, so that nothing of the machine's apt is
// changed and root is not needed.
type apt struct {
	dir  string // lists and keys
	dist distribution
	// transport is how the machine's apt reaches its mirrors: proxies, retries.
	transport []string
	signature string // of the sources: lists are of these
	tell      func(string)
}

// newApt takes over the machine's distribution and its mirror.
func newApt(ctx context.Context, cache string, backports bool, tell func(string)) (*apt, error) {
	lacking := func(what string, err error) error {
		return &onpath.Error{Code: onpath.CodeUnsupported,
			Message: fmt.Sprintf("images are made from Debian or Ubuntu packages, and %s: %v", what, err),
			Remedy:  "make them on such a machine, or name images of a registry", Cause: err}
	}
	release, err := os.ReadFile("/etc/os-release")
	if err != nil {
		return nil, lacking("this machine does not say what it is", err)
	}
	all, err := readSources("/etc/apt")
	if err != nil {
		return nil, lacking("its package sources cannot be read", err)
	}
	dist, err := pick(all, codename(string(release)))
	if err != nil {
		return nil, lacking("this machine has no source for them", err)
	}
	a := &apt{dir: filepath.Join(cache, "apt", dist.codename), dist: dist, transport: transport(ctx), tell: tell}
	if backports {
		a.dist = dist.withBackports()
		a.dir += "-backports"
	}
	return a, a.configure()
}

func (a *apt) path(name string) string { return filepath.Join(a.dir, name) }

// lines are the sources in one-line form; keys given in armour become files.
func (a *apt) lines() ([]string, error) {
	var out []string
	for i, s := range a.dist.sources {
		keyring := s.signedBy
		if strings.Contains(keyring, "BEGIN PGP") {
			keyring = a.path("key" + strconv.Itoa(i) + ".asc")
			// In deb822, an empty line of the armour is written as a dot.
			text := strings.ReplaceAll(s.signedBy, "\n.\n", "\n\n")
			if err := replace(keyring, strings.TrimSpace(text)+"\n"); err != nil {
				return nil, err
			}
		}
		out = append(out, s.line(keyring))
	}
	return out, nil
}

func (a *apt) configure() error {
	for _, d := range []string{"lists/partial", "cache/archives/partial", "debs"} {
		if err := os.MkdirAll(a.path(d), 0o755); err != nil {
			return fmt.Errorf("image cache: %w", err)
		}
	}
	lines, err := a.lines()
	if err != nil {
		return fmt.Errorf("image cache: %w", err)
	}
	// The machine's own apt.conf.d is left out: its hooks are not for us, and in
	// container images it forbids apt the caches that make it quick.
	conf := fmt.Sprintf("Dir::Etc::main \"/dev/null\";\nDir::Etc::parts \"/dev/null\";\nDir::State %q;\nDir::State::lists "+
		"%q;\nDir::State::status \"/dev/null\";\nDir::Cache %q;\n"+
		"Dir::Etc::sourcelist %q;\nDir::Etc::sourceparts \"/dev/null\";\nAPT::Sandbox::User \"root\";\nAcquire::Languages \"none\";\n",
		a.dir, a.path("lists"), a.path("cache"), a.path("sources.list"))
	for _, o := range a.transport {
		conf += o + ";\n"
	}
	for name, text := range map[string]string{"sources.list": strings.Join(lines, "\n") + "\n", "apt.conf": conf} {
		if err := replace(a.path(name), text); err != nil {
			return fmt.Errorf("image cache: %w", err)
		}
	}
	a.signature = strings.Join(lines, "\n")
	return nil
}

// replace writes a file in one step, unless it has that content already: other
// builds may be reading it.
func replace(path, text string) error {
	if now, err := os.ReadFile(path); err == nil && string(now) == text {
		return nil
	}
	f, err := os.CreateTemp(filepath.Dir(path), "new-")
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	if err = errors.Join(err, f.Chmod(0o644), f.Close()); err != nil {
		os.Remove(f.Name())
		return err
	}
	return os.Rename(f.Name(), path)
}

func (a *apt) run(ctx context.Context, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), "APT_CONFIG="+a.path("apt.conf"), "LC_ALL=C")
	out, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = fmt.Errorf("%s %s: %s", name, args[0], lastLine(exit.Stderr))
	}
	return string(out), err
}

func lastLine(b []byte) string {
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return lines[len(lines)-1]
}

// update fetches the package lists if they are missing or old. Old ones do
// where there is no network.
func (a *apt) update(ctx context.Context) error {
	unlock, err := lock(ctx, a.path("lock"), a.tell)
	if err != nil {
		return err
	}
	defer unlock()
	stamp := a.path("updated")
	info, err := os.Stat(stamp)
	fresh := err == nil && time.Since(info.ModTime()) < listsAge
	if before, _ := os.ReadFile(stamp); fresh && string(before) == a.signature {
		return nil
	}
	a.tell("fetching package lists of " + a.dist.codename)
	// Without this, apt-get update ends well although a mirror did not answer.
	if _, uerr := a.run(ctx, "apt-get", "-q", "-o", "APT::Update::Error-Mode=any", "update"); uerr != nil {
		if err == nil && ctx.Err() == nil {
			a.tell("package lists could not be renewed, the old ones are used: " + uerr.Error())
			return nil
		}
		return &onpath.Error{Code: onpath.CodeUnavailable, Message: "package lists cannot be fetched: " + uerr.Error(),
			Remedy: "check the network, and that apt-get update works on this machine", Cause: uerr}
	}
	return os.WriteFile(stamp, []byte(a.signature), 0o644)
}

// candidate is the version of a package that would be installed; empty if none.
func (a *apt) candidate(ctx context.Context, name string) (string, error) {
	out, err := a.run(ctx, "apt-cache", "policy", name)
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(out) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), "Candidate:"); ok {
			if v = strings.TrimSpace(v); v != "(none)" {
				return v, nil
			}
		}
	}
	return "", nil
}

// enough says whether version does for p.
func enough(ctx context.Context, p pkg, version string) bool {
	if version == "" || p.least == "" {
		return version != ""
	}
	return exec.CommandContext(ctx, "dpkg", "--compare-versions", version, "ge", p.least).Run() == nil
}

// resolved are packages with their versions and the apt that has them.
type resolved struct {
	apt      *apt
	Versions []string // "name=version", sorted by name
	// pinned are dependencies that have to come from backports, with versions;
	// apt does not take them from there by itself.
	Pinned []string
}

// memo is where what was resolved from the present lists is kept: asking apt
// takes seconds.
func (r *resolved) memo(want []pkg) string {
	parts := []string{r.apt.signature}
	if info, err := os.Stat(r.apt.path("updated")); err == nil {
		parts = append(parts, info.ModTime().String())
	}
	for _, p := range want {
		parts = append(parts, p.name, p.least)
	}
	return r.apt.path("resolved-" + hash(parts...) + ".json")
}

func (r *resolved) load(want []pkg) bool {
	data, err := os.ReadFile(r.memo(want))
	return err == nil && json.Unmarshal(data, r) == nil && len(r.Versions) == len(want)
}

func (r *resolved) save(want []pkg) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if err := replace(r.memo(want), string(data)); err != nil {
		return fmt.Errorf("image cache: %w", err)
	}
	return nil
}

// resolve finds the packages in the enabled suites, or else with backports.
func resolve(ctx context.Context, cache string, want []pkg, tell func(string)) (*resolved, error) {
	var missing []string
	for _, backports := range []bool{false, true} {
		a, err := newApt(ctx, cache, backports, tell)
		if err != nil {
			return nil, err
		}
		if err := a.update(ctx); err != nil {
			return nil, err
		}
		r := &resolved{apt: a}
		if r.load(want) {
			return r, nil
		}
		missing = nil
		for _, p := range want {
			v, err := a.candidate(ctx, p.name)
			if err != nil {
				return nil, fmt.Errorf("package %s: %w", p.name, err)
			}
			if !enough(ctx, p, v) {
				missing = append(missing, strings.TrimSpace(p.name+" "+p.least))
			}
			r.Versions = append(r.Versions, p.name+"="+v)
		}
		if len(missing) > 0 {
			continue
		}
		if backports {
			if r.Pinned, err = a.pins(ctx, r.Versions); err != nil {
				return nil, err
			}
		}
		return r, r.save(want)
	}
	return nil, onpath.Errorf(onpath.CodeNotFound, "neither the enabled suites of this machine nor backports have: %s",
		strings.Join(missing, ", "))
}

// dependency is one alternative of a Depends field: "libhtp2 (>= 1:0.5.49)".
var dependency = regexp.MustCompile(`^([a-z0-9][a-z0-9.+-]*)(?::\w+)?\s*\((>=|=)\s*([^)]+)\)`)

// pins finds the dependencies of chosen versions that the candidates of the
// enabled suites are too old for.
func (a *apt) pins(ctx context.Context, chosen []string) ([]string, error) {
	var out []string
	for todo := slices.Clone(chosen); len(todo) > 0; todo = todo[1:] {
		text, err := a.run(ctx, "apt-cache", "show", todo[0])
		if err != nil {
			return nil, fmt.Errorf("package %s: %w", todo[0], err)
		}
		for line := range strings.Lines(text) {
			key, value, _ := strings.Cut(line, ":")
			if key != "Depends" && key != "Pre-Depends" {
				continue
			}
			for dep := range strings.SplitSeq(value, ",") {
				m := dependency.FindStringSubmatch(strings.TrimSpace(dep))
				if m == nil {
					continue
				}
				pin, err := a.pin(ctx, pkg{m[1], m[3]})
				if err != nil {
					return nil, err
				}
				if pin != "" && !slices.Contains(out, pin) {
					out, todo = append(out, pin), append(todo, pin)
				}
			}
		}
	}
	return out, nil
}

// pin is "name=version" where the candidate of p is too old and a newer one exists.
func (a *apt) pin(ctx context.Context, p pkg) (string, error) {
	v, err := a.candidate(ctx, p.name)
	if err != nil || v == "" || enough(ctx, p, v) {
		return "", err // none at all: a virtual package, which apt knows about
	}
	text, err := a.run(ctx, "apt-cache", "madison", p.name)
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(text) { // newest first
		if f := strings.Split(line, "|"); len(f) == 3 && enough(ctx, p, strings.TrimSpace(f[1])) {
			return p.name + "=" + strings.TrimSpace(f[1]), nil
		}
	}
	return "", nil
}
