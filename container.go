package onpath

import (
	"regexp"
	"strings"
)

// ContainerFunction runs an unmodified Linux program in a container.
const ContainerFunction FunctionKind = "container"

// ContainerSpec says how to run an unmodified Linux program.
type ContainerSpec struct {
	// Image is a local OCI archive or layout (apply pushes it to the server), a
	// registry reference, or "host": the node's root file system, read-only
	// under an overlay. After onpath apply a reference has a digest, beside its tag
	// if it has one, unless the registry did not answer; apply then says so.
	Image      string   `json:"image"`
	Command    []string `json:"command,omitempty"` // default: the image's
	Env        Env      `json:"env,omitempty"`
	WorkingDir string   `json:"workingDir,omitempty"`
	// Files are written into the container before it starts; keys are absolute paths.
	Files map[string]File `json:"files,omitempty"`
	// Secrets are files in /run/secrets, in memory alone, by their names: SECRET/KEY of the
	// tenant whose instance it is.
	Secrets map[string]SecretKey `json:"secrets,omitempty"`
	// Devices: "tun".
	Devices []string          `json:"devices,omitempty"`
	Attach  ContainerAttach   `json:"attach,omitempty"`
	Caps    []string          `json:"capabilities,omitempty"` // NET_ADMIN, NET_RAW, …
	Sysctls map[string]string `json:"sysctls,omitempty"`      // net.* only, in the instance's namespace
	// Addresses: none | private | pool. Default private, none if bridged.
	Addresses Addressing `json:"addresses,omitempty"`
	// Outbound: none | nat. What becomes of packets from a private own address
	// that no chain selects. Default none.
	Outbound Outbound `json:"outbound,omitempty"`
}

// ContainerAttach says how packets get into a container.
type ContainerAttach string

// The two ways.
const (
	Routed  ContainerAttach = "routed"  // one vport; the container is an IP hop
	Bridged ContainerAttach = "bridged" // two vports; the container is a bump in the wire
)

// addresses is the default: a bridged container is no IP hop and has none.
func (a ContainerAttach) addresses() Addressing {
	if a == Bridged {
		return AddressesNone
	}
	return AddressesPrivate
}

// Addressing says which own address an instance has.
type Addressing string

// The kinds of own address.
const (
	AddressesNone    Addressing = "none"
	AddressesPrivate Addressing = "private"
	AddressesPool    Addressing = "pool"
)

// Outbound says what becomes of an instance's own traffic.
type Outbound string

// The two outbound policies.
const (
	OutboundNone Outbound = "none"
	OutboundNAT  Outbound = "nat"
)

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
	"IPC_OWNER": false, "KILL": true, "LEASE": false, "MKNOD": false, "NET_ADMIN": true, "NET_BIND_SERVICE": true,
	"NET_BROADCAST": true, "NET_RAW": true, "SETFCAP": true, "SETGID": true, "SETPCAP": true, "SETUID": true,
	"SYS_CHROOT": true, "SYS_NICE": true, "SYS_PTRACE": true, "SYS_RESOURCE": false, "SYS_TTY_CONFIG": false,

	"AUDIT_CONTROL": false, "AUDIT_READ": false, "BLOCK_SUSPEND": false, "BPF": false, "CHECKPOINT_RESTORE": false,
	"DAC_READ_SEARCH": false, "LINUX_IMMUTABLE": false, "MAC_ADMIN": false, "MAC_OVERRIDE": false, "PERFMON": false,
	"SYS_ADMIN": false, "SYS_BOOT": false, "SYS_MODULE": false, "SYS_PACCT": false, "SYS_RAWIO": false,
	"SYS_TIME": false, "SYSLOG": false, "WAKE_ALARM": false,
}

var (
	// sysctlName leaves out "..": the name becomes a path below /proc/sys.
	sysctlName   = regexp.MustCompile(`^net(\.[A-Za-z0-9_-]+)+$`)
	registryName = regexp.MustCompile(`^[a-z0-9.-]+(:[0-9]+)?(/[a-z0-9._/-]+)?$`)
	// imageRef is [host[:port]/]path[:tag][@digest] of the distribution spec.
	imageRef = regexp.MustCompile(`^([A-Za-z0-9.-]+(:[0-9]+)?/)?` + imageName + `(/` + imageName +
		`)*(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(@sha256:[0-9a-f]{64})?$`)
)

