package onpath

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"time"
	"unicode/utf8"
)

// EBPFFunction runs in the kernel, inline on the path.
const EBPFFunction FunctionKind = "ebpf"

// EBPFSpec says which packet function to run in the kernel, inline on the path.
type EBPFSpec struct {
	// Object is the name of a function that comes with onpath (docs/functions.md), or
	// a compiled object file (./x.o) that the client reads and sends as Code.
	Object string `json:"object"`
	// Code is the object file, at most MaxObjectBytes; absent for those that
	// come with onpath.
	Code ObjectCode `json:"code,omitempty"`
	// Config is what the function declares that it can be told, by name; the
	// values of a deployment's env win over it. A change reaches a running
	// function at once and touches no flow.
	Config Env `json:"config,omitempty"`
	// Files are configuration that is better written in a file of its own, by
	// the names that the function declares; those of a deployment win.
	Files map[string]File `json:"files,omitempty"`
	// Budget is the time that one packet may take, measured on samples; a function
	// that stays above it under load leaves the path like a failed instance.
	// Default DefaultBudget.
	Budget Duration `json:"budget,omitempty"`
}

func (e *EBPFSpec) traits() FunctionTraits {
	t := FunctionTraits{
		Runs: e.Object, Inline: true, Attach: Routed, Addresses: AddressesNone,
		KernelCode: len(e.Code) > 0, Budget: e.Budget,
	}
	byDefault(&t.Budget, DefaultBudget)
	return t
}

func (e *EBPFSpec) brings(at string) brought {
	return brought{
		Files: []broughtFiles{{at + ".files", e.Files, true}},
		Objects: []BroughtObject{{
			Field: at + ".object", Name: &e.Object, Code: &e.Code, Most: MaxObjectBytes,
			Remedy: objectTooLarge,
		}},
	}
}

func (e *EBPFSpec) complete(env Env, files map[string]File) {
	e.Config, e.Files = merged(e.Config, env), merged(e.Files, files)
}

func (e *EBPFSpec) values(at string) map[string]Env { return map[string]Env{at + ".config": e.Config} }

func (e *EBPFSpec) shape(function string, _ Health) any {
	return struct {
		Function, Object string
		Code             ObjectCode
	}{function, e.Object, e.Code}
}

func (e *EBPFSpec) fix() { *e = EBPFSpec{Object: e.Object, Code: e.Code} }

func (e *EBPFSpec) told(*FunctionSpec) string {
	h := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(e.Config)) {
		fmt.Fprintf(h, "config %q %q\n", name, e.Config[name])
	}
	for _, name := range slices.Sorted(maps.Keys(e.Files)) {
		content := e.Files[name].Content
		if IsPackedList(content) { // to quote it takes longer than all else
			sum := sha256.Sum256([]byte(content))
			content = string(sum[:])
		}
		fmt.Fprintf(h, "file %q %q\n", name, content)
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}

// Bounds of ebpf functions.
const (
	MaxObjectBytes = 256 << 10 // of one object file
	MaxBudget      = Duration(100 * time.Microsecond)
	minBudget      = Duration(50 * time.Nanosecond)
)

const objectTooLarge = "strip it (llvm-strip -g), and declare large tables as maps"

// validate checks what can be said of an object without reading it; a FunctionChecker
// reads it.
func (e *EBPFSpec) validate(v *validation, at string, s *FunctionSpec) {
	switch {
	case e.Object == "":
		v.add(at+".object", "write ./FILE.o, or the name of a function that comes with onpath", "is missing")
	case len(e.Code) > MaxObjectBytes:
		v.add(at+".code", objectTooLarge, "the object has %d bytes; at most %d", len(e.Code), MaxObjectBytes)
	case len(e.Code) == 0 && LocalImage(e.Object):
		v.add(at+".object", "use onpath apply, or send what is in it as code",
			"%s lies on the client, which has to read it", quote(e.Object))
	default:
		v.text(at+".object", e.Object, 512)
	}
	v.env(at+".config", e.Config)
	v.configFiles(at+".files", e.Files)
	byDefault(&e.Budget, DefaultBudget)
	quantity(v, at+".budget", e.Budget, minBudget, MaxBudget)
	v.inline(s)
}

// configFiles checks files that are named, not placed.
func (v *validation) configFiles(at string, files map[string]File) {
	total := 0
	for _, name := range sortedKeys(files) {
		f := files[name]
		field := key(at, name)
		if len(name) > 256 || !envName.MatchString(name) {
			v.add(field, "", "%s is not the name of a configuration", quote(name))
		}
		if f.FromFile != "" && f.Content != "" {
			v.add(field, "keep one of them", "has both content and fromFile")
		} else if f.FromFile != "" {
			v.add(field+".fromFile", "use onpath apply, or send the text as content",
				"%s lies on the client, which has to read it", quote(f.FromFile))
		}
		if f.Mode != 0 {
			v.add(field+".mode", "take it out", "an ebpf function has no files with a mode")
		}
		if !utf8.ValidString(f.Content) {
			v.add(field+".content", "save it as UTF-8 text", "is not text")
		}
		if IsPackedList(f.Content) && len(f.Content) <= MaxListPacked {
			continue // who is told reads it
		}
		total += len(f.Content)
	}
	if total > MaxFileBytes {
		v.add(at, "", "the files have %d bytes together; at most %d", total, MaxFileBytes)
	}
}

// inline refuses what an ebpf function cannot have.
func (v *validation) inline(s *FunctionSpec) {
	if s.Health.TCP != 0 || len(s.Health.Exec) > 0 {
		v.add("spec.health", "take it out", "an ebpf function has no process to probe; its run time is measured (spec.ebpf.budget)")
	}
	if s.State == StateTerminates {
		v.add("spec.state", "write none or flow", "an ebpf function sees packets one by one and cannot end TCP itself")
	}
	if s.Packets == PacketsOriginate {
		v.add("spec.packets", "write keep or rewrite", "an ebpf function sends no packets of its own")
	}
}
