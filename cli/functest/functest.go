// Package functest runs one packet function by itself, as wasm in an engine and as ebpf in
// the kernel, on the same packets, and compares what both say of them.
package functest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strings"

	"github.com/cilium/ebpf"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/engine"
	"github.com/onpath/onpath/internal/bpfobject"
	"github.com/onpath/onpath/internal/funcbuild"
)

// Targets are those of functions, in the order of reports.
var Targets = []funcbuild.Target{funcbuild.ToWasm, funcbuild.ToEBPF}

// Function is a function that runs for one target or both.
type Function struct {
	Source string // its C file
	// Lacking says why a target does not run.
	Lacking map[funcbuild.Target]string
	// Edits: it has changed a packet that went on.
	Edits bool
	run   map[funcbuild.Target]runner
}

// runner is the function as one target runs it.
type runner interface {
	Run(ctx context.Context, p engine.TrialPacket) (engine.Outcome, error)
	Counters(ctx context.Context) (map[string]uint64, error)
	Needs() uint32 // bytes of packets that it is shown
	Close() error
}

// Open compiles a C file for both targets and starts what can be run here. What the
// function logs goes to log. It is an error if no target suits.
func Open(ctx context.Context, source string, config map[string]string, log io.Writer) (*Function, error) {
	f := &Function{Source: filepath.Clean(source), Lacking: map[funcbuild.Target]string{}, run: map[funcbuild.Target]runner{}}
	var errs []error
	for _, t := range Targets {
		r, err := open(ctx, source, t, config, log)
		if errors.Is(err, funcbuild.ErrLacking) {
			f.Close()
			return nil, err
		}
		if err != nil {
			f.Lacking[t], _, _ = strings.Cut(err.Error(), "\n") // onpath function build says all
			errs = append(errs, fmt.Errorf("%s: %w", t, err))
			continue
		}
		f.run[t] = r
	}
	if len(f.run) == 0 {
		return nil, errors.Join(funcbuild.Once(errs)...)
	}
	return f, nil
}

func open(ctx context.Context, source string, t funcbuild.Target, config map[string]string, log io.Writer) (runner, error) {
	code, err := funcbuild.Compile(ctx, source, t)
	if err != nil {
		return nil, err
	}
	if t == funcbuild.ToWasm {
		return engine.NewTrial(ctx, onpath.WasmModule{Name: "trial", Code: code, Config: config}, log)
	}
	return openObject(code, config)
}

// Close ends what runs.
func (f *Function) Close() {
	for _, r := range f.run {
		_ = r.Close()
	}
}

// Runs reports whether the function runs for a target.
func (f *Function) Runs(t funcbuild.Target) bool { return f.run[t] != nil }

// Give gives a packet to all targets. It is an error if they do not agree, or one fails.
func (f *Function) Give(ctx context.Context, p engine.TrialPacket) (o engine.Outcome, err error) {
	first := true
	for _, t := range Targets {
		r := f.run[t]
		if r == nil {
			continue
		}
		this, err := r.Run(ctx, p)
		switch {
		case err != nil:
			return this, fmt.Errorf("%s: %w", t, err)
		case first:
			o, first = this, false
		default:
			if err := differ(o, this); err != nil {
				return o, err
			}
		}
	}
	f.Edits = f.Edits || !bytes.HasPrefix(p.IP, o.Packet)
	return o, nil
}

// disagreement is what the targets do not agree on.
type disagreement string

func (d disagreement) Error() string { return string(d) }

// differ says how the outcomes of the two targets differ.
func differ(wasm, ebpf engine.Outcome) error {
	switch {
	case wasm.Verdict != ebpf.Verdict || wasm.Reason != ebpf.Reason:
		return disagreement(fmt.Sprintf("wasm says %s, ebpf %s", verdict(wasm), verdict(ebpf)))
	case !bytes.Equal(wasm.Packet, ebpf.Packet):
		return disagreement(fmt.Sprintf("wasm makes of it\n    %x\n  ebpf\n    %x", wasm.Packet, ebpf.Packet))
	}
	return nil
}

var verdicts = []string{"next", "drop", "answer", "redirect"}

func verdict(o engine.Outcome) string {
	name := verdictName(o)
	if o.Verdict == 0 {
		return name
	}
	return fmt.Sprintf("%s with reason %d", name, o.Reason)
}

func verdictName(o engine.Outcome) string {
	if int(o.Verdict) < len(verdicts) {
		return verdicts[o.Verdict]
	}
	return fmt.Sprintf("verdict %d, which is none", o.Verdict)
}

// Counters are the function's. It is an error if the targets do not agree.
func (f *Function) Counters(ctx context.Context) (all map[string]uint64, err error) {
	for _, t := range Targets {
		r := f.run[t]
		if r == nil {
			continue
		}
		this, err := r.Counters(ctx)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", t, err)
		}
		if all != nil && !maps.Equal(all, this) {
			return all, fmt.Errorf("wasm counts %v, ebpf %v", all, this)
		}
		all = this
	}
	return all, nil
}

// object is the function in the kernel.
type object struct {
	o      *bpfobject.Object
	tables map[string]*ebpf.Map
	trial  *bpfobject.Trial
}

func openObject(code []byte, config map[string]string) (*object, error) {
	o, err := bpfobject.Parse(code)
	if err != nil {
		return nil, err
	}
	if os.Getuid() != 0 {
		return nil, onpath.Errorf(onpath.CodeUnsupported, "the kernel runs it for root alone; run this as root")
	}
	f := &object{o: o}
	if f.tables, err = o.NewTables(); err != nil {
		return nil, err
	}
	if err = o.Configure(f.tables, config); err == nil {
		f.trial, err = o.Load(f.tables)
	}
	if err != nil {
		bpfobject.CloseTables(f.tables)
		return nil, err
	}
	return f, nil
}

func (f *object) Run(_ context.Context, p engine.TrialPacket) (engine.Outcome, error) {
	b := p.Describe(f.o.Needs)
	if b == nil {
		return engine.Outcome{}, fmt.Errorf("it is no IP packet")
	}
	v, after, err := f.trial.Run(b[:bpfobject.PacketSize])
	if err != nil {
		return engine.Outcome{}, err
	}
	return p.Carry(byte(v), after), nil
}

func (f *object) Needs() uint32 { return f.o.Needs }

func (f *object) Counters(context.Context) (map[string]uint64, error) {
	c, err := f.o.ReadCounters(f.tables)
	if c == nil {
		c = map[string]uint64{}
	}
	return c, err
}

func (f *object) Close() error {
	f.trial.Close()
	bpfobject.CloseTables(f.tables)
	return nil
}