// imageName is a component of an image's path.
const imageName = `[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*`

func (c *ContainerSpec) traits() FunctionTraits {
	t := FunctionTraits{
		Runs: c.Image, Attach: c.Attach, Addresses: c.Addresses, Outbound: c.Outbound, Sysctls: c.Sysctls,
		Informed: true, Programs: true, Env: c.Env, Capabilities: c.Caps, HostImage: c.Image == HostImage,
		Secrets: c.Secrets,
	}
	byDefault(&t.Attach, Routed)
	byDefault(&t.Addresses, t.Attach.addresses())
	return t
}

func (c *ContainerSpec) brings(at string) brought {
	return brought{
		Files:  []broughtFiles{{at + ".files", c.Files, false}},
		Images: []broughtImage{{at + ".image", &c.Image}},
	}
}

func (c *ContainerSpec) complete(env Env, files map[string]File) {
	c.Env, c.Files = merged(c.Env, env), merged(c.Files, files)
}

func (c *ContainerSpec) values(at string) map[string]Env { return map[string]Env{at + ".env": c.Env} }

// shape includes what a probe asks: that may be wrong, and by it all that serve would be
// out of service at once.
func (c *ContainerSpec) shape(function string, h Health) any {
	var probe *Health
	if h.TCP != 0 || len(h.Exec) > 0 {
		probe = &Health{TCP: h.TCP, Exec: h.Exec}
	}
	return struct {
		Function  string
		Container *ContainerSpec
		Probe     *Health `json:",omitempty"`
	}{function, c, probe}
}

func (c *ContainerSpec) fix() {}

func (c *ContainerSpec) told(*FunctionSpec) string { return "" }

func (c *ContainerSpec) validate(v *validation, at string, _ *FunctionSpec) {
	v.image(at+".image", c.Image)
	v.strings(at+".command", c.Command)
	if c.Image == HostImage && len(c.Command) == 0 {
		v.add(at+".command", "name a program of the nodes, such as [sleep, infinity]",
			"is missing: a node's own root file system does not say what to run")
	}
	v.env(at+".env", c.Env)
	if c.WorkingDir != "" {
		v.absolute(at+".workingDir", c.WorkingDir)
	}
	v.files(at+".files", c.Files)
	v.secrets(at+".secrets", c.Secrets)
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
	known := enum(v, at+".addresses", &c.Addresses, c.Attach.addresses(), AddressesNone, AddressesPrivate, AddressesPool)
	if known && c.Attach == Bridged && c.Addresses != AddressesNone {
		v.add(at+".addresses", "take it out, or write attach: routed",
			"a bridged container is a bump in the wire and has no address of its own")
	}
	known = enum(v, at+".outbound", &c.Outbound, OutboundNone, OutboundNone, OutboundNAT) && known
	if known && c.Outbound == OutboundNAT && c.Addresses != AddressesPrivate {
		v.add(at+".outbound", "write addresses: private, or take outbound out",
			"nat translates private addresses; this container has addresses: %s", c.Addresses)
	}
}

func (v *validation) capabilities(at string, c *ContainerSpec) {
	c.Caps = v.allowedCapabilities(at, c.Caps)
}

// allowedCapabilities checks a set of capabilities and puts it into order.
func (v *validation) allowedCapabilities(at string, list []string) []string {
	known := sortedKeys(capabilities)
	for i, given := range list {
		name := strings.TrimPrefix(strings.ToUpper(given), "CAP_")
		allowed, ok := capabilities[name]
		switch {
		case !ok:
			v.add(index(at, i), meant(name, known), "%s is not a capability of Linux", quote(given))
		case !allowed:
			v.add(index(at, i), "take it out", "%s would let the instance out of its isolation from the node", name)
		}
		list[i] = name
	}
	return sorted(list, strings.Compare)
}

func (v *validation) sysctls(at string, sysctls map[string]string) {
	for _, k := range sortedKeys(sysctls) {
		if !sysctlName.MatchString(k) {
			v.add(key(at, k), "write one that begins with net. and has dots between its parts",
				"%s is not a setting of the instance's network namespace", quote(k))
		}
		if s := sysctls[k]; s == "" || len(s) > 256 || strings.ContainsAny(s, "\n\x00") {
			v.add(key(at, k), "", "%s is not the value of a kernel setting", quote(s))
		}
	}
}
