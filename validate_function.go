package onpath

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// Defaults of functions and deployments.
const (
	DefaultCPU      CPU  = 100
	DefaultMemory   Size = 64 << 20
	DefaultDrain         = Duration(30 * time.Second)
	DefaultBudget        = Duration(2 * time.Microsecond)
	DefaultFileMode      = 0o644
	MaxOverhead          = 1024 // bytes

	defaultHealthEvery    = Duration(time.Second)
	defaultHealthFailures = 3
	defaultHealthStart    = Duration(time.Minute)

	day = Duration(24 * time.Hour)
)

var (
	envName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.-]*$`)
)

// Validate implements Object.
func (f *Function) Validate() error {
	v := begin(f, &f.TypeMeta)
	s := &f.Spec
	v.kinds(s)
	enum(v, "spec.state", &s.State, StateFlow, StateNone, StateFlow, StateTerminates)
	enum(v, "spec.packets", &s.Packets, PacketsKeep, PacketsKeep, PacketsRewrite, PacketsOriginate)
	if !s.Inline() { // what has no process takes no CPU of the node's; its budget bounds it
		byDefault(&s.Resources.CPU, DefaultCPU)
	}
	byDefault(&s.Resources.Memory, DefaultMemory)
	v.resources("spec.resources", s.Resources)
	v.health("spec.health", &s.Health)
	checkParameters(v, s)
	checkAlerts(v, "spec.alerts", s, f.Metadata.Tenant)
	checkMetrics(v, "spec.metrics", s)
	v.number("spec.overhead", s.Overhead, 0, MaxOverhead)
	if s.Shared && s.Traits().HostImage {
		v.add("spec.shared", "take it out, or name an image", "image: host shows the nodes' files, and everybody could run it")
	}
	if s.Shared && len(s.Traits().Secrets) > 0 && f.Metadata.Tenant != OperatorTenant {
		v.add("spec.shared", "take it out, or have the operator share the function",
			"a shared function reads secrets of every tenant that runs it: only tenant %s may share one that names secrets", OperatorTenant)
	}
	return v.err()
}

func (v *validation) env(at string, env Env) {
	if len(env) > maxStrings {
		v.add(at, "", "%d variables are too many; at most %d", len(env), maxStrings)
		return
	}
	for _, k := range sortedKeys(env) {
		if len(k) > 256 || !envName.MatchString(k) {
			v.add(key(at, k), "", "%s is not the name of an environment variable", quote(k))
		}
		v.text(key(at, k), env[k], maxString)
	}
}

// strings checks a command line.
func (v *validation) strings(at string, list []string) {
	if len(list) > maxStrings {
		v.add(at, "", "%d words are too many; at most %d", len(list), maxStrings)
		return
	}
	for i, s := range list {
		if i == 0 && s == "" {
			v.add(index(at, i), "write the program to run", "is empty")
		}
		v.text(index(at, i), s, maxString)
	}
}

// absolute checks a path inside a container.
func (v *validation) absolute(field, p string) bool {
	if len(p) < 4096 && path.IsAbs(p) && path.Clean(p) == p && utf8.ValidString(p) && !strings.ContainsRune(p, 0) {
		return true
	}
	remedy := ""
	if c := path.Clean("/" + p); p != "" && len(p) < 4096 && c != p {
		remedy = "write " + c
	}
	v.add(field, remedy, "%s is not an absolute path", quote(p))
	return false
}

func (v *validation) files(at string, files map[string]File) {
	total := 0
	for _, p := range sortedKeys(files) {
		f := files[p]
		field := key(at, p)
		if v.absolute(field, p) && p == "/" {
			v.add(field, "write the path of a file", "the root directory is not a file")
		}
		if f.FromFile != "" && f.Content != "" {
			v.add(field, "keep one of them", "has both content and fromFile")
		} else if f.FromFile != "" {
			v.add(field+".fromFile", "use onpath apply, or send the text as content",
				"%s lies on the client, which has to read it", quote(f.FromFile))
		}
		if f.Mode > 0o777 {
			v.add(field+".mode", "write permission bits in octal, such as 0644", "%d (octal %#o) is out of range", f.Mode, f.Mode)
		}
		byDefault(&f.Mode, DefaultFileMode)
		v.text(field+".content", f.Content, MaxFileBytes)
		total += len(f.Content)
		files[p] = f
	}
	if total > MaxFileBytes {
		v.add(at, "put large files into the image", "the files have %d bytes together; at most %d", total, MaxFileBytes)
	}
}

func (v *validation) health(at string, h *Health) {
	switch {
	case h.TCP != 0 && len(h.Exec) > 0:
		v.add(at, "keep one of them", "has both tcp and exec")
	case h.TCP == 0 && len(h.Exec) == 0:
		if h.Every != 0 || h.Failures != 0 || h.Start != 0 {
			v.add(at, "write tcp: PORT or exec: [COMMAND]", "does not say how to probe")
		}
		return
	}
	v.strings(at+".exec", h.Exec)
	byDefault(&h.Every, defaultHealthEvery)
	byDefault(&h.Failures, defaultHealthFailures)
	byDefault(&h.Start, defaultHealthStart)
	quantity(v, at+".every", h.Every, Duration(10*time.Millisecond), Duration(time.Hour))
	v.number(at+".failures", h.Failures, 1, 1000)
	quantity(v, at+".start", h.Start, Duration(10*time.Millisecond), day)
}

var metricsPath = regexp.MustCompile(`^([1-9][0-9]{0,4})/[!-~]{0,255}$`)

func checkMetrics(v *validation, at string, s *FunctionSpec) {
	m := s.Metrics
	switch {
	case m.HTTP == "" && len(m.Exec) == 0:
		return
	case !s.Traits().Programs:
		v.add(at, "take it out", "only a container tells metrics of its own; onpath counts for the other kinds")
	case m.HTTP != "" && len(m.Exec) > 0:
		v.add(at, "keep one of them", "has both exec and http")
	case m.HTTP != "":
		var p Port
		if x := metricsPath.FindStringSubmatch(m.HTTP); x == nil || p.UnmarshalText([]byte(x[1])) != nil {
			v.add(at+".http", "write PORT/PATH, such as 9167/metrics", "%s is not a port and a path", quote(m.HTTP))
		}
	}
	v.strings(at+".exec", m.Exec)
}

// Validate implements Object.
func (d *Deployment) Validate() error {
	v := begin(d, &d.TypeMeta)
	s := &d.Spec
	if s.Function == "" {
		v.add("spec.function", "write the name of a Function", "is missing")
	} else {
		v.ref("spec.function", &s.Function, "function", d.Metadata.Tenant)
	}
	v.instances("spec.instances", &s.Instances)
	v.reservation("spec.reservation", &s.Reservation, d.Metadata.Tenant)
	v.place("spec.place", &s.Place)
	v.env("spec.env", s.Env)
	v.files("spec.files", s.Files)
	byDefault(&s.Drain, DefaultDrain)
	quantity(v, "spec.drain", s.Drain, 0, day)
	s.OnDemand.validate(v, "spec.onDemand")
	return v.err()
}

// instances checks a number of instances; the default is one.
func (v *validation) instances(field string, n **int) {
	if *n == nil {
		*n = new(int)
		**n = 1
	}
	v.number(field, **n, 0, MaxInstances)
}

func (v *validation) place(at string, p *Place) {
	p.Cloudlets = v.names(at+".cloudlets", p.Cloudlets)
	v.labels(at+".nodes", p.Nodes)
	enum(v, at+".spread", &p.Spread, SpreadNode, SpreadNode, SpreadNone)
}

// ShortDeployment is the name of the deployment that the short form {function:
// ref} makes in a chain.
func ShortDeployment(chain string, function Ref) string {
	_, name := function.Resolve("")
	return fmt.Sprintf("%s-%s", chain, name)
}

// known reports whether p is a well-formed protocol, and its number; ICMP
// stands for ICMPv6 too.
func (p Protocol) known() (number int, ok bool) {
	if i := slices.Index([]Protocol{"icmp", "tcp", "udp"}, p); i >= 0 {
		return []int{1, 6, 17}[i], true
	}
	return protocolNumber(string(p))
}
