package onpath

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"strings"
)

// FunctionKind is how a function is run. It is also the name of the field of
// FunctionSpec that says what to run.
type FunctionKind string

// functionKinds is the table of all kinds, a line each. A kind is a field of
// FunctionSpec and a file here, which implements kindSpec; a driver in runtime/; and a
// line in cli/kinds.go. Nothing else may ask which kind a function is: what
// depends on it is a trait.
var functionKinds = []functionKind{
	kindOf(ContainerFunction, "{image: …}", func(s *FunctionSpec) **ContainerSpec { return &s.Container }),
	kindOf(EBPFFunction, "{object: …}", func(s *FunctionSpec) **EBPFSpec { return &s.EBPF }),
	kindOf(WasmFunction, "{modules: […]}", func(s *FunctionSpec) **WasmSpec { return &s.Wasm }),
	kindOf(RelayFunction, "{}", func(s *FunctionSpec) **RelaySpec { return &s.Relay }),
}

// kindSpec is a kind's field of FunctionSpec, as all other code sees it.
type kindSpec interface {
	// validate checks the field, which stands at that path, and what the function says
	// beside it; it fills in defaults.
	validate(v *validation, at string, s *FunctionSpec)
	traits() FunctionTraits
	// brings names what the client reads, or pushes, before the server can take it.
	brings(at string) brought
	// complete adds what a deployment says, which wins. The maps of the receiver are shared.
	complete(env Env, files map[string]File)
	// values are what the function itself is told, by the field where it stands.
	values(at string) map[string]Env
	// shape stands for all that needs a new instance when it changes.
	shape(function string, h Health) any
	// fix removes what a running instance takes up when it changes.
	fix()
	// told stands for what a running instance is told when it changes; "" if it takes up
	// nothing. s is the function that the field is of.
	told(s *FunctionSpec) string
}

// FunctionTraits are what depends on a function's kind.
type FunctionTraits struct {
	Kind FunctionKind
	Runs string // for display: an image, the name of an object
	// Inline: the data path runs it. It has neither devices, nor addresses, nor a process.
	Inline bool
	// Attach is routed also for what is inline.
	Attach    ContainerAttach
	Addresses Addressing
	Outbound  Outbound
	Sysctls   map[string]string // of its network namespace
	// Informed: a file and environment variables tell its process how long flows may rest.
	Informed bool
	Env      Env // of its process
	// Programs: commands can be run beside its process, in its namespace.
	Programs bool
	// Capabilities of Linux that its process asks for.
	Capabilities []string
	// Relays: the planner tells each instance what it relays.
	Relays bool
	// Secrets are the files of its process that are secrets.
	Secrets map[string]SecretKey
	// Portless: it serves no port, whatever its addresses.
	Portless bool
	// HostImage: it runs what the node's own root file system has.
	HostImage bool
	// WholeFrames: its process takes frames as they are on a wire, and none longer than
	// Ethernet's; the device's checksums and segments are the kernel's business before.
	WholeFrames bool
	// KernelCode: it brings code of its own that runs in the kernel.
	KernelCode bool
	// Budget is the time that one packet may take, which is measured. 0: Health is probed.
	Budget Duration
}

// brought is what a function's specification names and the client has. Fields are paths
// in the Function.
type brought struct {
	Files   []broughtFiles
	Objects []BroughtObject
	Images  []broughtImage
}

// broughtFiles are configuration files, of text.
type broughtFiles struct {
	Field string
	Files map[string]File
	Lists bool // a large one may be a list of addresses
}

// BroughtObject is a compiled file. Name is its path until the client has read it, which
// writes its base name there, and the content into Code.
type BroughtObject struct {
	Field  string
	Name   *string
	Code   *ObjectCode
	Most   int    // bytes
	Remedy string // where it has more
}

// broughtImage is a container image. Image is its path until the client has pushed it,
// which writes the reference there.
type broughtImage struct {
	Field string
	Image *string
}

// functionKind is a line of the table.
type functionKind struct {
	name    FunctionKind
	example string                       // of its field
	of      func(*FunctionSpec) kindSpec // nil: the function is of another kind
	// own puts a copy of the field into a specification, and gives it.
	own func(*FunctionSpec) kindSpec
}

