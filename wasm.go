package onpath

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// WasmFunction runs as WebAssembly in a process of the instance's own.
const WasmFunction FunctionKind = "wasm"

// WasmSpec says which packet modules to run, as WebAssembly in a process of the
// instance's own. Packets visit them in their order.
type WasmSpec struct {
	Modules []WasmModule `json:"modules"`
	// Ports are those at which modules serve, whatever the address: tcp/80, udp/53.
	Ports []ServedPort `json:"ports,omitempty"`
	// Emit bounds what modules send by themselves.
	Emit Emit `json:"emit,omitzero"`
	// Outbound: none | nat. What becomes of datagrams that modules send from the instance's
	// own address. Default none.
	Outbound Outbound `json:"outbound,omitempty"`
	// Disk is what the blobs of modules may have on the node's disk, all together. Default
	// DefaultModuleDisk; the operator may give less (moduleDisk in onpath.yaml).
	Disk Size `json:"disk,omitempty"`
}

// WasmModule is one module of a function.
type WasmModule struct {
	// Name is unique in the function.
	Name string `json:"name"`
	// Module is a compiled module (./x.wasm) that the client reads and sends as Code.
	Module string     `json:"module"`
	Code   ObjectCode `json:"code,omitempty"`
	// Select limits what the module is given, as seen in the chain's direction. Default:
	// everything.
	Select []Selector `json:"select,omitempty"`
	// Ports are those at which this module serves, and no other, beside those of the function.
	Ports []ServedPort `json:"ports,omitempty"`
	// Config is what the module is told, by name. A change reaches it while it runs.
	Config Env `json:"config,omitempty"`
	// Fetch are the hosts from which the module may fetch by HTTP: HOST, HOST:PORT, or $NAME for
	// that of the URL or host which NAME of the module's configuration says.
	Fetch []string `json:"fetch,omitempty"`
	// Budget is the mean time that one packet may take, measured on batches. Default
	// DefaultModuleBudget.
	Budget Duration `json:"budget,omitempty"`
	// None is what becomes of the module's packets while it is out of service: drop |
	// bypass. Default drop.
	None None `json:"none,omitempty"`
}

// DefaultModuleBudget is the mean time that a packet may take in a module.
const DefaultModuleBudget = Duration(20 * time.Microsecond)

// DefaultModuleDisk is what the blobs of an instance's modules may have.
const DefaultModuleDisk = Size(64 << 20)

// Emit bounds what an instance's modules send by themselves.
type Emit struct {
	Packets int64 `json:"packets,omitempty"` // a second; default 1000
	Rate    Rate  `json:"rate,omitempty"`    // default 10Mbit
}

// Bounds of wasm functions.
const (
	MaxModuleBytes  = 256 << 10 // of one module
	MaxModules      = 16
	MaxServedPorts  = 16
	MaxModuleBudget = Duration(time.Millisecond)
	MaxModuleDisk   = Size(4 << 30) // of an instance
	maxFetchHosts   = 16
	maxHostName     = 255
	maxEmitPackets  = 1_000_000
	maxEmitRate     = Rate(10_000_000_000)
)

const moduleTooLarge = "build it with -O2 and without debugging information (onpath function build does)"

func (w *WasmSpec) traits() FunctionTraits {
	t := FunctionTraits{Attach: Routed, Addresses: AddressesPrivate, Outbound: w.Outbound, WholeFrames: true,
		Portless: len(w.Served()) == 0}
	var names []string
	for _, m := range w.Modules {
		names = append(names, m.Name)
	}
	t.Runs = strings.Join(names, ", ")
	return t
}

func (w *WasmSpec) brings(at string) (b brought) {
	for i := range w.Modules {
		m := &w.Modules[i]
		b.Objects = append(b.Objects, BroughtObject{
			Field: index(at+".modules", i) + ".module", Name: &m.Module, Code: &m.Code,
			Most: MaxModuleBytes, Remedy: moduleTooLarge,
		})
	}
	return b
}

