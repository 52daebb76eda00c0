package bpfobject

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"

	"github.com/onpath/onpath"
)

// Code is the function's code with its symbols renamed and its tables put in, ready
// to be appended to a program. The function's own name is then Symbol(prefix).
func (o *Object) Code(prefix string, tables map[string]*ebpf.Map) (asm.Instructions, error) {
	out := slices.Clone(o.code)
	for i := range out {
		ins := out[i]
		ref := ins.Reference()
		if s := ins.Symbol(); s != "" {
			ins = ins.WithSymbol(prefix + s)
		}
		switch {
		case ins.IsFunctionReference():
			ins = ins.WithReference(prefix + ref)
		case ins.IsLoadFromMap():
			m := tables[ref]
			if m == nil {
				return nil, fmt.Errorf("table %s was not made", quoted(ref))
			}
			if err := ins.AssociateMap(m); err != nil {
				return nil, fmt.Errorf("use table %s: %w", quoted(ref), err)
			}
			ins = ins.WithReference("")
		}
		out[i] = ins
	}
	return out, nil
}

// Symbol is the name of a function linked with that prefix.
func Symbol(prefix string) string { return prefix + mainName }

var processed = regexp.MustCompile(`processed (\d+) insns`)

// Trial is a function loaded by itself, outside any path.
type Trial struct {
	// Verified is the number of instructions that the verifier looked at.
	Verified int
	Log      string

	program *ebpf.Program
	shown   *ebpf.Map
}

// Close takes it out of the kernel.
func (t *Trial) Close() {
	t.program.Close()
	t.shown.Close()
}

// Run gives the function one packet, a struct onpath_packet. The answer is its
// verdict, and the struct as the function left it.
func (t *Trial) Run(packet []byte) (verdict int32, after []byte, err error) {
	if len(packet) != PacketSize {
		return 0, nil, fmt.Errorf("a packet's description has %d bytes, and must have %d", len(packet), PacketSize)
	}
	if err := t.shown.Put(uint32(0), packet); err != nil {
		return 0, nil, err
	}
	v, err := t.program.Run(&ebpf.RunOptions{Data: make([]byte, 64)})
	if err != nil {
		return 0, nil, err
	}
	after = make([]byte, PacketSize)
	return int32(v), after, t.shown.Lookup(uint32(0), &after)
}

// Verify loads the function by itself and gives the number of instructions that
// the verifier looked at. What it refuses, and what is above MaxVerified, is an
// error. Nothing of it stays in the kernel.
func (o *Object) Verify(tables map[string]*ebpf.Map) (int, error) {
	t, err := o.Load(tables)
	if err != nil {
		return 0, err
	}
	defer t.Close()
	if t.Verified > MaxVerified {
		return t.Verified, refuse("shorten its loops, or move work into tables",
			"the verifier had to look at %d instructions of the function; at most %d", t.Verified, MaxVerified)
	}
	return t.Verified, nil
}

// Load loads the function by itself.
func (o *Object) Load(tables map[string]*ebpf.Map) (*Trial, error) {
	shown, err := ebpf.NewMap(&ebpf.MapSpec{Name: "trial", Type: ebpf.Array, KeySize: 4, ValueSize: PacketSize, MaxEntries: 1})
	if err != nil {
		return nil, fmt.Errorf("make a table for the trial: %w", err)
	}
	code, err := o.Code("", tables)
	if err != nil {
		shown.Close()
		return nil, err
	}
	integer := &btf.Int{Name: "int", Size: 4, Encoding: btf.Signed}
	head := asm.Instructions{
		btf.WithFuncMetadata(asm.LoadMapValue(asm.R1, shown.FD(), 0).WithSymbol("onpath_trial").WithSource(asm.Comment("trial")),
			&btf.Func{Name: "onpath_trial", Linkage: btf.GlobalFunc, Type: &btf.FuncProto{Return: integer}}),
		asm.Call.Label(mainName),
		asm.Return(),
	}
	p, err := ebpf.NewProgramWithOptions(&ebpf.ProgramSpec{
		Name: "onpath_trial", Type: ebpf.SchedCLS, License: "GPL", Instructions: append(head, code...),
	}, ebpf.ProgramOptions{LogLevel: ebpf.LogLevelStats})
	if err != nil {
		shown.Close()
		return nil, refusedByKernel(err)
	}
	t := &Trial{program: p, shown: shown, Log: p.VerifierLog}
	if m := processed.FindStringSubmatch(p.VerifierLog); m != nil {
		t.Verified, _ = strconv.Atoi(m[1])
	}
	if info, err := p.Info(); err == nil {
		if v, ok := info.VerifiedInstructions(); ok {
			t.Verified = int(v)
		}
	}
	if t.Verified == 0 {
		t.Close()
		return nil, errors.New("this kernel does not say how much it verified")
	}
	return t, nil
}

// refusedByKernel puts the verifier's last word into the error.
func refusedByKernel(err error) error {
	var v *ebpf.VerifierError
	if !errors.As(err, &v) {
		return refuse("shorten its loops, or move work into tables", "the kernel's verifier gives up on the function: %s", clean(err))
	}
	last := "it does not say why"
	for _, line := range slices.Backward(v.Log) {
		if line != "" && !processed.MatchString(line) &&
			!regexp.MustCompile(`^(verification time|stack depth|peak_states)`).MatchString(line) {
			last = line
			break
		}
	}
	e := onpath.Errorf(onpath.CodeInvalid, "the kernel's verifier refuses the function: %s", clean(errors.New(last)))
	e.Remedy = "see what the verifier says with onpath function check --verbose"
	return e
}