func kindOf[T any, P interface {
	*T
	kindSpec
}](name FunctionKind, example string, field func(*FunctionSpec) *P) functionKind {
	return functionKind{
		name: name, example: example,
		of: func(s *FunctionSpec) kindSpec {
			if p := *field(s); p != nil {
				return p
			}
			return nil
		},
		own: func(s *FunctionSpec) kindSpec {
			c := *(*T)(*field(s))
			*field(s) = &c
			return *field(s)
		},
	}
}

// kind is the line of the table that the function is of.
func (s *FunctionSpec) kind() (k functionKind, spec kindSpec) {
	for _, k := range functionKinds {
		if spec := k.of(s); spec != nil {
			return k, spec
		}
	}
	return k, nil
}

// Kind is "" if this version does not know the function's kind.
func (s *FunctionSpec) Kind() FunctionKind {
	k, _ := s.kind()
	return k.name
}

// Traits are those of the function's kind.
func (s *FunctionSpec) Traits() FunctionTraits {
	k, spec := s.kind()
	if spec == nil {
		return FunctionTraits{Attach: Routed, Addresses: AddressesPrivate}
	}
	t := spec.traits()
	t.Kind = k.name
	return t
}

// Inline reports whether the data path runs the function.
func (s *FunctionSpec) Inline() bool { return s.Traits().Inline }

// Brings names what the client reads, or pushes. Who changes what it points at changes s.
func (s *FunctionSpec) Brings() brought {
	k, spec := s.kind()
	if spec == nil {
		return brought{}
	}
	return spec.brings("spec." + string(k.name))
}

// With is the function with what a deployment says, which wins.
func (s FunctionSpec) With(env Env, files map[string]File) FunctionSpec {
	if k, spec := s.kind(); spec != nil {
		k.own(&s).complete(merged(s.defaults(), env), files)
	}
	return s
}

// Shape stands for all that needs a new instance when it changes; function is the
// function's tenant/name.
func (s *FunctionSpec) Shape(function string) string {
	_, spec := s.kind()
	if spec == nil {
		return ""
	}
	b, err := json.Marshal(spec.shape(function, s.Health))
	if err != nil {
		panic("onpath: shape: " + err.Error()) // all of it marshals
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:8])
}

// Fixed is the function without what a running instance takes up.
func (s FunctionSpec) Fixed() FunctionSpec {
	s.Resources, s.Health = Resources{}, Health{}
	s.State, s.Packets, s.Shared = "", "", false
	s.Parameters, s.Metrics, s.Alerts = nil, OwnMetrics{}, nil
	if k, spec := s.kind(); spec != nil {
		k.own(&s).fix()
	}
	return s
}

// Told stands for the configuration that a running instance can be told; "" if it takes
// none.
func (s *FunctionSpec) Told() string {
	if _, spec := s.kind(); spec != nil {
		return spec.told(s)
	}
	return ""
}

// kinds checks that the function is of exactly one kind.
func (v *validation) kinds(s *FunctionSpec) {
	var found, known []string
	for _, k := range functionKinds {
		known = append(known, string(k.name)+": "+k.example)
		if k.of(s) != nil {
			found = append(found, string(k.name))
		}
	}
	switch n := len(found); n {
	case 0:
		v.add("spec", "write "+alternatives(known, "or"), "says nothing about what to run")
	case 1:
		k, spec := s.kind()
		spec.validate(v, "spec."+string(k.name), s)
	case 2:
		v.add("spec", "keep one of them", "has both %s", alternatives(found, "and"))
	default:
		v.add("spec", "keep one of them", "has %s", alternatives(found, "and"))
	}
}

// alternatives is a list in words: a, b or c.
func alternatives(words []string, last string) string {
	n := len(words) - 1
	if n < 1 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:n], ", ") + " " + last + " " + words[n]
}

// merged is base with what over has, which wins; a new map, nil if both are empty.
func merged[M ~map[string]V, V any](base, over M) M {
	if len(base)+len(over) == 0 {
		return nil
	}
	out := maps.Clone(base)
	if out == nil {
		out = M{}
	}
	maps.Copy(out, over)
	return out
}

// FunctionChecker looks into what functions of one kind bring and are told. It runs
// nothing and needs no rights: a server asks it before it takes an object.
type FunctionChecker interface {
	// Inspect reads the code that the function brings, and says what it is.
	Inspect(s *FunctionSpec) (FunctionStatus, error)
	// CheckConfig finds what is wrong with each value that the function is told, by
	// itself; and, if s is whole, so that no deployment adds to it, with all together.
	// An error's Field is a path within the kind's field of FunctionSpec.
	CheckConfig(s *FunctionSpec, whole bool) error
}