func (w *WasmSpec) complete(env Env, _ map[string]File) {
	w.Modules = slices.Clone(w.Modules)
	for i := range w.Modules {
		w.Modules[i].Config = merged(w.Modules[i].Config, env)
	}
}

func (w *WasmSpec) values(at string) map[string]Env {
	all := map[string]Env{}
	for i, m := range w.Modules {
		all[index(at+".modules", i)+".config"] = m.Config
	}
	return all
}

// shape leaves the modules out: a running instance takes up another list of them.
func (w *WasmSpec) shape(function string, _ Health) any {
	return struct {
		Function string
		Ports    []ServedPort
		Outbound Outbound
		Disk     Size
	}{function, w.Ports, w.Outbound, w.Disk}
}

func (w *WasmSpec) fix() { *w = WasmSpec{Ports: w.Ports, Outbound: w.Outbound, Disk: w.Disk} }

func (w *WasmSpec) told(s *FunctionSpec) string {
	told := struct {
		WasmSpec
		Packets PacketRights `json:"packets,omitempty"`
	}{WasmSpec{Modules: w.Modules, Emit: w.Emit}, s.Packets}
	if told.Packets == PacketsKeep {
		told.Packets = ""
	}
	b, err := json.Marshal(told)
	if err != nil {
		panic("onpath: told: " + err.Error()) // all of it marshals
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:8])
}

// validate checks what can be said of modules without reading them.
func (w *WasmSpec) validate(v *validation, at string, s *FunctionSpec) {
	v.number(at+".modules", len(w.Modules), 1, MaxModules)
	names := map[string]bool{}
	for i := range w.Modules {
		field := index(at+".modules", i)
		v.module(field, &w.Modules[i])
		if name := w.Modules[i].Name; names[name] {
			v.add(field+".name", "give it another name", "another module is named %s", quote(name))
		}
		names[w.Modules[i].Name] = true
	}
	v.served(at+".ports", w.Served())
	byDefault(&w.Emit.Packets, DefaultEmit.Packets)
	byDefault(&w.Emit.Rate, DefaultEmit.Rate)
	v.number(at+".emit.packets", int(w.Emit.Packets), 1, maxEmitPackets)
	quantity(v, at+".emit.rate", w.Emit.Rate, 1000, maxEmitRate)
	if w.Disk != 0 {
		quantity(v, at+".disk", w.Disk, 1<<20, MaxModuleDisk)
	}
	enum(v, at+".outbound", &w.Outbound, OutboundNone, OutboundNone, OutboundNAT)
	if len(s.Health.Exec) > 0 {
		v.add("spec.health.exec", "write tcp: PORT, or take it out", "a wasm function has no programs to run")
	}
}

func (v *validation) module(at string, m *WasmModule) {
	v.name(at+".name", m.Name)
	switch {
	case m.Module == "":
		v.add(at+".module", "write ./FILE.wasm", "is missing")
	case len(m.Code) > MaxModuleBytes:
		v.add(at+".code", moduleTooLarge, "the module has %d bytes; at most %d", len(m.Code), MaxModuleBytes)
	case len(m.Code) > 0:
		v.text(at+".module", m.Module, 512)
	case LocalImage(m.Module):
		v.add(at+".module", "use onpath apply, or send what is in it as code",
			"%s lies on the client, which has to read it", quote(m.Module))
	default:
		v.add(at+".module", "write ./FILE.wasm for a file beside this one", "%s is not a module that comes with onpath", quote(m.Module))
	}
	if len(m.Select) > maxSelectors {
		v.add(at+".select", "", "%d entries are too many; at most %d", len(m.Select), maxSelectors)
		return
	}
	for i := range m.Select {
		v.selector(index(at+".select", i), &m.Select[i], noFamily, &ChainSpec{})
	}
	v.env(at+".config", m.Config)
	checkFetchHosts(v, at+".fetch", m.Fetch)
	byDefault(&m.Budget, DefaultModuleBudget)
	quantity(v, at+".budget", m.Budget, minBudget, MaxModuleBudget)
	enum(v, at+".none", &m.None, NoneDrop, NoneDrop, NoneBypass)
}

