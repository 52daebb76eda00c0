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

	defaultHealthEvery    = Duration(time.Second)
	defaultHealthFailures = 3
	defaultHealthStart    = Duration(time.Minute)

	day = Duration(24 * time.Hour)
)

var (
	envName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.-]*$`)
	// sysctlName leaves out "..": the name becomes a path below /proc/sys.
	sysctlName = regexp.MustCompile(`^net(\.[A-Za-z0-9_-]+)+$`)
	// imageRef is [host[:port]/]path[:tag][@digest] of the distribution spec.
	imageRef = regexp.MustCompile(`^([A-Za-z0-9.-]+(:[0-9]+)?/)?` + imageName + `(/` + imageName + `)*(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(@sha256:[0-9a-f]{64})?$`)
)

// imageName is a component of an image's path.
const imageName = `[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*`

// HostImage as ContainerSpec.Image is the node's own root file system.
const HostImage = "host"

// LocalImage reports whether image is a path on the machine of whoever applies
// it: ./x, ../x or /x.
func LocalImage(image string) bool {
	return strings.HasPrefix(image, "./") || strings.HasPrefix(image, "../") || strings.HasPrefix(image, "/")
}

// capabilities are those an instance may have; true means it may, false that it
// would break its isolation from the node.
var capabilities = map[string]bool{
	"AUDIT_WRITE": true, "CHOWN": true, "DAC_OVERRIDE": true, "FOWNER": true, "FSETID": true, "IPC_LOCK": true,
	"IPC_OWNER": true, "KILL": true, "LEASE": true, "MKNOD": true, "NET_ADMIN": true, "NET_BIND_SERVICE": true,
	"NET_BROADCAST": true, "NET_RAW": true, "SETFCAP": true, "SETGID": true, "SETPCAP": true, "SETUID": true,
	"SYS_CHROOT": true, "SYS_NICE": true, "SYS_PTRACE": true, "SYS_RESOURCE": true, "SYS_TTY_CONFIG": true,

	"AUDIT_CONTROL": false, "AUDIT_READ": false, "BLOCK_SUSPEND": false, "BPF": false, "CHECKPOINT_RESTORE": false,
	"DAC_READ_SEARCH": false, "LINUX_IMMUTABLE": false, "MAC_ADMIN": false, "MAC_OVERRIDE": false, "PERFMON": false,
	"SYS_ADMIN": false, "SYS_BOOT": false, "SYS_MODULE": false, "SYS_PACCT": false, "SYS_RAWIO": false,
	"SYS_TIME": false, "SYSLOG": false, "WAKE_ALARM": false,
}

// Validate implements Object.
func (f *Function) Validate() error {
	v := begin(f, &f.TypeMeta)
	s := &f.Spec
	switch {
	case s.Container != nil && s.EBPF != nil:
		v.add("spec", "keep one of them", "has both container and ebpf")
	case s.Container != nil:
		v.container("spec.container", s.Container)
	case s.EBPF != nil:
		v.ebpf("spec.ebpf", s.EBPF)
		v.inline(s)
	default:
		v.add("spec", "write container: {image: …} or ebpf: {object: …}", "says nothing about what to run")
	}
	enum(v, "spec.state", &s.State, StateFlow, StateNone, StateFlow, StateTerminates)
	enum(v, "spec.packets", &s.Packets, PacketsKeep, PacketsKeep, PacketsRewrite, PacketsOriginate)
	byDefault(&s.Resources.CPU, DefaultCPU)
	byDefault(&s.Resources.Memory, DefaultMemory)
	v.resources("spec.resources", s.Resources)
	v.health("spec.health", &s.Health)
	return v.err()
}

func (v *validation) container(at string, c *ContainerSpec) {
	v.image(at+".image", c.Image)
	v.strings(at+".command", c.Command)
	if c.Image == HostImage && len(c.Command) == 0 {
		v.add(at+".command", "name a program of the nodes, such as [sleep, infinity]", "is missing: a node's own root file system does not say what to run")
	}
	v.env(at+".env", c.Env)
	if c.WorkingDir != "" {
		v.absolute(at+".workingDir", c.WorkingDir)
	}
	v.files(at+".files", c.Files)
	for i, d := range c.Devices {
		if d != "tun" {
			v.add(index(at+".devices", i), "write tun", "%s is not a device that an instance can have", quote(d))
		}
	}
	c.Devices = sorted(c.Devices, strings.Compare)
	v.capabilities(at+".capabilities", c)
	v.sysctls(at+".sysctls", c.Sysctls)
	v.addressing(at, c)
}

func (v *validation) image(field, image string) {
	switch {
	case image == "":
		v.add(field, "write ./image.tar, registry/name:tag, or host", "is missing")
	case image == HostImage || (LocalImage(image) && !strings.ContainsRune(image, 0)):
	case len(image) > 512 || !imageRef.MatchString(image):
		remedy := "write ./image.tar, registry/name:tag, or host"
		if strings.HasSuffix(image, ".tar") || strings.HasSuffix(image, ".oci") {
			remedy = "write ./" + image + " for a file beside this one"
		}
		v.add(field, remedy, "%s is not an image", quote(image))
	case !strings.Contains(image, "/"):
		v.add(field, "write docker.io/library/"+image+" if Docker's registry is meant, or ./"+image+" for a file beside this one",
			"%s names no registry, and none is assumed", quote(image))
	}
}

// addressing checks how the container hangs in the network; a bridged one is no
// IP hop, so it has no address there.
func (v *validation) addressing(at string, c *ContainerSpec) {
	enum(v, at+".attach", &c.Attach, Routed, Routed, Bridged)
	own := AddressesPrivate
	if c.Attach == Bridged {
		own = AddressesNone
	}
	known := enum(v, at+".addresses", &c.Addresses, own, AddressesNone, AddressesPrivate, AddressesPool)
	if known && c.Attach == Bridged && c.Addresses != AddressesNone {
		v.add(at+".addresses", "take it out, or write attach: routed", "a bridged container is a bump in the wire and has no address of its own")
	}
	known = enum(v, at+".outbound", &c.Outbound, OutboundNone, OutboundNone, OutboundNAT) && known
	if known && c.Outbound == OutboundNAT && c.Addresses != AddressesPrivate {
		v.add(at+".outbound", "write addresses: private, or take outbound out",
			"nat translates private addresses; this container has addresses: %s", c.Addresses)
	}
}

func (v *validation) capabilities(at string, c *ContainerSpec) {
	known := sortedKeys(capabilities)
	for i, given := range c.Caps {
		name := strings.TrimPrefix(strings.ToUpper(given), "CAP_")
		allowed, ok := capabilities[name]
		switch {
		case !ok:
			v.add(index(at, i), meant(name, known), "%s is not a capability of Linux", quote(given))
		case !allowed:
			v.add(index(at, i), "take it out", "%s would let the instance out of its isolation from the node", name)
		}
		c.Caps[i] = name
	}
	c.Caps = sorted(c.Caps, strings.Compare)
}

func (v *validation) sysctls(at string, sysctls map[string]string) {
	for _, k := range sortedKeys(sysctls) {
		if !sysctlName.MatchString(k) {
			v.add(key(at, k), "write one that begins with net. and has dots between its parts", "%s is not a setting of the instance's network namespace", quote(k))
		}
		if s := sysctls[k]; s == "" || len(s) > 256 || strings.ContainsAny(s, "\n\x00") {
			v.add(key(at, k), "", "%s is not the value of a kernel setting", quote(s))
		}
	}
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
			v.add(field, "", "the root directory is not a file")
		}
		if f.FromFile != "" && f.Content != "" {
			v.add(field, "keep one of them", "has both content and fromFile")
		} else if f.FromFile != "" {
			v.add(field+".fromFile", "use onpath apply, or send the text as content", "%s lies on the client, which has to read it", quote(f.FromFile))
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
	v.place("spec.place", &s.Place)
	v.env("spec.env", s.Env)
	v.files("spec.files", s.Files)
	byDefault(&s.Drain, DefaultDrain)
	quantity(v, "spec.drain", s.Drain, 0, day)
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