func checkFetchHosts(v *validation, at string, hosts []string) {
	if len(hosts) > maxFetchHosts {
		v.add(at, "", "%d hosts are too many; at most %d", len(hosts), maxFetchHosts)
		return
	}
	for i, h := range hosts {
		if _, ok := FetchHost(h); !ok && !(len(h) > 1 && h[0] == '$') {
			v.add(index(at, i), "write example.com, 192.0.2.1:8080, or $origin for what config says of origin",
				"%s is no host to fetch from", quote(h))
		}
	}
}

var hostName = regexp.MustCompile(`^[a-z0-9_]([-a-z0-9_.]*[a-z0-9_])?$`)

// MayFetch reports whether the module may fetch from a host, which is written as FetchHost does.
func (m *WasmModule) MayFetch(host string) bool {
	return slices.ContainsFunc(m.Fetch, func(h string) bool {
		if name, ok := strings.CutPrefix(h, "$"); ok {
			h, _, _ = strings.Cut(strings.TrimPrefix(m.Config[name], "http://"), "/")
		}
		named, ok := FetchHost(h)
		return ok && named == host
	})
}

// FetchHost is HOST or HOST:PORT as HOST:PORT, in small letters; without a port it is that of HTTP.
func FetchHost(text string) (string, bool) {
	text = strings.ToLower(text)
	if a, err := netip.ParseAddr(strings.Trim(text, "[]")); err == nil {
		return netip.AddrPortFrom(a, 80).String(), a.Zone() == ""
	}
	if a, err := netip.ParseAddrPort(text); err == nil {
		return a.String(), a.Port() != 0 && a.Addr().Zone() == ""
	}
	host, port, found := strings.Cut(text, ":")
	if !found {
		port = "80"
	}
	n, err := strconv.ParseUint(port, 10, 16)
	return host + ":" + strconv.FormatUint(n, 10), err == nil && n != 0 && len(host) <= maxHostName && hostName.MatchString(host)
}

func (v *validation) served(at string, ports []ServedPort) {
	if len(ports) > MaxServedPorts {
		v.add(at, "", "%d ports are too many; at most %d", len(ports), MaxServedPorts)
	}
	seen := map[ServedPort]bool{}
	for i, p := range ports {
		if seen[p] {
			v.add(index(at, i), "", "%s is said twice", p)
		}
		seen[p] = true
	}
}

// DefaultEmit is what modules may send where a function says nothing.
var DefaultEmit = Emit{Packets: 1000, Rate: 10_000_000}

// ServedPort is a port at which modules serve: tcp/80.
type ServedPort struct {
	Protocol Protocol // tcp or udp
	Port     uint16
}

// Served are the ports of the function and of its modules.
func (w *WasmSpec) Served() []ServedPort {
	out := slices.Clip(w.Ports)
	for i := range w.Modules {
		out = append(out, w.Modules[i].Ports...)
	}
	return out
}

// String is the port as it is written.
func (p ServedPort) String() string { return fmt.Sprintf("%s/%d", p.Protocol, p.Port) }

// MarshalText implements encoding.TextMarshaler.
func (p ServedPort) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (p *ServedPort) UnmarshalText(b []byte) error {
	protocol, port, _ := strings.Cut(string(b), "/")
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 || protocol != "tcp" && protocol != "udp" {
		return fmt.Errorf("%q is no port to serve at; write tcp/80 or udp/5060", b)
	}
	*p = ServedPort{Protocol: Protocol(protocol), Port: uint16(n)}
	return nil
}

// SHA256 is the hash of the module's code, hexadecimal.
func (m *WasmModule) SHA256() string {
	sum := sha256.Sum256(m.Code)
	return hex.EncodeToString(sum[:])
}
